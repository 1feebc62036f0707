"""The engine that all consumers and producers of a transport share, and what they do with it together."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.batching.thread_batcher import Gathering
from pump.queue.batching.wake_one import Turns
from pump.queue.engine import Engine
from pump.queue.vocabulary import Push, Pushed, Settled, Settlement
from pump.telemetry import log

SHORTEST_REST: Final = 0.02
LONGEST_REST: Final = 60.0


class OpenEngine:
    """An engine for as long as it is open. What is small and comes from several threads goes in one call."""

    def __init__(self, engine: Engine) -> None:
        self.engine: Final = engine
        self.closing: Final = Signal()
        self._pushes: Final = Gathering[Push, Pushed](self._push, lambda push: len(push.payload))
        self._settlements: Final = Gathering[Settlement, Settled](self._settle)
        self._lock: Final = threading.Lock()
        self._turns: Final[dict[tuple[str, str], Turns]] = {}

    def push(self, items: Sequence[Push]) -> Sequence[Pushed]:
        """As the engine's."""
        return self._pushes.do(items)

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[Settled]:
        """As the engine's."""
        return self._settlements.do(settlements)

    def _push(self, items: Sequence[Push]) -> Sequence[Pushed]:
        return self.engine.push(items)

    def _settle(self, settlements: Sequence[Settlement]) -> Sequence[Settled]:
        return self.engine.settle(settlements)

    def turns(self, topic: str, channel: str) -> Turns:
        """Where all consumers of a channel stand in line for the topic's bell."""
        with self._lock:
            turns = self._turns.get((topic, channel))
            if turns is None:
                turns = Turns()
                self.engine.listen(topic, turns.ring)
                self._turns[topic, channel] = turns
            return turns


class SharedEngine:
    """One engine for all consumers and producers of a transport, open for as long as there is one of them."""

    def __init__(self, make: Callable[[], Engine], clock: Clock) -> None:
        self._make: Final = make
        self._clock: Final = clock
        self._lock = threading.Lock()
        self._opened: OpenEngine | None = None
        self._users = 0
        self._process = 0

    @contextmanager
    def use(self) -> Iterator[Engine]:
        """The engine, for a while."""
        opened = self.take()
        try:
            yield opened.engine
        finally:
            self.leave()

    def take(self) -> OpenEngine:
        """The engine, until `leave`."""
        if self._process != os.getpid():  # a child made by fork has nothing open
            self._process = os.getpid()
            self._lock, self._opened, self._users = threading.Lock(), None, 0
        with self._lock:
            if self._opened is None:
                self._opened = OpenEngine(self._make())
                threading.Thread(
                    target=self._maintain, args=(self._opened,), name="pump-queue-keeper", daemon=True
                ).start()
            self._users += 1
            return self._opened

    def leave(self) -> None:
        """It is not needed by one who took it."""
        with self._lock:
            self._users -= 1
            if self._users or self._opened is None:
                return
            opened, self._opened = self._opened, None
            opened.closing.set()
        opened.engine.close()

    def _maintain(self, opened: OpenEngine) -> None:
        """Remove what need not be kept, now and then."""
        rest = 1.0
        while not self._clock.wait(opened.closing, rest):
            try:
                rest = min(max(opened.engine.maintain(), SHORTEST_REST), LONGEST_REST)
            except Exception as error:  # another round may do better; nothing is lost by it
                if opened.closing.is_set():
                    return
                rest = LONGEST_REST
                log.warning("the queue could not be tidied: %s", error)
