"""Steps of many keys, with handlers that take a moment: in which order each key's were run, and how fast all were."""

import asyncio
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pump import Command, Dispatcher, Publication, Subscription

KEYS = 100
HANDLER_SECONDS = 0.01
LONG = 60.0


@dataclass(frozen=True)
class Step(Command):
    """One of the steps of a key."""

    key: str
    number: int


class Steps:
    """So many steps, posted and then handled; which ran when is known afterwards."""

    def __init__(self, count: int) -> None:
        self._steps = [Step(f"k{number % KEYS}", number // KEYS) for number in range(count)]
        self._running: set[str] = set()
        self._began_at = 0.0
        self._done = threading.Event()
        self._left = count
        self.began: dict[str, list[int]] = defaultdict(list)
        self.overlapping: list[Step] = []
        """Those that ran while another one of their key did."""
        self.seconds = 0.0
        """From the beginning of the first to the end of the last."""

    async def handle(self, step: Step) -> None:
        """Take a moment."""
        self._began_at = self._began_at or time.monotonic()
        if step.key in self._running:
            self.overlapping.append(step)
        self._running.add(step.key)
        self.began[step.key].append(step.number)
        await asyncio.sleep(HANDLER_SECONDS)
        self._running.discard(step.key)
        self._left -= 1
        if self._left == 0:
            self.seconds = time.monotonic() - self._began_at
            self._done.set()

    @property
    def rate(self) -> float:
        """Steps a second."""
        return len(self._steps) / self.seconds

    def run(self, url: str, in_flight: int, **options: Any) -> None:
        """Post all, then handle all."""
        topic = f"steps-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            url,
            handlers=[self.handle],
            subscriptions=[Subscription(Step, topic=topic, channel=topic, in_flight=in_flight, **options)],
            publications=[Publication(Step, topic=topic, key="key")],
        )
        with dispatcher.publishing():
            dispatcher.post_many(self._steps)
        with dispatcher:
            assert self._done.wait(LONG), f"{self._left} steps were not run in time"

    def assert_in_order(self) -> None:
        """Each key's steps ran one after another, in their order, once each."""
        expected: dict[str, list[int]] = defaultdict(list)
        for step in self._steps:
            expected[step.key].append(step.number)
        assert self.overlapping == []
        assert self.began == expected


def assert_many_keys_are_handled_at_once_and_each_in_order(url: str, *, count: int = 2000) -> None:
    """Fifty in flight are at least ten times as fast as one, and no key's order suffers."""
    rates: list[float] = []
    for _ in range(10):  # what else the machine does can only make it slower
        one, fifty = Steps(KEYS), Steps(count)
        one.run(url, 1)
        fifty.run(url, 50)
        one.assert_in_order()
        fifty.assert_in_order()
        rates.append(fifty.rate / one.rate)
        if rates[-1] >= 10.0:
            return
    raise AssertionError(f"fifty at once are only {', '.join(f'{rate:.1f}' for rate in rates)} times as fast as one")
