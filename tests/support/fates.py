"""The possible outcomes for a message, and the truth about those that happened."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pump.dead_letter import Rejection
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
)
from pump.message import Message
from pump.verdict import SetupFault

Pump: TypeAlias = Literal["reactor", "proactor", "concurrent"]
Style: TypeAlias = Literal["own", "counting", "copying", "uncounted"]


class Crash(BaseException):
    """The process dies, at any moment."""


@dataclass(frozen=True)
class Outcome:
    """How a handler ends with its message, unless the message itself decides that."""

    ends: str = "return"
    takes: float = 0.0
    """How long it runs, in seconds."""
    gives_way: int = 0
    """How often other tasks of its loop run meanwhile."""
    meanwhile: tuple["Outcome", ...] = ()
    """The outcomes of other performers' handlers, which run before this one ends."""


@dataclass
class Settings:
    """The settings of a world."""

    pump: Pump = "reactor"
    style: Style = "own"
    leases: bool = True
    holds: bool = False
    hands_back_all: bool = False
    performers: int = 1
    in_flight: int = 1
    ordered: bool = False
    may_block: bool = False
    renew: bool = True
    on_unhandled: Literal["retry", "dont_ack", "reject", "acknowledge", "nak"] = "retry"
    buffer_size: int = 8
    remembers: bool = False
    """Whether the machine keeps what its processes had in hand."""


@dataclass
class Fate:
    """The truth about one message."""

    runs: int = 0
    completed: int = 0
    failed: int = 0
    """Runs that ended in an error or a defer, whether or not the broker could be told."""
    stood: list[Message] = field(default_factory=list)
    """The deliveries whose lease ended while a handler kept the event loop from renewing it: each counts."""
    decisions: set[str] = field(default_factory=set)
    crashes: int = 0
    """Runs that ended with the process."""
    unexplained: int = 0
    """How often the bus took the message back from a consumer that had not given it back."""
    known_here: bool = False
    """Whether the running process knows more of its deliveries than the broker does."""
    forgotten: bool = False
    """Whether a process that knew more of its deliveries than the broker does has ended."""
    acknowledged: bool = False
    rejection: Rejection | None = None


def _fault() -> BaseException:
    fault = SetupFault("no mapper")
    fault.__cause__ = ConfigurationError("no mapper")
    return fault


ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "error": lambda: ValueError("bad"),
    "dont_ack": DontAckAction,
    "defer": DeferMessageAction,
    "defer for 5 s": lambda: DeferMessageAction(5),
    "reject": lambda: RejectMessageAction("refused"),
    "invalid": lambda: InvalidMessageAction("odd"),
    "group with defer": lambda: ExceptionGroup("two", [ValueError("bad"), DeferMessageAction()]),
    "group with dont_ack": lambda: ExceptionGroup("two", [DontAckAction(), ValueError("bad")]),
    "a foreign cancellation": asyncio.CancelledError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "the set-up is wrong": _fault,
}
FAILING: Final = {"error", "defer", "defer for 5 s", "group with defer", "a foreign cancellation"}
REFUSING: Final = {"dont_ack", "group with dont_ack"}
