"""Decides which of the tasks that wait for the same messages looks next, and when. It never asks the queue itself."""

from bisect import insort
from collections.abc import Callable
from itertools import count
from math import inf
from operator import itemgetter
from typing import Final

from pump.clock import Clock, Signal

POLL_SECONDS: Final = 1.0
"""One task looks this often even without a notification."""
SOONEST_SECONDS: Final = 0.005


class WaitLine:
    """Tasks that wait for the same messages; first come, first served. For one loop.

    Each notification wakes one task, not all. A woken task looks for messages, and reports the result with `found` or
    `missed`; if it was cancelled, with `wake`.
    """

    def __init__(self, clock: Clock, on_loop: Callable[[Callable[[], None]], None]) -> None:
        self.users = 0
        """The number of tasks in this line, waiting or looking."""
        self._clock: Final = clock
        self._on_loop: Final = on_loop
        self._tickets: Final = count()
        self._waiting: Final[list[tuple[int, Signal]]] = []
        self._missed_wake = False
        """A notification came while no task was waiting: a task that is looking and finds nothing looks again."""
        self._look_at = inf
        self._cancel_alarm: Callable[[], None] = lambda: None

    @property
    def is_empty(self) -> bool:
        """Whether no task waits: a new task may then look at once."""
        return not self._waiting

    def ticket(self) -> int:
        """A place in the line; a task keeps its place when it looks and finds nothing."""
        return next(self._tickets)

    def wake(self) -> None:
        """Wake the first task: something may have become ready."""
        if self._waiting:
            self._waiting.pop(0)[1].set()
        else:
            self._missed_wake = True

    def found(self) -> None:
        """A task got a message: wake the next task, as there may be more."""
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
                self.wake()  # this task was woken too late: another one looks
            elif not woken:
                self._waiting.remove((ticket, signal))
        return woken

    def dismiss(self) -> None:
        """Make every task stop waiting."""
        while self._waiting:
            self.wake()
        self.end()

    def end(self) -> None:
        """Clean up after the last task has left."""
        self._look_at = inf
        self._cancel_alarm()

    def _look_in(self, delay: float) -> None:
        """Make a task look after this delay at the latest."""
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
