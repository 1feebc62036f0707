"""The records of a harness: calls of the channel, dead letters, and the messages on the bus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pump.dead_letter import Rejection, dead_letter
from pump.message import Message
from pump.settling import Verdict
from pump.testing.clock import SelfMovingClock


class Bus(Protocol):
    """The questions that a test may ask an in-memory bus; a channel that does not exist holds nothing."""

    def channels(self) -> Sequence[str]:
        """The names of all channels there are."""

    def pending(self, channel: str) -> int:
        """How many messages of the channel can be received now."""

    def locked(self, channel: str) -> int:
        """How many messages of the channel were received by its consumers and are not settled."""

    def scheduled(self, channel: str) -> int:
        """How many messages of the channel are due later."""

    def messages(self, channel: str) -> Sequence[Message]:
        """Copies of what can be received from the channel now, in order, with the deliveries so far."""


class Call(str):  # noqa: SLOT000 - it is made to carry more
    """A call of a channel: a string, equal to the name of the method, that has the arguments too."""

    request: object
    """The request in the message, as its handler gets it; the message itself where it cannot be mapped."""
    message: Message
    delay: float | None = None
    attempts: int | None = None
    rejection: Rejection | None = None
    error: BaseException | None = None
    """What the call raised; None if it succeeded."""

    @property
    def ends(self) -> bool:
        """Whether the message was finished by this call."""
        return self.error is None and self in {"acknowledge", "reject"}


@dataclass(frozen=True)
class DeadLetter:
    """A message that was given up, with the facts from its dead letter."""

    request: object
    """As its handler gets it; the message itself where it cannot be mapped."""
    message: Message
    rejection: Rejection

    @property
    def reason(self) -> str:
        """Why it was given up, in a few words."""
        return self.rejection.reason

    @property
    def description(self) -> str:
        """Why, in more words."""
        return self.rejection.description

    @property
    def error(self) -> BaseException | None:
        """What the handler raised, if anything."""
        return self.rejection.error

    @property
    def attempts(self) -> int:
        """How many attempts it had."""
        return self.rejection.attempts

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the dead letter: the message's own, and `pump-…`, which say where it comes from and why."""
        return dead_letter(self.message, self.rejection).headers


@dataclass(frozen=True, slots=True)
class Records:
    """The shared records of the pumps of one harness, in order, and the times when later messages are due."""

    clock: SelfMovingClock
    bus: Bus
    calls: list[Call] = field(default_factory=list)
    verdicts: list[tuple[object, Verdict]] = field(default_factory=list)
    dues: list[float] = field(default_factory=list)
    """A heap."""
