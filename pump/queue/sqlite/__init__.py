"""The durable queue in a SQLite file.

Imports: the top level of `pump` and of `pump.queue`; never `postgres`, `http` or `client`.
Begin with: `engine`, then `pop`.
"""
