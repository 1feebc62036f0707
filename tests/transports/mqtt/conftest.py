"""What the tests of the MQTT transport are made with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.mosquitto import Mosquitto
from pump import Dispatcher
from support.mqtt_bench import MqttBench
from support.redis_works import Works


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


@pytest.fixture(params=["reactor", "proactor"])
def awaiting(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "proactor")


@pytest.fixture
def works(tmp_path: Path) -> Works:
    return Works(tmp_path)


@pytest.fixture
def running() -> Iterator[Callable[[Dispatcher], Dispatcher]]:
    """Start dispatchers; they are stopped after the test."""
    with ExitStack() as stack:
        yield stack.enter_context
