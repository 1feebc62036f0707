"""NATS JetStream: durable pull consumers, confirmed posting, dead letters in streams of their own.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.nats.transport import (
    AsyncNatsMessage,
    Headers,
    NatsMessage,
    NatsMetadata,
    NatsProducer,
    NatsSubscription,
    NatsTransport,
)

__all__ = [
    "AsyncNatsMessage",
    "Headers",
    "NatsMessage",
    "NatsMetadata",
    "NatsProducer",
    "NatsSubscription",
    "NatsTransport",
]
