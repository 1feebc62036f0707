"""Deliver the message again later when its handler fails."""

from pump.attribute import Errors, OnError
from pump.checks import refuse, wrong_duration
from pump.duration import Duration
from pump.errors import DeferMessageAction


class DeferMessageOnError(OnError):
    """Any error defers the message by `delay`; without one, by the subscription's requeue back-off."""

    declares = frozenset({DeferMessageAction})

    def __init__(self, delay: Duration | None = None, *, only: Errors = Exception, but: Errors = ()) -> None:
        super().__init__(only=only, but=but)
        refuse("DeferMessageOnError", delay="" if delay is None else wrong_duration(delay))
        self.delay = delay

    def decide(self, error: Exception) -> DeferMessageAction:
        """Defer it."""
        return DeferMessageAction(self.delay, type(error).__name__)
