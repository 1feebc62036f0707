"""The fixtures of the tests of the RabbitMQ transport."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.rabbitmq import RabbitMQ
from pump import Dispatcher
from support.rabbitmq_works import Works


@pytest.fixture
def rabbitmq(own_rabbitmq: RabbitMQ) -> RabbitMQ:
    """The broker that may be restarted, for all tests here: one broker starts faster than two."""
    return own_rabbitmq


@pytest.fixture
def works(tmp_path: Path) -> Works:
    return Works(tmp_path)


@pytest.fixture
def running() -> Iterator[Callable[[Dispatcher], Dispatcher]]:
    """A function that starts dispatchers; they are stopped after the test."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture(params=["reactor", "proactor"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["quorum", "classic"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)
