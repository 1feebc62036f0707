"""NATS JetStream: durable pull consumers, confirmed posting, dead letters in streams of their own.

Imports: the top level of `pump`, `pump.transport_kit`, and `pump.handling` for handlers that settle messages.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.nats.message import AsyncNatsMessage, Headers, NatsMessage, NatsMetadata
from pump.transports.nats.producer import NatsProducer
from pump.transports.nats.subscription import NatsSubscription
from pump.transports.nats.transport import NatsTransport

__all__ = [
    "AsyncNatsMessage",
    "Headers",
    "NatsMessage",
    "NatsMetadata",
    "NatsProducer",
    "NatsSubscription",
    "NatsTransport",
]
