"""Calls of the durable queue that are made at the same moment, and what is left to do when they are over."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.vocabulary import DEFAULT_GROUP, Leased, PopRequest, Settlement

T = TypeVar("T")


def race(*acts: Callable[[], Any]) -> list[Any]:
    """Begin all at once, each in a thread of its own; what they return, or the first exception."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], Any]) -> Any:
        start.wait(20)
        return act()

    with ThreadPoolExecutor(len(acts)) as threads:
        futures = [threads.submit(run, act) for act in acts]
        return [future.result() for future in futures]


def patiently(act: Callable[[], T]) -> T:
    """What it returns in the end: whoever is told that the queue is not available just now asks again."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return act()
        except QueueUnavailable:
            assert time.monotonic() < deadline, "it was never available"


def settlements(messages: Sequence[Leased], group: str = DEFAULT_GROUP, **fields: Any) -> list[Settlement]:
    """That these are completed, or what the fields say."""
    return [
        Settlement(each.transaction_id, each.partition_id, each.lease_id, group=group, **fields) for each in messages
    ]


def drained(engine: Engine, queue: str, group: str = DEFAULT_GROUP, **want: Any) -> list[Leased]:
    """All that is ready for a group, completed as it comes."""
    found: list[Leased] = []
    while messages := engine.pop(PopRequest(**{"queue": queue, "group": group, "limit": 100, **want})).messages:
        found += messages
        assert all(each.success for each in engine.settle(settlements(messages, group)))
    return found


def names(messages: Sequence[Leased]) -> list[str]:
    return [each.transaction_id for each in messages]
