"""The contract with MQTT 3.1.1."""

from pump.transport_kit.protocol import Transport
from pump.transports.mqtt.messages import MAGIC
from pump.transports.mqtt.settings import Version
from support.mqtt import publish
from support.mqtt_contract import MqttContract


class TestMqtt311(MqttContract):
    version: Version = "3.1.1"

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = MAGIC + b"\0\0\0\2{]body"
        publish(self.broker, topic, body)
        return body
