"""Spares a server that is not there: after several failures in a row nothing is asked of it for a while."""

import threading
from collections.abc import Callable
from typing import Final

from pump.clock import Clock
from pump.queue.errors import QueueUnavailable


class CircuitOpen(QueueUnavailable):
    """The server has failed so often just now that it was not asked."""


class Circuit:
    """Opens after so many failures in a row, and after so many seconds lets one try through. For any thread."""

    def __init__(self, clock: Clock, *, failures: int, open_seconds: float) -> None:
        self._clock: Final = clock
        self._most: Final = failures
        self._seconds: Final = open_seconds
        self._lock: Final = threading.Lock()
        self._failures = 0
        self._closed_at = 0.0
        self._trying = False

    def enter(self) -> Callable[[bool | None], None]:
        """Ask whether a try may begin. CircuitOpen if not; else what has to be told whether it succeeded, or None."""
        with self._lock:
            if self._failures < self._most:
                return self._ended
            left = self._closed_at - self._clock.monotonic()
            if left > 0 or self._trying:
                raise CircuitOpen(f"not asked, after {self._failures} failures in a row; again in {max(left, 0):.0f} s")
            self._trying = True
            return self._trial_ended

    def _ended(self, succeeded: bool | None) -> None:  # noqa: FBT001 - a callback, told one thing
        with self._lock:
            if succeeded is not None:
                self._failures = 0 if succeeded else self._failures + 1
            if succeeded is False and self._failures == self._most:
                self._closed_at = self._clock.monotonic() + self._seconds

    def _trial_ended(self, succeeded: bool | None) -> None:  # noqa: FBT001 - a callback, told one thing
        with self._lock:
            self._trying = False
            if succeeded:
                self._failures = 0
            elif succeeded is False:
                self._closed_at = self._clock.monotonic() + self._seconds
