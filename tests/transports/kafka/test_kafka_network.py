"""A network that breaks, falls silent or is half open under load, and a broker that is away: work goes on by itself."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from brokers.fixtures import ProxyTo
from brokers.kafka import Kafka
from brokers.proxy import Proxy
from pump import Dispatcher
from support.kafka_works import Works
from support.programs import Program
from support.waiting import eventually
from support.works import Job

PATIENCE = 60.0
LOADED = 3.0
"""What a machine that does other things may take longer."""
FAST: dict[str, Any] = {"failure_backoff": (0.2, 2.0)}
UNCOMMITTED = 200
"""What may be repeated after one failure: what was in hand or buffered, and what was settled shortly before."""

Running = Callable[[Dispatcher], Dispatcher]


def jobs(count: int, seconds: float = 0.0, prefix: str = "job") -> list[Job]:
    return [Job(f"{prefix}-{number}", f"k{number % 20}", seconds=seconds) for number in range(count)]


@pytest.fixture
def proxy(own_kafka_broker: Kafka, proxy_to: ProxyTo) -> Iterator[Proxy]:
    """Between the broker and all of its clients."""
    proxy = proxy_to(own_kafka_broker.port)
    own_kafka_broker.tell("advertise", proxy.port)
    yield proxy
    proxy.heal()
    own_kafka_broker.tell("advertise", own_kafka_broker.port)


@pytest.fixture
def works(tmp_path: Path, own_kafka_broker: Kafka) -> Iterator[Works]:
    yield Works(tmp_path, f"{own_kafka_broker.url}&socket.timeout.ms=2000")
    own_kafka_broker.unpause()
    own_kafka_broker.come_up()


def everything_was_done(works: Works, count: int, at_most_twice: int) -> None:
    everything = {job.name for job in jobs(count)}
    eventually(lambda: set(works.noted("done")) >= everything, PATIENCE)
    repeated = sum(times - 1 for times in Counter(works.noted("done")).values())
    assert repeated <= at_most_twice, f"{repeated} runs were repetitions"


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_network_that_breaks_under_load_loses_nothing(
    works: Works, proxy: Proxy, running: Running, how: str, *, awaiting: bool
) -> None:
    works.post(*jobs(300, 0.002))
    running(works.dispatcher(awaiting=awaiting, **FAST))

    for done in (30, 100, 200):
        eventually(lambda done=done: len(works.noted("done")) > done, PATIENCE)  # type: ignore[misc]
        getattr(proxy, how)()
        proxy.heal()

    everything_was_done(works, 300, at_most_twice=3 * UNCOMMITTED)


@pytest.mark.parametrize(
    ("directions", "awaiting"), [(("to_broker",), False), (("to_client",), True), ((), False)], ids=str
)
def test_a_network_that_only_falls_silent_is_found_out(
    works: Works, proxy: Proxy, running: Running, directions: tuple[Any, ...], awaiting: bool
) -> None:
    works.post(*jobs(200, 0.01))
    running(works.dispatcher(awaiting=awaiting, **FAST))
    eventually(lambda: len(works.noted("done")) > 20, PATIENCE)

    proxy.stall(*directions)
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted, PATIENCE)
    proxy.heal()

    everything_was_done(works, 200, at_most_twice=2 * UNCOMMITTED)


@pytest.mark.long
def test_a_broker_that_stands_still_for_a_while_loses_nothing(
    works: Works, own_kafka_broker: Kafka, running: Running, *, awaiting: bool
) -> None:
    works.post(*jobs(200, 0.005))
    running(works.dispatcher(awaiting=awaiting, **FAST))
    eventually(lambda: len(works.noted("done")) > 20, PATIENCE)

    own_kafka_broker.pause()
    time.sleep(15.0)
    own_kafka_broker.unpause()
    back = time.monotonic()
    works.post(Job("after"))

    eventually(lambda: "after" in works.noted("done"), back + 5.0 + LOADED - time.monotonic())
    everything_was_done(works, 200, at_most_twice=UNCOMMITTED)


@pytest.mark.requirement("P-12")
@pytest.mark.parametrize("seconds", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_consumers_work_again_soon_after_an_outage(
    tmp_path: Path, own_kafka_broker: Kafka, running: Running, seconds: float
) -> None:
    places = [(Works(tmp_path, own_kafka_broker.url), awaiting) for awaiting in (False, True)]
    for works, awaiting in places:
        works.post(Job("before"))
        running(works.dispatcher(awaiting=awaiting))  # as it waits by default
    for works, _ in places:
        eventually(lambda works=works: works.noted("done") == ["before"], PATIENCE)  # type: ignore[misc]

    own_kafka_broker.go_down()
    time.sleep(seconds)
    own_kafka_broker.come_up()
    back = time.monotonic()
    for works, _ in places:
        works.post(*jobs(3))

    for works, _ in places:
        eventually(lambda works=works: len(set(works.noted("done"))) == 4, back + 5.0 + LOADED - time.monotonic())  # type: ignore[misc]


@pytest.mark.requirement("P-12")
def test_a_topic_that_was_deleted_is_made_again(works: Works, own_kafka_broker: Kafka, running: Running) -> None:
    """Nothing was committed in it: unlike Kafka, this broker keeps the offsets of a topic that is deleted."""
    dispatcher = running(works.dispatcher(**FAST))
    eventually(lambda: dispatcher.ready and has_topic(own_kafka_broker, works.channel), PATIENCE)

    own_kafka_broker.tell("no_topic", works.channel)
    eventually(lambda: has_topic(own_kafka_broker, works.channel), PATIENCE)
    works.post(*jobs(3))

    everything_was_done(works, 3, at_most_twice=0)


def has_topic(broker: Kafka, name: str) -> bool:
    """Whether it is there; asking makes none."""
    client: Any = Consumer(broker.client(**{"group.id": "looking", "allow.auto.create.topics": False}))
    try:
        topic = client.list_topics(name, timeout=10).topics[name]
        return topic.error is None and bool(topic.partitions)
    finally:
        client.close()


@pytest.mark.requirement("P-11")
def test_a_stop_under_load_loses_nothing_and_repeats_nothing(works: Works, *, awaiting: bool) -> None:
    works.post(*jobs(200, 0.005))
    for done in (40, 100):
        with Program(works.command(grace=5, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.noted("done")) > done, PATIENCE)  # type: ignore[misc]
            began = time.monotonic()
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            assert time.monotonic() - began <= 7.0

    with Program(works.command(awaiting=awaiting), works.folder):
        everything_was_done(works, 200, at_most_twice=0)

    assert Counter(works.noted("began")) == Counter(job.name for job in jobs(200))
