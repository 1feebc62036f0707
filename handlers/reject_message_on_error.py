"""Make the message a dead letter when its handler fails."""

from pump.attribute import Errors, OnError
from pump.checks import refuse, wrong_text
from pump.errors import RejectMessageAction


class RejectMessageOnError(OnError):
    """Any error makes the message a dead letter at once. Its reason is `reason`, or else the error's type name."""

    declares = frozenset({RejectMessageAction})

    def __init__(self, reason: str = "", *, only: Errors = Exception, but: Errors = ()) -> None:
        super().__init__(only=only, but=but)
        refuse("RejectMessageOnError", reason="" if reason == "" else wrong_text(reason))
        self.reason = reason

    def decide(self, error: Exception) -> RejectMessageAction:
        """Reject it."""
        return RejectMessageAction(self.reason or type(error).__name__)
