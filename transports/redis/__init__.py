"""Redis: topics on streams, or on lists, with delays and dead letters.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `streams`, then `consumer`.
"""

from pump.transports.redis.lists import RedisListTransport
from pump.transports.redis.settings import Server
from pump.transports.redis.streams import RedisTransport

__all__ = ["RedisListTransport", "RedisTransport", "Server"]
