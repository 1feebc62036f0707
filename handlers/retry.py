"""Run a handler again, within one delivery, when it fails."""

import logging
import random
from collections.abc import Callable

from pump.attribute import Attribute, Errors, Rest, Steps, consists_of, is_decision
from pump.checks import refuse, wrong_duration, wrong_errors, wrong_number
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError

_MOST_DOUBLINGS = 64


class Retry(Attribute):
    """Runs the handler up to `attempts` times. The first wait is `first`, each next one twice as long, up to `longest`.

    Each wait is shortened by a random part of up to `jitter`. Errors of other types than `on`, decisions and
    cancellation are never retried, nor is a handler that has settled its message itself. When the pump stops, the wait
    ends: the message goes back, and no attempt is counted. The subscription's `max_attempts` counts deliveries, and
    each delivery is retried: 3 × 3 are nine runs.
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        first: Duration = 0.1,
        longest: Duration = 10.0,
        jitter: float = 0.25,
        on: Errors = Exception,
        chance: Callable[[], float] = random.random,
    ) -> None:
        refuse(
            "Retry",
            attempts=wrong_number(attempts, 1),
            first=wrong_duration(first),
            longest=wrong_duration(longest),
            on=wrong_errors(on),
        )
        self.attempts = attempts
        self.first = seconds(first)
        self.longest = seconds(longest)
        self.jitter = jitter
        self.on = on
        self._chance = chance
        if not 0 <= self.first <= self.longest:
            raise ConfigurationError(f"Retry: first={first} must lie between 0 and longest={longest}")
        if not 0 <= jitter <= 1:
            raise ConfigurationError(f"Retry: jitter must lie between 0 and 1, not {jitter}")

    def wait_after(self, attempt: int) -> float:
        """How many seconds to wait after a failed attempt; the first attempt is 1."""
        longest: float = min(self.longest, self.first * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))
        return longest * (1 - self.jitter * self._chance())

    def acts_on(self) -> Errors:
        """The errors of the types `on`."""
        return self.on

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the rest; run it again when it fails."""
        for attempt in range(1, self.attempts):
            try:
                return (yield from rest(request))
            except Exception as error:
                if is_decision(error) or not consists_of(error, self.on):
                    raise
                delay = self.wait_after(attempt)
                text = f"Handler's attempt {attempt} of {self.attempts} failed, next in {delay:.3g} s"
                rest.scope.log(logging.INFO, text, error=error)
                if (yield from rest.sleep(delay)) or is_decision(error):  # meanwhile settled, or the handler is to end
                    raise
        return (yield from rest(request))
