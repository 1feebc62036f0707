"""Azure Service Bus: queues, topics whose subscriptions forward to queues, and their dead letters.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.servicebus.settings import ServiceBusSettings
from pump.transports.servicebus.transport import ServiceBusSessionsTransport, ServiceBusTransport

__all__ = ["ServiceBusSessionsTransport", "ServiceBusSettings", "ServiceBusTransport"]
