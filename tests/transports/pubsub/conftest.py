"""What the tests of the Pub/Sub transport are made with."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from brokers.pubsub import PubSub
from support.pubsub_bench import PubSubBench
from support.pumps import PROACTOR, REACTOR, Kind


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
