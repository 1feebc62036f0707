"""Which consumer looks when a channel's queue has changed: one of all that wait for its messages in this process."""

import threading
from collections import deque
from typing import Final

from pump.clock import Signal


class WakeOne:
    """Consumers that look for messages, in the order in which they came. From any thread.

    A consumer enters before it looks, so that no notification in between is lost: it makes this consumer, or another,
    look again.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._line: Final[deque[Signal]] = deque()

    def enter(self, woken: Signal) -> None:
        """Stand in line; a consumer that was woken has to enter again."""
        with self._lock:
            if woken not in self._line:
                self._line.append(woken)

    def wake(self) -> None:
        """There may be a message: the consumer that came first looks."""
        with self._lock:
            woken = self._line.popleft() if self._line else None
        if woken is not None:
            woken.set()

    def leave(self, woken: Signal, *, found: bool) -> None:
        """Look no longer. Wakes the next one if something was found, as there may be more, or if it was just woken."""
        with self._lock:
            was_woken = woken not in self._line
            if not was_woken:
                self._line.remove(woken)
        if was_woken or found:
            self.wake()
