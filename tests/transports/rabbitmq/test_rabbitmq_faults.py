"""What becomes of messages when the broker dies, the network is cut, or a consumer dies or loses its queue."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest

from brokers.fixtures import ProxyTo
from brokers.rabbitmq import RabbitMQ
from pump import Dispatcher
from pump.errors import PublishError
from pump.transports.rabbitmq.connection import LEAST_MARGIN_SECONDS
from support.programs import Program
from support.waiting import eventually
from support.works import Job, Works

RECOVERY = 40.0
OUTAGE = 10.0
FAST = {"failure_backoff": (0.2, 2.0)}
"""Shorter waits than a program should have, for tests."""

Running = Callable[[Dispatcher], Dispatcher]


def names(count: int, prefix: str = "job") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def jobs(count: int, seconds: float = 0.0, prefix: str = "job") -> list[Job]:
    return [Job(name, seconds=seconds) for name in names(count, prefix)]


def stored(broker: RabbitMQ, queue: str) -> int:
    """How many messages of a queue no consumer has in hand; -1 if there is no such queue."""
    with broker.connect() as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker:
            return -1


def everything_was_done(works: Works, count: int, at_most_twice: int) -> None:
    eventually(lambda: set(works.runs) >= set(names(count)), RECOVERY)
    twice = [name for name, times in Counter(works.runs).items() if times > 1]
    assert len(twice) <= at_most_twice, f"{len(twice)} jobs were done more than once"


def no_message_is_left(broker: RabbitMQ, works: Works, dispatcher: Dispatcher) -> None:
    """Not even in somebody's hands: a consumer that is gone has given back what it had."""
    dispatcher.stop()
    assert (stored(broker, works.channel), stored(broker, f"{works.channel}.dead")) == (0, 0)


class Pair:
    """Works in both colours on the same broker, which suffer whatever happens to it."""

    def __init__(self, folder: Path, running: Running) -> None:
        self.all = {False: Works(folder), True: Works(folder)}
        self._running = running

    def run(self, url: str, **options: Any) -> list[Dispatcher]:
        return [
            self._running(works.dispatcher(url, awaiting=awaiting, **options)) for awaiting, works in self.all.items()
        ]

    def until(self, happened: Callable[[Works], object], timeout: float = 10.0) -> None:
        """Wait until it has happened in both."""
        eventually(lambda: all(happened(works) for works in self.all.values()), timeout)

    @property
    def works(self) -> Sequence[Works]:
        return list(self.all.values())


@pytest.fixture
def pair(tmp_path: Path, running: Running) -> Pair:
    return Pair(tmp_path, running)


def test_nothing_is_lost_when_the_broker_stops_and_dies_under_load(own_rabbitmq: RabbitMQ, pair: Pair) -> None:
    for works in pair.works:
        works.post(own_rabbitmq.url, *jobs(800, 0.002))
    dispatchers = pair.run(own_rabbitmq.url, **FAST)
    pair.until(lambda works: len(works.runs) > 50)

    own_rabbitmq.restart()  # and RabbitMQ 3.10 forgets a queue that is younger than 3 minutes if it is killed before
    pair.until(lambda works: len(works.runs) > 300, RECOVERY)
    own_rabbitmq.kill()
    own_rabbitmq.start()

    for works, dispatcher in zip(pair.works, dispatchers, strict=True):
        everything_was_done(works, 800, at_most_twice=2 * (64 + 10))
        no_message_is_left(own_rabbitmq, works, dispatcher)


@pytest.mark.requirement("P-12")
def test_consumers_work_again_soon_after_an_outage(own_rabbitmq: RabbitMQ, proxy_to: ProxyTo, pair: Pair) -> None:
    proxy = proxy_to(own_rabbitmq.port)
    pair.run(proxy.url(own_rabbitmq.url))

    proxy.cut()  # so that the outage takes as long as it shall, however long the broker takes to start
    gone = time.monotonic()
    own_rabbitmq.restart()
    for works in pair.works:
        works.post(own_rabbitmq.url, *jobs(3))
    time.sleep(max(0.0, gone + OUTAGE - time.monotonic()))
    proxy.heal()
    back = time.monotonic()

    pair.until(lambda works: set(works.runs) == set(names(3)), back + 5.0 - time.monotonic())


