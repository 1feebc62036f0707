"""Protects a server that does not answer: after several failures in a row, nothing is sent to it for a while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pump.clock import Clock
from pump.queue.errors import QueueUnavailable

FAILURES: Final = 5
OPEN_SECONDS: Final = 60.0


class CircuitOpen(QueueUnavailable):
    """The server has failed so often that no request was sent to it."""


class ServerCircuit:
    """Opens after FAILURES in a row; after OPEN_SECONDS it lets one try through. For use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._failures = 0
        self._closed_at = 0.0
        self._trial_under_way = False

    @contextmanager
    def one_try(self) -> Iterator[None]:
        """Raise CircuitOpen if no try may begin. Only QueueUnavailable in the block is a failure, not other errors."""
        is_trial, failed = self._begin(), None
        try:
            yield
            failed = False
        except QueueUnavailable:
            failed = True
            raise
        finally:
            with self._lock:
                self._trial_under_way &= not is_trial
                if failed is not None:
                    self._failures = self._failures + (not is_trial) if failed else 0
                if failed and (is_trial or self._failures == FAILURES):
                    self._closed_at = self._clock.monotonic() + OPEN_SECONDS

    def _begin(self) -> bool:
        """Whether this is the one try that an open circuit lets through; CircuitOpen if no try may begin."""
        with self._lock:
            if self._failures < FAILURES:
                return False
            left = self._closed_at - self._clock.monotonic()
            if left > 0 or self._trial_under_way:
                raise CircuitOpen(
                    f"not asked after {self._failures} failures in a row; next try in {max(left, 0):.0f} s"
                )
            self._trial_under_way = True
            return True
