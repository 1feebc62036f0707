"""Tasks that wait for the same messages: who looks next, and when. It never asks the queue itself."""

from bisect import insort
from collections.abc import Callable
from itertools import count
from math import inf
from operator import itemgetter
from typing import Final

from pump.clock import Clock, Signal

POLL_SECONDS: Final = 1.0
"""How often somebody looks even without a notification."""
SOONEST_SECONDS: Final = 0.005


class WaitLine:
    """Tasks that wait for the same, first come, first served. For one loop.

    Each notification wakes one task, not all. A task that was woken looks, and reports what it found with `found`,
    `missed`, or, if it could not look, `wake`.
    """

    def __init__(self, clock: Clock, on_loop: Callable[[Callable[[], None]], None]) -> None:
        self.users = 0
        """How many tasks are here, waiting or looking."""
        self._clock: Final = clock
        self._on_loop: Final = on_loop
        self._tickets: Final = count()
        self._waiting: Final[list[tuple[int, Signal]]] = []
        self._missed_wake = False
        """A notification came while everybody was looking, perhaps too early: a task that finds nothing looks again."""
        self._look_at = inf
        self._cancel_alarm: Callable[[], None] = lambda: None

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits here: a task that comes now may look at once."""
        return not self._waiting

    def ticket(self) -> int:
        """A place in the line, which its task keeps however often it looks in vain."""
        return next(self._tickets)

    def wake(self) -> None:
        """Something may have become ready: the first task looks."""
        if self._waiting:
            self._waiting.pop(0)[1].set()
        else:
            self._missed_wake = True

    def found(self) -> None:
        """A task got something; there may be more, so the next one looks."""
        if self._waiting:
            self.wake()

    def missed(self, due_in: float | None) -> bool:
        """A task found nothing, and nothing is due for `due_in` seconds; returns whether it must look again at once."""
        again, self._missed_wake = self._missed_wake, False
        if not again:
            delay = POLL_SECONDS if due_in is None else min(POLL_SECONDS, max(due_in, SOONEST_SECONDS))
            self._look_in(delay)
        return again

    async def wait_turn(self, ticket: int, until: float) -> bool:
        """Wait to be woken; False when the time is over."""
        signal = Signal()
        insort(self._waiting, (ticket, signal), key=itemgetter(0))
        self._look_in(POLL_SECONDS)
        woken = False
        try:
            woken = await self._clock.wait_async(signal, until - self._clock.monotonic())
        finally:
            if signal.is_set() and not woken:
                self.wake()  # it was woken too late: another looks
            elif not woken:
                self._waiting.remove((ticket, signal))
        return woken

    def dismiss(self) -> None:
        """Nobody is to wait any longer."""
        while self._waiting:
            self.wake()
        self.end()

    def end(self) -> None:
        """The last task has left."""
        self._look_at = inf
        self._cancel_alarm()

    def _look_in(self, delay: float) -> None:
        """Let a task look after the delay, or before."""
        due = self._clock.monotonic() + delay
        if due < self._look_at:
            self._cancel_alarm()
            self._look_at = due
            self._cancel_alarm = self._clock.alarm(delay, lambda: self._on_loop(self._look))

    def _look(self) -> None:
        if self._clock.monotonic() < self._look_at:
            return  # the alarm was put off meanwhile
        self._look_at = inf
        if self._waiting:
            self.wake()
            self._look_in(POLL_SECONDS)
