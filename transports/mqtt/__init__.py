"""MQTT 5 and 3.1.1: shared subscriptions, sessions that outlive their consumer, dead letters and delays.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.mqtt.settings import MqttServer, Will
from pump.transports.mqtt.transport import MqttTransport

__all__ = ["MqttServer", "MqttTransport", "Will"]
