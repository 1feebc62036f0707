"""Those who wait for messages of one kind: who looks next, and when. It never asks the queue itself."""

from bisect import insort
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final, NamedTuple

from pump.clock import Clock, Signal

POLL_SECONDS: Final = 1.0
"""How often somebody looks even if no bell rings."""
SOONEST_SECONDS: Final = 0.005


class _Parked(NamedTuple):
    ticket: int
    signal: Signal


class Line:
    """All who wait for the same, first come, first served. One is woken for a message, not all. For one loop.

    Whoever was woken looks, and says what came of it: `found`, `missed`, or `ring` where he could not look.
    """

    def __init__(self, clock: Clock, soon: Callable[[Callable[[], None]], None]) -> None:
        self.users = 0
        """How many are here, parked or looking."""
        self._clock: Final = clock
        self._soon: Final = soon
        self._tickets: Final = count()
        self._parked: Final[list[_Parked]] = []
        self._owed = False
        """A bell rang when everybody was looking already, perhaps too early: whoever finds nothing looks once more."""
        self._look_at = inf
        self._cancel_alarm: Callable[[], None] = lambda: None

    @property
    def is_empty(self) -> bool:
        """Whether nobody is parked here: who comes now may look at once."""
        return not self._parked

    def ticket(self) -> int:
        """A place in the line, which its holder keeps however often he looks in vain."""
        return next(self._tickets)

    def ring(self) -> None:
        """Something may have become ready: the first one looks."""
        if self._parked:
            self._parked.pop(0).signal.set()
        else:
            self._owed = True

    def found(self) -> None:
        """Somebody got something; there may be more, so that the next one looks."""
        if self._parked:
            self.ring()

    def missed(self, due_in: float | None) -> bool:
        """Somebody found nothing, and nothing will be due before that time; whether he has to look again at once."""
        owed, self._owed = self._owed, False
        if not owed:
            delay = POLL_SECONDS if due_in is None else min(POLL_SECONDS, max(due_in, SOONEST_SECONDS))
            self._look_in(delay)
        return owed

    async def park(self, ticket: int, until: float) -> bool:
        """Wait to be woken; False when the time is over."""
        parked = _Parked(ticket, Signal())
        insort(self._parked, parked, key=lambda each: each.ticket)
        self._look_in(POLL_SECONDS)
        woken = False
        try:
            woken = await self._clock.wait_async(parked.signal, until - self._clock.monotonic())
        finally:
            if not woken:
                self._leave(parked)
        return woken

    def dismiss(self) -> None:
        """Nobody is to wait any longer."""
        while self._parked:
            self.ring()
        self.end()

    def end(self) -> None:
        """Nobody is here any more."""
        self._look_at = inf
        self._cancel_alarm()

    def _leave(self, parked: _Parked) -> None:
        if parked.signal.is_set():
            self.ring()  # the wake-up came too late for this one
        else:
            self._parked.remove(parked)

    def _look_in(self, delay: float) -> None:
        """Somebody looks after the delay, or before."""
        due = self._clock.monotonic() + delay
        if due < self._look_at:
            self._cancel_alarm()
            self._look_at = due
            self._cancel_alarm = self._clock.alarm(delay, lambda: self._soon(self._look))

    def _look(self) -> None:
        if self._clock.monotonic() < self._look_at:
            return  # the alarm was put off meanwhile
        self._look_at = inf
        if self._parked:
            self.ring()
            self._look_in(POLL_SECONDS)
