"""Lets a suspect be handled alone: no other message of this process is in hand meanwhile."""

import threading
from collections.abc import Callable
from typing import Final

from pump.clock import Clock, SystemClock

CLAIM_SECONDS: Final = 1.0
"""How long a channel that wants to be alone keeps the others out, if it does not ask again."""
PATIENCE_SECONDS: Final = 30.0
"""After this long without success the others go on, for the same time; then it tries again."""

_clock: Final = SystemClock()


class Gate:
    """The gate of one process. While it is open, each message costs only one look at `closed`."""

    def __init__(self, in_hand: Callable[[], int], clock: Clock = _clock) -> None:
        self.closed = False
        """Whether a channel wants to be alone, or is alone."""
        self._in_hand: Final = in_hand
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._alone: object | None = None
        """Which channel wants to be alone."""
        self._admitted = False
        self._since = 0.0
        self._until = 0.0
        self._rests_until = 0.0

    def admit(self, channel: object) -> bool:
        """Whether this channel may begin a message that has to be alone. If not yet, the gate keeps the others out."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._rests_until or (self.closed and self._keeps_out(channel, now)):
                return False
            if self._alone is not channel:
                self._alone, self._admitted, self._since = channel, False, now
            if now - self._since > PATIENCE_SECONDS:
                self._open()
                self._rests_until = now + PATIENCE_SECONDS
                return False
            self.closed, self._until = True, now + CLAIM_SECONDS
            self._admitted = self._in_hand() == 0
            return self._admitted

    def keeps_out(self, channel: object) -> bool:
        """Whether this channel may begin no message now; asked only while the gate is closed."""
        with self._lock:
            return self._keeps_out(channel, self._clock.monotonic())

    def ended(self) -> None:
        """A message is no longer in hand: if it was the one handled alone, the others go on."""
        with self._lock:
            if self._admitted and self._in_hand() == 0:
                self._open()

    def _keeps_out(self, channel: object, now: float) -> bool:
        if self.closed and now >= self._until and not (self._admitted and self._in_hand()):
            self._open()
        return self.closed and self._alone is not channel

    def _open(self) -> None:
        self.closed, self._admitted, self._alone = False, False, None


class _OpenGate(Gate):
    """The gate where no slots are noted: a suspect is then alone only in its own channel."""

    def admit(self, channel: object) -> bool:
        return True


OPEN_GATE: Final = _OpenGate(lambda: 0)
