"""The server of the HTTP API.

Imports: `wire`, `batching` and the top level of `pump.queue`, and the engines by the command alone; never `client`.
Begin with: `server`, then `routes`.
"""
