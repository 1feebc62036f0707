"""What the tests of the Kafka transport are made with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.kafka import Kafka
from pump import Dispatcher
from support.kafka_works import Works


@pytest.fixture(params=["reactor", "proactor"])
def awaiting(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "proactor")


@pytest.fixture
def works(tmp_path: Path, kafka_broker: Kafka) -> Works:
    return Works(tmp_path, kafka_broker.url)


@pytest.fixture
def running() -> Iterator[Callable[[Dispatcher], Dispatcher]]:
    """Start dispatchers; they are stopped after the test."""
    with ExitStack() as stack:
        yield stack.enter_context
