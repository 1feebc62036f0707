"""The durable queue: one set of rules on two databases, SQLite for one machine and PostgreSQL for many.

Imports: the top level of `pump`; the folder `transport` also `pump.transport_kit`.
Begin with: `vocabulary`, the values that callers and engines exchange, and `engine`, what every engine promises.
"""
