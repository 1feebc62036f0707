"""What the tests of the MQTT transport are made with."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from brokers.mosquitto import Mosquitto
from support.mqtt_bench import MqttBench


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    """Either in turn."""
    return str(request.param)


@pytest.fixture
def bench(mosquitto: Mosquitto, version: str) -> Iterator[MqttBench]:
    with ExitStack() as stack:
        yield MqttBench(mosquitto, stack, version)


@pytest.fixture
def bench5(mosquitto: Mosquitto) -> Iterator[MqttBench]:
    with ExitStack() as stack:
        yield MqttBench(mosquitto, stack)
