"""How many messages of one channel were unacceptable. The pumps of the channel share the count, and so the limit."""

import threading
from typing import Final

from pump.clock import Clock, Signal
from pump.duration import seconds
from pump.subscription import Subscription


class UnacceptableCount:
    """Counts within the window, where there is one; `reached` is set once the subscription's limit is reached."""

    def __init__(self, rules: Subscription, clock: Clock) -> None:
        self.number = 0
        """How many it has counted, within the window."""
        self.reached: Final = Signal()
        self._limit: Final = rules.unacceptable_limit
        self._window: Final = seconds(rules.unacceptable_window)
        self._clock: Final = clock
        self._began = clock.monotonic()
        self._lock: Final = threading.Lock()

    def add(self) -> None:
        """One more message was unacceptable."""
        with self._lock:
            now = self._clock.monotonic()
            if self._window and now - self._began > self._window:
                self.number, self._began = 0, now
            self.number += 1
            reached = 0 < self._limit <= self.number
        if reached:
            self.reached.set()
