"""Google Cloud Pub/Sub: pull, acknowledgement deadlines, ordering keys, and dead letters in topics of their own.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.pubsub.settings import PubSubSettings
from pump.transports.pubsub.transport import PubSubTransport

__all__ = ["PubSubSettings", "PubSubTransport"]
