"""A message: its header, its body, and what the broker says about one delivery of it."""

import copy
import threading
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
NO_RAW_HEADERS: Final[Mapping[str, object]] = MappingProxyType({})

Kind: TypeAlias = Literal["command", "event", "document"]

_claims = threading.Lock()

ATTEMPTS_HEADER: Final = "pump-carried-attempts"
"""The attempts so far, on a copy that comes again. A dead letter has "pump-attempts" instead, which limit nothing."""
FIRST_FAILURE_HEADER: Final = "pump-first-failure"


class Header(NamedTuple):
    """What is known of a message without reading its body. A header never changes."""

    id: str
    topic: str = ""
    type: str = ""
    """The wire type: a class's name or a declared one, never a module path."""
    version: str = ""
    kind: Kind = "command"
    content_type: str = "application/json"
    key: str | None = None
    """Messages of one key keep their order."""
    correlation_id: str | None = None
    reply_to: str | None = None
    timestamp: float = 0.0
    """When it was posted, in seconds since the epoch."""
    headers: Mapping[str, str] = NO_HEADERS
    """All other headers, as text."""


class Message:
    """One delivery of a message. Header and body are the sender's; everything else comes from the transport."""

    __slots__ = (
        "answered",
        "attempts",
        "begun_at",
        "blocked_seconds",
        "body",
        "carried",
        "deliveries",
        "ended",
        "explicit",
        "fault",
        "generation",
        "handled_at",
        "handler",
        "header",
        "identity",
        "interrupt",
        "lease_expires",
        "lost",
        "origin",
        "partition",
        "position",
        "raw_headers",
        "receipt",
        "release",
        "settled",
        "unexplained",
    )

    def __init__(
        self,
        header: Header,
        body: bytes,
        *,
        identity: str | None = None,
        receipt: object = None,
        generation: int = 0,
        deliveries: int = 1,
        attempts: int = 0,
        unexplained: int | None = None,
        lease_expires: float | None = None,
        partition: Hashable = None,
        position: str | int = "",
        raw_headers: Mapping[str, object] = NO_RAW_HEADERS,
        fault: str = "",
    ) -> None:
        self.header: Header = header
        self.body: bytes = body
        self.identity: str = header.id if identity is None else identity
        """The same for all deliveries of the message; the broker's own where the sender gave no id."""
        self.receipt: object = receipt
        """The transport's own handle on this delivery; only the transport reads it."""
        self.generation: int = generation
        """Which connection of the consumer received it; a receipt is void in any other."""
        self.deliveries: int = deliveries
        """The number of this delivery, as the broker counts this copy; the first is 1."""
        self.attempts: int = attempts
        """Attempts before this run, as far as they are known; at first those that the message carries."""
        self.carried: int = attempts
        """Attempts that the broker knows of, in a header or in a counter of its own."""
        self.unexplained: int = deliveries - 1 if unexplained is None else unexplained
        """Earlier deliveries of this copy whose outcome the transport does not know."""
        self.lease_expires: float | None = lease_expires
        """When the lease ends, on the monotonic clock; None where the broker sets no time limit."""
        self.partition: Hashable = partition
        self.position: str | int = position
        """Its place in the partition, for people to read."""
        self.raw_headers: Mapping[str, object] = raw_headers
        self.fault: str = fault
        """Why the transport could not read it; "" where it could."""
        self.origin: str = ""
        """The channel it came from."""
        self.handler: str = ""
        """The handler that it was given to last, or that failed on it last."""
        self.interrupt: Callable[[], None] | None = None
        """Tells the handler that runs for it to end; None while none runs."""
        self.ended: bool = False
        """Whether the pump's stop ended its handler, or a wait of its attributes: a failure then counts no attempt."""
        self.release: Callable[[], Any] | None = None
        """Closes what was opened for a handler that settles the message after it returned; async handlers await it."""
        self.begun_at: float = 0.0
        """When its handlers were begun, on the monotonic clock, if somebody wants to know; 0 before."""
        self.handled_at: float = 0.0
        """When they had ended."""
        self.lost: bool = False
        """Whether this process is known to have lost the message: nothing may be sent for it."""
        self.blocked_seconds: float = 0.0
        """How long its event loop was blocked, if it was lost because the loop could not renew its lease."""
        self.explicit: bool = False
        """Whether its handler settles it, by a Delivery."""
        self.answered: bool = False
        """Whether an attribute answered instead of its handler, so that the pump has to settle it."""
        self.settled: bool = False
        """Whether somebody has settled this delivery, or is doing so; the first one wins."""

    def claim(self) -> bool:
        """Whether the caller is the first to settle this delivery. If settling fails, `settled` is reset."""
        with _claims:
            first, self.settled = not self.settled, True
        return first

    def again(self) -> "Message":
        """A copy of this delivery that can be handled once more: nothing is settled."""
        other = copy.copy(self)
        other.interrupt = other.release = None
        other.begun_at = other.handled_at = 0.0
        other.ended = other.explicit = other.answered = other.settled = False
        return other

    @property
    def id(self) -> str:
        """The id that its sender gave it."""
        return self.header.id

    def __repr__(self) -> str:
        return f"<Message {self.header.id} of {self.header.type or 'unknown type'} on {self.header.topic}>"
