"""The decisions that handlers raise about a message, and the errors, grouped by what to do about them."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self

from pump.duration import Duration, delay_seconds
from pump.text import text_of


class MessageAction(Exception):  # noqa: N818 - a decision, not an error
    """A handler's decision about its message. Raise one of the four below; raise it `from error` to keep the cause."""

    reason: str = ""
    """The reason, in a few words; empty if a subclass does not call `super().__init__`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = text_of(reason)  # any object may be given, and it has to fit a header


def reason_of(action: MessageAction) -> str:
    """The decision's reason as text; empty if it cannot be read, which a subclass of the user's may cause."""
    try:
        return text_of(action.reason)
    except Exception:
        return ""


class DontAckAction(MessageAction):
    """Leave the message with the broker: it is not acknowledged, no attempt is counted, and it comes again.

    `until` is for attributes that refuse every message for a while: it says whether that is over. Such a refusal is
    intended: it is logged at DEBUG, is not unacceptable, and a channel of this one request receives nothing meanwhile.
    """

    until: Callable[[], bool] | None = None

    def __init__(self, reason: str = "", *, until: Callable[[], bool] | None = None) -> None:
        super().__init__(reason)
        self.until = until


class DeferMessageAction(MessageAction):
    """Deliver the message again after `delay`; without one, after the subscription's requeue back-off."""

    delay: float | None = None

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else delay_seconds(delay)


class RejectMessageAction(MessageAction):
    """Give the message up: it becomes a dead letter with this reason."""


class InvalidMessageAction(MessageAction):
    """The message itself is wrong, and trying again cannot help: it goes to the invalid-message channel."""


UNMAPPABLE: Final = "cannot be mapped"


class Undecodable(InvalidMessageAction):
    """Raised only by the pump's own mapping, `from` the error in the body: a subscription has an option for it."""


class MessageRefused(Exception):  # noqa: N818 - it says what happened
    """The subscription's `refusal` forbids handling the message. Never raised: it is the reason of a verdict."""


class PumpError(Exception):
    """The base of every error that this package raises."""


class TransportError(PumpError):
    """The broker could not be reached, or did not answer: trying again later may help."""


class PublishError(TransportError):
    """Not every message was confirmed.

    `sent` is False if it is known that none is stored, None if some are or nobody knows; `failures` says which.
    """

    def __init__(
        self,
        text: str,
        *,
        sent: bool | None = None,
        retriable: bool = True,
        failures: Mapping[int, "PublishError"] = MappingProxyType({}),
    ) -> None:
        super().__init__(text)
        self.sent = sent
        self.retriable = retriable
        """Whether trying again later may help."""
        self.failures = failures
        """For messages that were posted together: the error of each one that was not confirmed, by position, from 0.
        The others are stored. Empty if this error itself is about all of them."""

    def again(self) -> Self:
        """The same error, to be raised to one more caller."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        twin.__cause__ = self.__cause__
        return twin


class PublishExhausted(PublishError):  # noqa: N818 - the name says what happened
    """Posting a message failed on every try, each time for a reason that may be temporary. It is not sent later."""

    def __init__(
        self,
        text: str,
        *,
        kind: str,
        tries: int,
        sent: bool | None = None,
        failures: Mapping[int, PublishError] = MappingProxyType({}),
    ) -> None:
        super().__init__(text, sent=sent, failures=failures)
        self.kind = kind
        """Why the last try failed, in a word."""
        self.tries = tries


class LeaseLost(PumpError):  # noqa: N818 - the name says what happened
    """The message is lost to this process: its lease expired or its connection is gone. Nothing was sent for it."""


class SetupError(PumpError):
    """Something outside the program has to be corrected: a channel is missing, a login refused, a package absent."""


class ConfigurationError(SetupError):
    """The program is set up wrongly; it has to be corrected before it can run."""


class UnknownPublication(PumpError):  # noqa: N818 - the name says what is wrong
    """A request was posted, but no Publication says where its type goes."""


class HandlerTimeout(PumpError, TimeoutError):  # noqa: N818 - a time-out, not a fault of ours
    """A handler took longer than its Timeout attribute allows."""


def contains(error: BaseException, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether an error is of one of these types, or a group that contains such an error."""
    if isinstance(error, BaseExceptionGroup):
        return any(isinstance(each, kinds) for each in within(error))
    return isinstance(error, kinds)


def within(error: BaseException) -> Iterator[BaseException]:
    """The error itself and, if it is a group, every group and error in it, at any depth, in order."""
    left = [error]
    while left:
        each = left.pop()
        yield each
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))
