"""The durable queue in PostgreSQL.

Imports: the top level of `pump` and of `pump.queue`; never `sqlite`, `http` or `client`.
Begin with: `engine`; the rules are in `sql/`.
"""
