"""The verdicts: what can become of a message, each carried out by one call of its channel. `verdict` decides which."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias, TypeVar

from pump.dead_letter import Rejection
from pump.message import Message

Done = TypeVar("Done", None, Awaitable[None], covariant=True)
"""What a channel's methods return: None where they block, an awaitable where they do not."""


class Settles(Protocol[Done]):
    """Where verdicts are carried out: a Channel or an AsyncChannel."""

    def acknowledge(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's
    def nack(self, message: Message, delay: float) -> Done: ...  # noqa: D102 - as Channel's
    def shut_until(self, ready: Callable[[], bool]) -> None: ...  # noqa: D102 - as Channel's
    def requeue(self, message: Message, delay: float, attempts: int) -> Done: ...  # noqa: D102 - as Channel's
    def reject(self, message: Message, rejection: Rejection) -> Done: ...  # noqa: D102 - as Channel's
    def hand_back(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's
    def leave_unsettled(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's


class _Defaults:
    """The attributes of every verdict, with their default values."""

    __slots__ = ()

    final: ClassVar[bool] = False
    """Whether the message is finished once the verdict is carried out."""
    told: ClassVar[str] = ""
    """What the log says of the message."""
    pause: float = 0.0
    """How long the pump waits afterwards, in seconds."""
    error: BaseException | None = None
    """What the handler raised, if anything."""


@dataclass(frozen=True, slots=True)
class Acknowledge(_Defaults):
    """The message is done."""

    final: ClassVar[bool] = True
    told: ClassVar[str] = "acknowledged"

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.acknowledge(message)


@dataclass(frozen=True, slots=True)
class Nack(_Defaults):
    """The message stays with the broker, and no attempt is counted; the pump pauses before it goes on."""

    told: ClassVar[str] = "not acknowledged"
    pause: float
    error: BaseException | None = None
    until: Callable[[], bool] | None = None
    """Says whether the channel may receive again, if all its messages would be nacked for a while."""

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        if self.until is not None:
            channel.shut_until(self.until)
        return channel.nack(message, self.pause)


@dataclass(frozen=True, slots=True)
class Requeue(_Defaults):
    """The message comes again after the delay, with this number of attempts."""

    told: ClassVar[str] = "to come again"
    delay: float
    attempts: int
    error: BaseException | None = None

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.requeue(message, self.delay, self.attempts)


@dataclass(frozen=True, slots=True)
class Reject(_Defaults):
    """The message becomes a dead letter, or goes to the invalid-message channel."""

    final: ClassVar[bool] = True
    told: ClassVar[str] = "given up"
    rejection: Rejection

    @property
    def error(self) -> BaseException | None:  # type: ignore[override] # read only, here as in every verdict
        """What the handler raised, if anything."""
        return self.rejection.error

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.reject(message, self.rejection)


@dataclass(frozen=True, slots=True)
class HandBack(_Defaults):
    """The message goes back as if it had not been received."""

    told: ClassVar[str] = "handed back"

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.hand_back(message)


@dataclass(frozen=True, slots=True)
class Unsettled(_Defaults):
    """The broker is sent nothing: the handler settles the message itself, or nobody does and its lease ends."""

    told: ClassVar[str] = "left unsettled"

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.leave_unsettled(message)


Verdict: TypeAlias = Acknowledge | Nack | Requeue | Reject | HandBack | Unsettled

ACKNOWLEDGE: Final = Acknowledge()
HAND_BACK: Final = HandBack()
UNSETTLED: Final = Unsettled()
