"""Limit how many messages are handled in a given time."""

import threading
from typing import Final

from pump.attribute import Attribute, Rest, Scope, Steps
from pump.checks import refuse, wrong_amount, wrong_duration
from pump.clock import Clock
from pump.duration import Duration, seconds
from pump.errors import DontAckAction

LONGEST_WAIT: Final = 5.0
"""The longest time that a message waits here for its turn, in seconds; for a longer wait it stays with the broker."""


class RateLimit(Attribute):
    """Lets `rate` requests through every `per` seconds, and up to `burst` (by default `rate`) of them at once.

    A message that comes too early waits for its turn in this process: put a Timeout beneath this attribute, not above.
    If its turn is more than 5 s away, or the pump stops, the message is not acknowledged, counts no attempt, and comes
    again. The performers of one channel and handler share the limit; several processes do not.
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
        return _Bucket(self, scope.clock)


class _Bucket(Attribute):
    """Tokens that come at a steady rate, up to a limit. A token may be taken before it comes. Threads may share it."""

    def __init__(self, options: RateLimit, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._per_second = options.rate / options.per
        self._most = options.burst
        self._tokens = options.burst
        self._clock = clock
        self._filled = clock.monotonic()

    def around(self, request: object, rest: Rest) -> Steps:
        wait = self._take()
        if wait is None:
            raise DontAckAction("rate limit", until=self._is_near)
        if wait and (yield from rest.sleep(wait)):
            self._put_back()
            raise DontAckAction("rate limit", until=self._is_near)
        return (yield from rest(request))

    def _take(self) -> float | None:
        """Take a token; returns the seconds until it comes. If they are too many, takes none and returns None."""
        with self._lock:
            wait = self._wait()
            if wait > LONGEST_WAIT:
                return None
            self._tokens -= 1
            return wait

    def _put_back(self) -> None:
        with self._lock:
            self._tokens += 1

    def _is_near(self) -> bool:
        with self._lock:
            return self._wait() <= LONGEST_WAIT / 2

    def _wait(self) -> float:
        now = self._clock.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        return max(0.0, (1 - self._tokens) / self._per_second)
