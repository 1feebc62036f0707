"""Spares a server that does not answer: after several failures in a row, nothing is sent to it for a while."""

import threading
from typing import Final, Protocol

from pump.clock import Clock
from pump.queue.errors import QueueUnavailable


class CircuitOpen(QueueUnavailable):
    """The server has failed so often that no request was sent to it."""


class EndTry(Protocol):
    """Reports how a try ended; None where that is not known."""

    def __call__(self, *, succeeded: bool | None) -> None: ...  # noqa: D102 - as the class says


class ServerCircuit:
    """Opens after so many failures in a row; after so many seconds it lets one try through. For any thread."""

    def __init__(self, clock: Clock, *, failures: int, open_seconds: float) -> None:
        self._clock: Final = clock
        self._most_failures: Final = failures
        self._open_seconds: Final = open_seconds
        self._lock: Final = threading.Lock()
        self._failures = 0
        self._closed_at = 0.0
        self._trial_under_way = False

    def begin_try(self) -> EndTry:
        """Raise CircuitOpen where no try may begin; else return the function to call when the try has ended."""
        with self._lock:
            if self._failures < self._most_failures:
                return self._end_try
            left = self._closed_at - self._clock.monotonic()
            if left > 0 or self._trial_under_way:
                raise CircuitOpen(f"not asked, after {self._failures} failures in a row; again in {max(left, 0):.0f} s")
            self._trial_under_way = True
            return self._end_trial

    def _end_try(self, *, succeeded: bool | None) -> None:
        with self._lock:
            if succeeded is not None:
                self._failures = 0 if succeeded else self._failures + 1
            if succeeded is False and self._failures == self._most_failures:
                self._closed_at = self._clock.monotonic() + self._open_seconds

    def _end_trial(self, *, succeeded: bool | None) -> None:
        with self._lock:
            self._trial_under_way = False
            if succeeded:
                self._failures = 0
            elif succeeded is False:
                self._closed_at = self._clock.monotonic() + self._open_seconds
