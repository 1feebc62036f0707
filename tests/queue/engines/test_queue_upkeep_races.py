"""Retention and operators at work on a queue while it is in use."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from brokers.waiting import wait_until
from pump.queue.vocabulary import DEFAULT_GROUP, Push
from support.queue_rig import FAIL, OK, Rig

MESSAGES = 600
BATCH = 20


class Traffic:
    """Pushes, consumes, gives up and cleans up, each in its own thread."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.over = threading.Event()
        self.pushed: list[tuple[str, str]] = []
        self.completed: list[str] = []
        self.given_up: list[str] = []

    def push(self) -> None:
        names = map(str, range(MESSAGES))
        while batch := list(islice(names, BATCH)):
            items = [
                Push(self.rig.queue, name.encode(), transaction_id=name, delay=0.05 * (int(name) % 7 == 0))
                for name in batch
            ]
            self.pushed += [(each.partition_id, each.transaction_id) for each in self.rig.engine.push(items)]

    def consume(self) -> None:
        while not self.over.is_set():
            messages = self.rig.pop(10)
            statuses = [FAIL if int(each.transaction_id) % 13 == each.deliveries else OK for each in messages]
            settled = self.rig.settle(*zip(messages, statuses, strict=True), delay=0.02) if messages else []
            self.completed += [
                each.transaction_id
                for each, status in zip(settled, statuses, strict=True)
                if each.success and status is OK and each.message == "acknowledged"
            ]

    def give_up(self) -> None:
        for partition_id, name in self.growing():
            if int(name) % 5 == 0 and self.rig.engine.give_up(partition_id, name):
                self.given_up.append(name)

    def growing(self) -> Iterator[tuple[str, str]]:
        """The ids of all pushed messages."""
        seen = 0
        while seen < MESSAGES and not self.over.is_set():
            found = self.pushed[seen:]
            yield from found
            seen += len(found)

    def keep(self) -> None:
        while not self.over.is_set():
            self.rig.engine.maintain()

    def is_done(self) -> bool:
        return len(self.completed) + len(self.given_up) >= MESSAGES


def all_at_once(acts: Sequence[Callable[[], None]], over: threading.Event, is_done: Callable[[], bool]) -> None:
    """Run all until they are done, or raise the first failure."""
    with ThreadPoolExecutor(len(acts)) as threads:
        futures = [threads.submit(act) for act in acts]
        try:
            wait_until(lambda: is_done() or any(each.done() and each.exception() for each in futures), "all is settled")
        finally:
            over.set()
        for each in futures:
            each.result()


@pytest.mark.requirement("Z-01", "Q-63")
def test_nothing_is_lost_or_counted_twice_while_operators_and_retention_are_at_work(either: Rig) -> None:
    either.configure(retention_enabled=True, completed_retention=0.01, retry_limit=None)
    either.engine.subscribe(either.queue, DEFAULT_GROUP)
    traffic = Traffic(either)

    all_at_once(
        [traffic.push, traffic.consume, traffic.consume, traffic.give_up, traffic.keep], traffic.over, traffic.is_done
    )

    assert sorted([*traffic.completed, *traffic.given_up], key=int) == [str(number) for number in range(MESSAGES)]
    assert sorted(traffic.given_up) == either.dead_names()
    assert (either.progress().completed, either.engine.groups()[0].lag) == (len(traffic.completed), 0)
    either.later(1000)
    assert either.names() == []
    while either.engine.maintain() == 0:
        pass
    assert either.states() == {}
    assert (either.progress().completed, either.engine.groups()[0].lag) == (len(traffic.completed), 0)
    either.engine.seek(DEFAULT_GROUP, either.queue, 0.0)
    assert either.engine.groups()[0].lag == 0
