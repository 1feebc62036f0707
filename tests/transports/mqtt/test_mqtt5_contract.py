"""The contract with MQTT 5."""

from pump.transport_kit.protocol import Transport
from pump.transports.mqtt.settings import Version
from support.mqtt import publish
from support.mqtt_contract import MqttContract


class TestMqtt5(MqttContract):
    version: Version = "5"

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        publish(self.broker, topic, b"21.5", ("pump-timestamp", "yesterday"), ("unit", "°C"))
        return b"21.5"
