"""Whose turn it is to look when a bell rings: one of all who wait for a channel's messages in this process."""

import threading
from collections import deque
from typing import Final

from pump.clock import Signal


class Turns:
    """Those who look for messages, in the order in which they came. From any thread.

    Whoever enters does so before he looks, so that a ring in between is not lost: it makes him, or another, look again.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._line: Final[deque[Signal]] = deque()

    def enter(self, woken: Signal) -> None:
        """Stand in line; once rung for, one has to enter again."""
        with self._lock:
            if woken not in self._line:
                self._line.append(woken)

    def ring(self) -> None:
        """There may be something: whoever came first looks."""
        with self._lock:
            woken = self._line.popleft() if self._line else None
        if woken is not None:
            woken.set()

    def leave(self, woken: Signal, *, found: bool) -> None:
        """Look no longer. Where something was found there may be more, and a ring that is not heeded is passed on."""
        with self._lock:
            heard = woken not in self._line
            if not heard:
                self._line.remove(woken)
        if heard or found:
            self.ring()
