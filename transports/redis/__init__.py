"""Redis: topics on streams, or on lists, with delays and dead letters.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `streams`.
"""

from pump.transports.redis.transport import RedisListTransport, RedisProducer, RedisTransport, Server

__all__ = ["RedisListTransport", "RedisProducer", "RedisTransport", "Server"]
