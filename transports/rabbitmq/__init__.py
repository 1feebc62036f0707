"""RabbitMQ: queues, topics, dead letters and delays on AMQP 0-9-1.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.transport import RabbitMQTransport

__all__ = ["RabbitMQSettings", "RabbitMQTransport"]
