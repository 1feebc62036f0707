"""What the tests of the Pub/Sub transport are made with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.pubsub import PubSub
from pump import Dispatcher
from support.pubsub_bench import PubSubBench
from support.pumps import PROACTOR, REACTOR, Kind
from support.redis_works import Works


@pytest.fixture
def bench(pubsub_server: PubSub) -> Iterator[PubSubBench]:
    with ExitStack() as stack:
        yield PubSubBench(pubsub_server, stack)
    pubsub_server.tell("heal")


@pytest.fixture
def own_bench(own_pubsub_server: PubSub) -> Iterator[PubSubBench]:
    """On a server that may be killed."""
    with ExitStack() as stack:
        yield PubSubBench(own_pubsub_server, stack)
    own_pubsub_server.revive()


@pytest.fixture(params=[REACTOR, PROACTOR], ids=["reactor", "proactor"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


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
