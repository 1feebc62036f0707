"""The engine that all consumers and producers of a transport share, with merged calls and shared notifications."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.batching.thread_batcher import ThreadBatcher
from pump.queue.batching.wake_one import WakeOne
from pump.queue.engine import Engine
from pump.queue.vocabulary import Push, Pushed, Settled, Settlement
from pump.telemetry import log

SHORTEST_REST: Final = 0.02
LONGEST_REST: Final = 60.0


class OpenEngine:
    """An open engine. Small calls of several threads are merged."""

    def __init__(self, engine: Engine) -> None:
        self.engine: Final = engine
        self.closing: Final = Signal()
        self.push: Final = ThreadBatcher[Push, Pushed](
            lambda items: engine.push(items),  # noqa: PLW0108 - looked up at each call: a test may replace it
            lambda push: len(push.payload),
        ).do
        """As `Engine.push`."""
        self.settle: Final = ThreadBatcher[Settlement, Settled](
            lambda items: engine.settle(items)  # noqa: PLW0108 - the same
        ).do
        """As `Engine.settle`."""
        self._lock: Final = threading.Lock()
        self._wake_ones: Final[dict[tuple[str, str], WakeOne]] = {}

    def wake_one(self, topic: str, channel: str) -> WakeOne:
        """The line in which all consumers of a channel wait for notifications of the topic."""
        with self._lock:
            found = self._wake_ones.get((topic, channel))
            if found is None:
                found = WakeOne()
                self.engine.listen(topic, found.wake)
                self._wake_ones[topic, channel] = found
            return found


class SharedEngine:
    """One engine for all consumers and producers of a transport, open as long as one of them uses it."""

    def __init__(self, make: Callable[[], Engine], clock: Clock) -> None:
        self._make: Final = make
        self._clock: Final = clock
        self._lock = threading.Lock()
        self._opened: OpenEngine | None = None
        self._users = 0
        self._process = 0

    @contextmanager
    def use(self) -> Iterator[Engine]:
        """Open the engine for the block."""
        opened = self.take()
        try:
            yield opened.engine
        finally:
            self.leave()

    def take(self) -> OpenEngine:
        """Open the engine until `leave`."""
        if self._process != os.getpid():  # a child made by fork has nothing open
            self._process = os.getpid()
            self._lock, self._opened, self._users = threading.Lock(), None, 0
        with self._lock:
            if self._opened is None:
                self._opened = OpenEngine(self._make())
                threading.Thread(
                    target=self._maintain, args=(self._opened,), name="pump-queue-upkeep", daemon=True
                ).start()
            self._users += 1
            return self._opened

    def leave(self) -> None:
        """End one `take`; the last one closes the engine."""
        with self._lock:
            self._users -= 1
            if self._users or self._opened is None:
                return
            opened, self._opened = self._opened, None
            opened.closing.set()
        opened.engine.close()

    def _maintain(self, opened: OpenEngine) -> None:
        """Remove old messages, from time to time."""
        rest = 1.0
        while not self._clock.wait(opened.closing, rest):
            try:
                rest = min(max(opened.engine.maintain(), SHORTEST_REST), LONGEST_REST)
            except Exception as error:  # nothing is lost: the next round may succeed
                if opened.closing.is_set():
                    return
                rest = LONGEST_REST
                log.warning("old messages of the queue could not be removed: %s", error)
