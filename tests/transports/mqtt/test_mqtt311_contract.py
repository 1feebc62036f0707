"""The contract with MQTT 3.1.1."""

from typing import cast

import pytest

from pump.colour import Colour
from pump.transport_kit.protocol import Transport
from pump.transports.mqtt.messages import MAGIC
from pump.transports.mqtt.settings import Version
from support.mqtt import publish
from support.mqtt_contract import MqttContract


class TestMqtt311(MqttContract):
    version: Version = "3.1.1"

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = MAGIC + b"\0\0\0\2{]body"
        publish(self.broker, topic, body)
        return body
