"""When a queue has changed, wakes one of the consumers of this process that wait for a channel's messages."""

import threading
from collections import deque
from typing import Final

from pump.clock import Signal


class WakeOne:
    """Consumers that look for messages, in the order in which they came. For use from any thread.

    A consumer enters before it looks. So no notification is lost: one that comes while the consumer looks makes this
    consumer, or another one, look again.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._line: Final[deque[Signal]] = deque()

    def enter(self, woken: Signal) -> None:
        """Join the end of the line; a consumer that was woken has to enter again."""
        with self._lock:
            if woken not in self._line:
                self._line.append(woken)

    def wake(self) -> None:
        """Wake the consumer that came first: there may be a message."""
        with self._lock:
            woken = self._line.popleft() if self._line else None
        if woken is not None:
            woken.set()

    def leave(self, woken: Signal, *, found: bool) -> None:
        """Leave the line. Wakes the next consumer if this one found something (there may be more) or was just woken."""
        with self._lock:
            was_woken = woken not in self._line
            if not was_woken:
                self._line.remove(woken)
        if was_woken or found:
            self.wake()
