"""What a handler raises to decide what becomes of its message, and what goes wrong, grouped by what to do about it."""

from typing import Final

from pump.duration import Duration, seconds


class MessageAction(Exception):  # noqa: N818 - a decision, not an error
    """A handler's decision about its message. Raise one of the four below; raise it `from error` to keep the cause."""

    reason: str = ""
    """Also where a class of one's own does not call `super().__init__`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)  # whatever it is given, it has to fit a header


class DontAckAction(MessageAction):
    """Leave the message with the broker: it is neither acknowledged nor spent, and comes again."""


class DeferMessageAction(MessageAction):
    """Deliver the message again after `delay`; without one, after the subscription's requeue back-off."""

    delay: float | None = None

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds(delay)
        if self.delay is not None and self.delay < 0:
            raise ValueError(f"a delay cannot be negative: {self.delay} s")


class RejectMessageAction(MessageAction):
    """Give the message up: it becomes a dead letter with this reason."""


class InvalidMessageAction(MessageAction):
    """The message itself is wrong and never will be right: it goes to the invalid-message channel."""


UNMAPPABLE: Final = "cannot be mapped"


class Undecodable(InvalidMessageAction):
    """Raised by the pump's own mapping alone, `from` what is wrong with the body: a subscription may treat it apart."""


class Refused(Exception):  # noqa: N818 - it says what happened
    """The subscription does not let the message be handled; never raised, but told as the reason."""


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


class PublishExhausted(PublishError):  # noqa: N818 - the name says what happened
    """Every try to post a message failed, each for a reason that might have passed. It is not kept to be sent later."""

    def __init__(self, text: str, *, kind: str, tries: int, sent: bool | None = None) -> None:
        super().__init__(text, sent=sent)
        self.kind = kind
        """Why the last try failed, in a word."""
        self.tries = tries


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