def test_a_network_that_breaks_under_load_loses_nothing(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo, works: Works, running: Running, colour: str
) -> None:
    works.post(rabbitmq.url, *jobs(300, 0.002))
    proxy = proxy_to(rabbitmq.port)
    dispatcher = running(works.dispatcher(proxy.url(rabbitmq.url), awaiting=colour == "proactor", **FAST))

    for done, breaks in ((30, proxy.reset), (100, proxy.cut), (200, proxy.reset)):
        eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
        breaks()
        proxy.heal()

    everything_was_done(works, 300, at_most_twice=3 * (64 + 10))
    no_message_is_left(rabbitmq, works, dispatcher)


def test_a_network_that_only_falls_silent_is_found_out_by_heartbeats(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo, works: Works, running: Running, colour: str
) -> None:
    works.post(rabbitmq.url, *jobs(100, 0.01))
    proxy = proxy_to(rabbitmq.port)
    running(works.dispatcher(f"{proxy.url(rabbitmq.url)}?heartbeat=1&timeout=1", awaiting=colour == "proactor", **FAST))
    eventually(lambda: len(works.runs) > 20)

    proxy.stall()
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted, 1.0 + LEAST_MARGIN_SECONDS + 2.0)
    proxy.heal()

    everything_was_done(works, 100, at_most_twice=64 + 10)


@pytest.mark.requirement("P-12")
def test_a_deleted_queue_is_made_again(
    rabbitmq: RabbitMQ, works: Works, running: Running, colour: str, queue_type: str
) -> None:
    url = f"{rabbitmq.url}?queue_type={queue_type}"
    dispatcher = running(works.dispatcher(url, awaiting=colour == "proactor", **FAST))
    dispatcher.post(Job("before"))
    eventually(lambda: works.runs == ["before"])

    rabbitmq.delete_queue(works.channel)

    eventually(lambda: works.channel in rabbitmq.list_queues(), RECOVERY)
    dispatcher.post(Job("after"))
    eventually(lambda: works.runs == ["before", "after"])


def test_connections_closed_by_an_operator_are_made_again(
    rabbitmq: RabbitMQ, works: Works, running: Running, colour: str
) -> None:
    dispatcher = running(works.dispatcher(rabbitmq.url, awaiting=colour == "proactor", **FAST))
    dispatcher.post(Job("before"))
    eventually(lambda: works.runs == ["before"])

    rabbitmq.close_connections()

    def posted() -> bool:
        try:
            dispatcher.post(Job("after"))
        except PublishError:
            return False
        return True

    eventually(posted)
    eventually(lambda: "after" in works.runs, RECOVERY)


def test_a_delivery_that_took_the_broker_too_long_comes_again_and_so_do_others(
    own_rabbitmq: RabbitMQ, pair: Pair
) -> None:
    with own_rabbitmq.consumer_timeout(1.0):
        dispatchers = pair.run(own_rabbitmq.url, max_attempts=None, **FAST)
        for dispatcher in dispatchers:
            dispatcher.post(Job("slow", seconds=3.0))
        pair.until(lambda works: works.runs.count("slow") > 1, RECOVERY)

    own_rabbitmq.close_connections()
    for dispatcher in dispatchers:
        dispatcher.post(Job("quick"))
    pair.until(lambda works: "quick" in works.runs, RECOVERY)


def test_heartbeats_go_on_while_handlers_run(rabbitmq: RabbitMQ, pair: Pair) -> None:
    dispatchers = pair.run(f"{rabbitmq.url}?heartbeat=2")

    for dispatcher in dispatchers:
        dispatcher.post_many([Job("job-0", seconds=10.0), Job("job-1")])

    pair.until(lambda works: works.runs == ["job-0", "job-1"], 20.0)
    for works, dispatcher in zip(pair.works, dispatchers, strict=True):
        no_message_is_left(rabbitmq, works, dispatcher)


