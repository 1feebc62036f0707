"""Deliver the message again later when its handler fails."""

from pump.attribute import Errors, OnError
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, DeferMessageAction


class DeferMessageOnError(OnError):
    """Any error defers the message by `delay`; without one, by the subscription's requeue back-off."""

    declares = frozenset({DeferMessageAction})

    def __init__(self, delay: Duration | None = None, *, only: Errors = Exception, but: Errors = ()) -> None:
        super().__init__(only=only, but=but)
        self.delay = delay
        if delay is not None and seconds(delay) < 0:
            raise ConfigurationError(f"DeferMessageOnError: a delay cannot be negative: {delay}")

    def decide(self, error: Exception) -> DeferMessageAction:
        """Defer it."""
        return DeferMessageAction(self.delay, type(error).__name__)
