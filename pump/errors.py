"""What a handler raises to decide what becomes of its message, and what goes wrong, grouped by what to do about it."""

from pump.duration import Duration, seconds


class MessageAction(Exception):  # noqa: N818 - a decision, not an error
    """A handler's decision about its message. Raise one of the four below; raise it `from error` to keep the cause."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class DontAckAction(MessageAction):
    """Leave the message with the broker: it is neither acknowledged nor spent, and comes again."""


class DeferMessageAction(MessageAction):
    """Deliver the message again after `delay`; without one, after the subscription's requeue back-off."""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds(delay)
        if self.delay is not None and self.delay < 0:
            raise ValueError(f"a delay cannot be negative: {self.delay} s")


class RejectMessageAction(MessageAction):
    """Give the message up: it becomes a dead letter with this reason."""


class InvalidMessageAction(MessageAction):
    """The message itself is wrong and never will be right: it goes to the invalid-message channel."""


class PumpError(Exception):
    """Everything this package raises by itself when something is wrong."""


class TransportError(PumpError):
    """The broker could not be reached, or did not answer: trying again later may help."""


class PublishError(TransportError):
    """A message was not confirmed. `sent` is False when it is known not to be stored, None when that is unknown."""

    def __init__(self, text: str, *, sent: bool | None = None, retriable: bool = True) -> None:
        super().__init__(text)
        self.sent = sent
        self.retriable = retriable


class LeaseLost(PumpError):  # noqa: N818 - the name says what happened
    """The message is no longer ours: its lease lapsed or its connection is gone. Nothing was sent for it."""


class SetupError(PumpError):
    """Something outside the program has to be mended: a channel is missing, a login refused, a package absent."""


class ConfigurationError(SetupError):
    """The program is put together wrongly; it has to be mended before it can run."""


class UnknownPublication(PumpError):  # noqa: N818 - the name says what is wrong
    """A request was posted for which no Publication says where it goes."""


class HandlerTimeout(PumpError, TimeoutError):  # noqa: N818 - a time-out, not a fault of ours
    """A handler took longer than its Timeout attribute allows."""
