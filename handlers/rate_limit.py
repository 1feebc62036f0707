"""Limit how many messages are handled in a given time."""

import threading

from pump.attribute import Attribute, Rest, Scope, Steps
from pump.checks import refuse, wrong_amount, wrong_duration
from pump.duration import Duration, seconds
from pump.errors import DontAckAction


class RateLimit(Attribute):
    """Lets `rate` requests through every `per` seconds, and up to `burst` (by default `rate`) of them at once.

    A message that comes too early is not acknowledged, counts no attempt, and comes again. The limit is shared by the
    performers of one channel and handler, not by several processes.
    """

    declares = frozenset({DontAckAction})

    def __init__(self, rate: float, *, per: Duration = 1.0, burst: float | None = None) -> None:
        refuse(
            "RateLimit",
            rate=wrong_amount(rate),
            per=wrong_duration(per, zero=False),
            burst="" if burst is None else wrong_amount(burst, 1),
        )
        self.rate = rate
        self.per = seconds(per)
        self.burst = max(1.0, rate) if burst is None else burst

    def prepare(self, scope: Scope) -> Attribute:
        """A full bucket for one pipeline."""
        return _Bucket(self.rate / self.per, self.burst, scope.clock.monotonic())


class _Bucket(Attribute):
    """Tokens that come at a steady rate, up to a limit. Threads may share it."""

    def __init__(self, per_second: float, most: float, now: float) -> None:
        self._lock = threading.Lock()
        self._per_second = per_second
        self._most = most
        self._tokens = most
        self._filled = now

    def around(self, request: object, rest: Rest) -> Steps:
        if not self._take(rest.clock.monotonic()):
            raise DontAckAction("rate limit")
        return (yield from rest(request))

    def _take(self, now: float) -> bool:
        with self._lock:
            passed = max(0.0, now - self._filled)  # another thread may have read the clock later
            self._tokens = min(self._most, self._tokens + passed * self._per_second)
            self._filled += passed
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
