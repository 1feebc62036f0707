"""Partitions come and go under load: order within a key is exact, and no gap is ever committed."""

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from brokers.kafka import Kafka
from pump import Dispatcher
from support.kafka_works import Works
from support.programs import Program
from support.waiting import eventually
from support.works import Job

PARTITIONS = 4
PATIENCE = 60.0

Running = Callable[[Dispatcher], Dispatcher]


class Auditor:
    """An independent consumer: what the topic has, and what the group has committed of it."""

    def __init__(self, broker: Kafka, works: Works) -> None:
        self._client: Any = Consumer(
            broker.client(**{"group.id": works.channel, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        )
        self._partitions = [TopicPartition(works.channel, number) for number in range(PARTITIONS)]

    def committed(self) -> Mapping[int, int]:
        found = self._client.committed(self._partitions, timeout=30)
        return {each.partition: max(0, each.offset) for each in found}

    def stored(self, count: int) -> Mapping[int, list[str]]:
        """The names of all jobs of each partition, in order."""
        names: dict[int, list[str]] = defaultdict(list)
        self._client.assign([TopicPartition(each.topic, each.partition, 0) for each in self._partitions])
        while sum(map(len, names.values())) < count:
            record = self._client.poll(30)
            assert record is not None
            assert record.error() is None
            names[record.partition()].append(Works.name_in(record.value()))
        self._client.unassign()
        return names

    def close(self) -> None:
        self._client.close()


@contextmanager
def auditing(broker: Kafka, works: Works) -> Iterator[Auditor]:
    auditor = Auditor(broker, works)
    try:
        yield auditor
    finally:
        auditor.close()


@contextmanager
def looking_for_gaps(auditor: Auditor, works: Works, names: Mapping[int, list[str]]) -> Iterator[None]:
    """Meanwhile nothing is committed before everything up to it is done, and nothing committed is begun again."""
    gaps: list[str] = []
    seen: list[tuple[int, set[str]]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            committed = {name for number, offset in auditor.committed().items() for name in names[number][:offset]}
            seen.append((len(works.noted("began")), committed))
            gaps.extend(committed.difference(works.noted("done")))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    began = works.noted("began")
    assert gaps == []
    for count, committed in seen:
        assert not committed.intersection(began[count:])


def test_order_within_a_key_is_exact_and_no_gap_is_committed_while_members_come_and_go(
    works: Works, kafka_broker: Kafka, running: Running
) -> None:
    jobs = [Job(f"k{number % 40}-{number // 40}", f"k{number % 40}", seconds=0.005) for number in range(2000)]
    options = {"awaiting": True, "in_flight": 20, "buffer_size": 40}
    works.post(*jobs)

    with auditing(kafka_broker, works) as auditor:
        names = auditor.stored(len(jobs))
        with looking_for_gaps(auditor, works, names):
            first = works.dispatcher(**options)
            with first:
                eventually(lambda: len(works.noted("done")) > 200, PATIENCE)
                running(works.dispatcher(**options))
                eventually(lambda: len(works.noted("done")) > 900, PATIENCE)
            running(works.dispatcher(**options))
            eventually(lambda: len(set(works.noted("done"))) == len(jobs), PATIENCE)
            eventually(lambda: auditor.committed() == {number: len(names[number]) for number in range(4)}, PATIENCE)

    assert_in_order(works.noted("began"))
    began = works.noted("began")
    assert len(began) - len(set(began)) <= len(jobs) // 2, "this broker takes no commits while it balances a group"


@pytest.mark.requirement("P-10")
def test_fifty_at_once_are_ten_times_as_fast_as_one_and_neither_order_nor_commits_suffer(
    works: Works, kafka_broker: Kafka, running: Running
) -> None:
    keys = [f"k{number}" for number in range(100)]
    alone = Works(works.folder, works.url)
    alone.post(*(Job(f"{key}-0", key, seconds=0.01) for key in keys))
    works.post(*(Job(f"{key}-{number}", key, seconds=0.01) for number in range(20) for key in keys))

    slow = seconds_for(alone, running(alone.dispatcher(awaiting=True)), len(keys))
    with auditing(kafka_broker, works) as auditor, looking_for_gaps(auditor, works, auditor.stored(2000)):
        fast = seconds_for(works, running(works.dispatcher(awaiting=True, in_flight=50)), 2000)

    assert_in_order(works.noted("began"))
    assert 2000 / fast >= 10 * len(keys) / slow


def seconds_for(works: Works, _consuming: Dispatcher, count: int) -> float:
    """From the first that is done to the last."""
    eventually(lambda: works.noted("done"), PATIENCE)
    began = time.monotonic()
    eventually(lambda: len(works.noted("done")) == count, PATIENCE)
    return time.monotonic() - began


def assert_in_order(names: list[str]) -> None:
    """Of each key none runs before the one ahead of it; what was not committed runs again in order."""
    latest: dict[str, int] = {}
    for name in names:
        key, _, number = name.partition("-")
        assert int(number) <= latest.get(key, -1) + 1, f"{name} came after {latest.get(key)}"
        latest[key] = int(number)


def test_a_member_that_is_killed_loses_nothing_and_repeats_nothing_that_was_committed(
    works: Works, kafka_broker: Kafka, running: Running
) -> None:
    jobs = [Job(f"k{number % 40}-{number // 40}", f"k{number % 40}", seconds=0.02) for number in range(1200)]
    works.post(*jobs)
    options = {"awaiting": True, "in_flight": 20, "buffer_size": 40}

    with auditing(kafka_broker, works) as auditor, Program(works.command(**options), works.folder) as program:
        eventually(lambda: len(works.noted("done")) > 100, PATIENCE)
        running(works.dispatcher(**options))
        eventually(lambda: sum(auditor.committed().values()) > 600, PATIENCE)
        names = auditor.stored(len(jobs))
        committed = {name for number, offset in auditor.committed().items() for name in names[number][:offset]}
        begun = len(works.noted("began"))
        program.send(signal.SIGKILL)
        program.ends()

    eventually(lambda: len(set(works.noted("done"))) == len(jobs), PATIENCE)
    assert not committed.intersection(works.noted("began")[begun:])


def test_a_message_that_is_refused_holds_up_its_partition_and_no_other(
    works: Works, running: Running, *, awaiting: bool
) -> None:
    """Although it is the first message that comes at all."""
    keys = [f"k{number}" for number in range(12)]
    works.post(Job("refused", keys[0], "refused"))
    running(works.dispatcher(awaiting=awaiting, dont_ack_delay=0.1, may_block=True))
    eventually(lambda: works.noted("began").count("refused") >= 2, PATIENCE)

    works.post(*(Job(f"{key}-after", key) for key in keys))

    eventually(lambda: works.noted("began").count("refused") >= 5, PATIENCE)
    eventually(lambda: len(works.noted("done")) >= 4, PATIENCE)
    assert f"{keys[0]}-after" not in works.noted("began")


def test_a_handler_that_takes_longer_than_the_session_runs_once(
    works: Works, running: Running, *, awaiting: bool
) -> None:
    works.post(Job("long", "k", seconds=4.0), Job("next", "k"))

    running(works.dispatcher(awaiting=awaiting))

    eventually(lambda: works.noted("done") == ["long", "next"], PATIENCE)
    assert works.noted("began") == ["long", "next"]
