"""Time for tests in one thread: a clock that moves by itself, and an event loop that uses it."""

import asyncio
import selectors
import threading
from collections.abc import Awaitable
from typing import Final, TypeVar

from pump.clock import ManualClock, Signal
from pump.context import find_context
from pump.errors import PumpError

Result = TypeVar("Result")

REAL_WAIT: Final = 0.05
"""How many seconds of real time an async handler may wait for a socket or a thread before the clock moves on."""


class SelfMovingClock(ManualClock):
    """A clock that moves when everything waits: at once in a blocking wait, else when nothing more can happen.

    Each alarm on the way rings at its own time. If an alarm ends the wait, the clock moves no further.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dues: dict[object, float] = {}
        self._handling = 0
        self._handlers_waiting = 0

    @property
    def busy(self) -> bool:
        """Whether an awaiting handler waits for something other than this clock."""
        return self._handling > self._handlers_waiting

    async def handling(self, handled: Awaitable[Result]) -> Result:
        """Await an awaiting handler, and note that it runs."""
        self._handling += 1
        try:
            return await handled
        finally:
            self._handling -= 1

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Move the clock until the signal is set (True) or the time is over (False)."""
        self.waits.append(timeout)
        if timeout is None:
            woken = threading.Event()  # only another thread can set it
            signal.add_callback(woken.set)
            woken.wait()
            return True
        deadline = self._now + timeout
        while not signal.is_set() and self._now < deadline:
            due = self._next_alarm()
            self.advance((deadline if due is None else min(due, deadline)) - self._now)
        return signal.is_set()

    async def wait_async(self, signal: Signal, timeout: float | None) -> bool:
        """The same, awaited: other tasks run first."""
        inside = find_context() is not None
        key = object()
        self._handlers_waiting += inside
        if timeout is not None:
            self._dues[key] = self._now + timeout
        try:
            return await super().wait_async(signal, timeout)
        finally:
            self._dues.pop(key, None)
            self._handlers_waiting -= inside

    def jump(self, timeout: float | None) -> bool:
        """Move to the next time at which something wakes, or by the timeout; False if there is no such time.

        Alarms alone do not count, unless a handler waits: then an alarm may end its wait.
        """
        dues = [*self._dues.values()]
        if timeout is not None:
            dues.append(self._now + timeout)
        alarm = self._next_alarm() if self.busy else None
        if alarm is not None:
            dues.append(alarm)
        if not dues:
            return False
        self.advance(max(0.0, min(dues) - self._now))
        return True

    def _next_alarm(self) -> float | None:
        with self._agenda.changed:
            return self._agenda.first_due()


class SelfMovingLoop(asyncio.SelectorEventLoop):
    """A loop that uses a SelfMovingClock: `asyncio.sleep` and `asyncio.timeout` take no real time."""

    def __init__(self, clock: SelfMovingClock) -> None:
        self._selector_of_time: Final = _Selector(clock)
        self._time: Final = clock.monotonic
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        """The clock's time."""
        return self._time()

    def stand_still(self) -> None:
        """Stop moving the clock: from now on waits take real time."""
        self._selector_of_time.moves = False


class _Selector(selectors.DefaultSelector):
    """The loop waits here when nothing is ready: this moves the clock instead of waiting."""

    def __init__(self, clock: SelfMovingClock) -> None:
        super().__init__()
        self.moves = True
        self._clock: Final = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if not self.moves:
            return super().select(None)
        outside = len(self.get_map()) > 1 or threading.active_count() > 1  # one is the loop's own
        if self._clock.busy and outside:
            events = super().select(REAL_WAIT)
        if events or self._clock.jump(timeout):
            return events
        if not outside:
            raise PumpError("a handler waits for something that nothing here can bring about")
        return super().select(None)
