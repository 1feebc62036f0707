"""Kafka: topics, consumer groups as channels, retry topics of a group for what comes again later, dead-letter topics.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.kafka.settings import Cluster
from pump.transports.kafka.transport import KafkaTransport

__all__ = ["Cluster", "KafkaTransport"]
