"""The durable queue as a transport of the pump, the same for both databases.

Imports: `transport_kit`, `batching`, and the top level of `pump` and of `pump.queue`; no engine.
Begin with: `transport`.
"""
