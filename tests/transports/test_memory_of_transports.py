"""The memory of a process that drains a channel for long does not grow with the number of its messages."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from brokers.kafka import Kafka
from brokers.mosquitto import Mosquitto
from brokers.sqs import Sqs
from pump import Command, Dispatcher, Publication, Subscription
from support.waiting import eventually

ROUND = 20_000
ROUNDS = 15
EARLY = 3
"""After so many rounds everything is there that a process keeps."""
GROWTH = 12 * 2**20
"""Bytes; a tenth of a message that is kept of each would be more."""
PATIENCE = 300.0


@dataclass(frozen=True)
class Tick(Command):
    """One of many."""

    number: int
    note: str = "x" * 100


class Clockwork:
    """Counts the ticks."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, _: Tick) -> None:
        self.count += 1

    async def handle_async(self, _: Tick) -> None:
        self.count += 1


@contextmanager
def kafka() -> Iterator[str]:
    with Kafka() as broker:
        yield broker.url


@contextmanager
def mqtt() -> Iterator[str]:
    with Mosquitto("autosave_on_changes false", "autosave_interval 3600") as broker:
        yield broker.url


@contextmanager
def sqs() -> Iterator[str]:
    with Sqs() as broker:
        yield broker.url


BROKERS: Mapping[str, Callable[[], object]] = {"kafka": kafka, "mqtt": mqtt, "sqs": sqs}


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize("awaiting", [False, True], ids=["reactor", "proactor"])
@pytest.mark.parametrize("name", BROKERS)
def test_memory_does_not_grow_in_three_hundred_thousand_messages(name: str, *, awaiting: bool) -> None:
    clockwork, topic, used = Clockwork(), f"ticks-{uuid4().hex[:8]}", list[int]()
    with BROKERS[name]() as url:  # type: ignore[attr-defined]
        dispatcher = Dispatcher(
            url,
            handlers=[clockwork.handle_async if awaiting else clockwork.handle],
            subscriptions=[Subscription(Tick, topic=topic, channel=topic, buffer_size=100)],
            publications=[Publication(Tick, topic=topic)],
        )
        with dispatcher:
            for number in range(1, ROUNDS + 1):
                dispatcher.post_many([Tick(each) for each in range(ROUND)])
                eventually(lambda number=number: clockwork.count >= number * ROUND, PATIENCE)  # type: ignore[misc]
                used.append(resident())

    growth = used[-1] - used[EARLY - 1]
    assert growth <= GROWTH, f"it grew by {growth:,} bytes: {used}"