class Alarm:
    """Makes the broker short of memory, so that it blocks publishers."""

    def __init__(self, broker: RabbitMQ) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        self._broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
        eventually(lambda: "memory" in self._broker.control("eval", "rabbit_alarm:get_alarms()."))

    def __exit__(self, *_: object) -> None:
        self._broker.control("set_vm_memory_high_watermark", "0.4")


def test_a_broker_that_blocks_publishers_blocks_no_acknowledgement(own_rabbitmq: RabbitMQ, pair: Pair) -> None:
    for works in pair.works:
        works.post(own_rabbitmq.url, *jobs(50), Job("later", fate="deferred"), *jobs(50, prefix="more"))

    with Alarm(own_rabbitmq):
        dispatchers = pair.run(f"{own_rabbitmq.url}?timeout=2", max_attempts=None, **FAST)
        pair.until(lambda works: own_rabbitmq.list_queues()[works.channel] <= 51)
        for works, dispatcher in zip(pair.works, dispatchers, strict=True):
            assert set(works.runs) >= set(names(50))
            with pytest.raises(PublishError):
                dispatcher.post(Job("refused"))

    pair.until(lambda works: set(works.runs) >= {*names(50), *names(50, "more"), "later"}, RECOVERY)
    for works in pair.works:
        assert max(Counter(works.runs)[name] for name in names(50)) == 1
    pair.until(lambda works: Counter(works.runs)["later"] > 2, RECOVERY)


def test_what_a_killed_process_had_in_hand_comes_again(rabbitmq: RabbitMQ, works: Works) -> None:
    works.post(rabbitmq.url, *jobs(100, 0.01))
    with Program(works.command(rabbitmq.url), works.folder) as program:
        eventually(lambda: len(works.runs) > 20)
        program.send(signal.SIGKILL)
        program.ends()

    with Program(works.command(rabbitmq.url), works.folder):
        everything_was_done(works, 100, at_most_twice=1 + 5)
    assert stored(rabbitmq, f"{works.channel}.dead") == 0


@pytest.mark.requirement("P-05")
def test_a_deferred_message_outlives_a_killed_consumer(rabbitmq: RabbitMQ, works: Works) -> None:
    works.post(rabbitmq.url, Job("deferred", fate="deferred", delay=4.0))
    with Program(works.command(rabbitmq.url), works.folder) as program:
        eventually(lambda: works.runs == ["deferred"])
        deferred = time.monotonic()
        eventually(lambda: stored(rabbitmq, f"{works.channel}.delay.4s") == 1)
        program.send(signal.SIGKILL)
        program.ends()

    with Program(works.command(rabbitmq.url), works.folder):
        eventually(lambda: len(works.runs) > 1)
    assert 3.6 <= time.monotonic() - deferred <= 5.5


@pytest.mark.requirement("P-11")
def test_a_stop_under_load_loses_nothing_and_repeats_next_to_nothing(rabbitmq: RabbitMQ, works: Works) -> None:
    works.post(rabbitmq.url, *jobs(300, 0.005))
    for done in (50, 150):
        with Program(works.command(rabbitmq.url, grace=2), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
            began = time.monotonic()
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            assert time.monotonic() - began <= 4.0

    with Program(works.command(rabbitmq.url), works.folder):
        everything_was_done(works, 300, at_most_twice=0)


def test_no_thread_is_left_when_everything_is_closed(rabbitmq: RabbitMQ, works: Works, colour: str) -> None:
    before = {thread.name for thread in threading.enumerate()}

    with works.dispatcher(rabbitmq.url, awaiting=colour == "proactor") as dispatcher:
        dispatcher.post_many([Job("deferred", fate="deferred"), Job("job")])
        eventually(lambda: {"deferred", "job"} == set(works.runs))

    eventually(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("pump-amqp") and t.name not in before]
    )
