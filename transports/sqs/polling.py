"""Receives on a separate thread, so that a stop need not wait for a request that waits at the broker."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pump.clock import Clock, Signal
from pump.errors import PumpError, TransportError
from pump.message import Message

LATE_SECONDS: Final = 0.5
"""How long messages wait here for a receive to take them, before they are given back."""
CLOSE_SECONDS: Final = 1.25
"""How long a close waits for the request that is under way."""
SHORT_POLL_SECONDS: Final = 0.1
"""How long to wait after a request that brought nothing and did not wait itself."""


class SqsPoller:
    """Makes one request after another while somebody receives. One thread takes; any thread interrupts."""

    def __init__(
        self,
        fetch: Callable[[int], Sequence[Message]],
        give_back: Callable[[Sequence[Message]], None],
        clock: Clock,
        *,
        pause_seconds: float,
    ) -> None:
        """`pause_seconds` is how long to wait after a request that brought nothing."""
        self._fetch: Final = fetch
        self._give_back: Final = give_back
        self._clock: Final = clock
        self._pause_seconds: Final = pause_seconds
        self._lock: Final = threading.Lock()
        self._arrived: Final[deque[Message]] = deque()
        self._failure: BaseException | None = None
        self._limit = 1
        self._interrupted = False
        self._closed = False
        self._demand: Final = Signal()
        self._changed: Final = Signal()
        self._emptied: Final = Signal()
        """Whether everything that arrived was taken."""
        self._closing: Final = Signal()
        self._ended: Final = Signal()
        self._thread: threading.Thread | None = None

    def take(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that have arrived, or the first to arrive in time, or none."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._changed.clear()
            taken = self._take(limit)
            if taken is not None:
                return taken
            left = deadline - self._clock.monotonic()
            if left <= 0 or not self._clock.wait(self._changed, left):
                return self._take(limit) or ()

    def interrupt(self) -> None:
        """Make the current take, or else the next one, return early."""
        with self._lock:
            self._interrupted = True
        self._changed.set()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Make no further request, and wait this long for the last one. Its messages are given back, then or later."""
        with self._lock:
            self._closed = True
            thread = self._thread
        for signal in (self._closing, self._demand, self._changed, self._emptied):
            signal.set()
        if thread is not None:
            self._clock.wait(self._ended, seconds)

    def _take(self, limit: int) -> Sequence[Message] | None:
        """The messages to return now; None to wait, and then a request is under way."""
        with self._lock:
            if self._closed:
                raise TransportError("sqs: the consumer is closed")
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._arrived:
                self._interrupted = False
                taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
                if not self._arrived:
                    self._emptied.set()
                return taken
            if self._interrupted:
                self._interrupted = False
                return ()
            self._limit = limit
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pump-sqs-receive", daemon=True)
                self._thread.start()
        self._demand.set()
        return None

    def _run(self) -> None:
        try:
            while not self._closed:
                self._clock.wait(self._demand, None)
                self._demand.clear()
                if not self._closed:
                    try:
                        self._poll()
                    except Exception as error:  # the receive raises it
                        with self._lock:
                            self._failure = error
                        self._changed.set()
        finally:
            self._ended.set()

    def _poll(self) -> None:
        messages = self._fetch(self._limit)
        with self._lock:
            if not self._closed:
                self._emptied.clear()
            self._arrived.extend(messages)
        self._changed.set()
        if messages:
            self._await_takers()
        elif self._pause_seconds:
            self._clock.wait(self._closing, self._pause_seconds)

    def _await_takers(self) -> None:
        """Return when all messages are taken; those that nobody takes in time are given back."""
        self._clock.wait(self._emptied, LATE_SECONDS)
        with self._lock:
            left = list(self._arrived)
            self._arrived.clear()
        if left:
            with suppress(PumpError):  # they come again when their leases end
                self._give_back(left)
