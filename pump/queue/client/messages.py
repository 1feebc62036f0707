"""The values that a client of the queue sends and receives. Payloads stay the same, byte for byte."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec import Raw

from pump.duration import Duration, seconds
from pump.queue.errors import BadRequest, QueueUnavailable
from pump.queue.limits import check_seconds
from pump.queue.vocabulary import DEFAULT_PARTITION, DeadLetter, Pushed, Status
from pump.queue.wire.json_body import ABSENT, Reader, encode
from pump.queue.wire.replies import (
    DeadLettersReply,
    ExtendedReply,
    GroupReply,
    PopReply,
    PushedReply,
    SettledReply,
    carried,
    copied,
)
from pump.queue.wire.requests import AckRequest, PushItem
from pump.queue.wire.times import Time

Ack = TypeVar("Ack", bound=AckRequest)
Reply = TypeVar("Reply")

POPPED: Final = Reader(PopReply)
PUSHED: Final = Reader(list[PushedReply])
SETTLED: Final = Reader(list[SettledReply])
DEAD_LETTERS: Final = Reader(DeadLettersReply)
GROUPS: Final = Reader(list[GroupReply])
EXTENDED: Final = Reader(ExtendedReply)
MEMBERS: Final = Reader(dict[str, Any])

_dumps: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message to push."""

    queue: str
    data: object = None
    """Any value that can be JSON."""
    payload: bytes | None = None
    """Finished JSON, which is sent unchanged instead of `data`."""
    partition: str = DEFAULT_PARTITION
    transaction_id: str = ""
    """If empty, the client makes one; every try of a push sends the same one."""
    trace_id: str | None = None
    delay: float = 0.0
    """Seconds until it is due."""
    not_before: float = 0.0
    """When it is due, in seconds since the epoch."""

    def request(self, transaction_id: str) -> PushItem:
        """The item in the form in which it is sent, with this transaction id."""
        return PushItem(
            self.queue,
            self.partition,
            transaction_id,
            ABSENT if self.trace_id is None else self.trace_id,
            check_seconds("delay", self.delay) or ABSENT,
            Time(self.not_before) if self.not_before else ABSENT,
            Raw(_dumps(self.data).encode() if self.payload is None else self.payload),
        )


@dataclass(slots=True, eq=False)
class QueueMessage:
    """One message that this client has leased."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    group: str
    lease_id: str
    """Empty if the message was popped with `auto_ack`."""
    payload: bytes = field(repr=False)
    created_at: float
    """When the message was stored, in seconds since the epoch."""
    sequence: int = 0
    deliveries: int = 1
    """The number of deliveries, this one included."""
    retries: int = 0
    crashes: int = 0
    trace_id: str | None = None
    producer: str | None = None
    settled: bool = False
    """Whether the server has confirmed this client's acknowledgement, nack, release or dead letter."""
    lost: bool = False
    """Whether its lease is known to be lost."""

    @property
    def is_open(self) -> bool:
        """Whether the message still has to be settled."""
        return not self.settled and not self.lost

    @property
    def data(self) -> object:
        """The payload, read as JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How to settle one message."""

    message: QueueMessage
    status: Status = Status.COMPLETED
    error: str | None = None
    delay: Duration | None = None
    """For FAILED and RETRY: the time until the message is due again."""
    reason: str = ""
    """For DEAD: the kind of reason, kept beside the error."""

    def request(self, kind: type[Ack]) -> Ack:
        """The outcome in the form in which it is sent."""
        return kind(
            self.message.transaction_id,
            self.message.partition_id,
            self.message.lease_id,
            self.status.value,
            self.message.group,
            ABSENT if self.error is None else Raw(encode(self.error)),
            ABSENT if self.delay is None else check_seconds("delay", seconds(self.delay)),
            self.reason or ABSENT,
        )


@dataclass(slots=True, eq=False)
class Transaction:
    """Steps that are carried out together or not at all."""

    outcomes: list[Outcome] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def ack(self, message: QueueMessage) -> None:
        """Acknowledge the message."""
        self.outcomes.append(Outcome(message))

    def settle(self, outcome: Outcome) -> None:
        """Settle a message."""
        self.outcomes.append(outcome)

    def push(self, queue: str, data: object = None, *, partition: str = DEFAULT_PARTITION, delay: float = 0.0) -> None:
        """Store a message."""
        self.items.append(Item(queue=queue, data=data, partition=partition, delay=delay))

    def push_item(self, item: Item) -> None:
        """Store a message that an Item describes."""
        self.items.append(item)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of dead letters, newest first, and their total number."""

    letters: Sequence[DeadLetter]
    total: int


def read(body: bytes, reader: Reader[Reply]) -> Reply:
    """The body of a reply; QueueUnavailable if it is not a reply of this API."""
    try:
        return reader.read(body)
    except BadRequest as error:
        raise QueueUnavailable(f"the server's reply cannot be read: {error}") from error


def messages(body: bytes, group: str) -> list[QueueMessage]:
    """The messages of a pop's reply."""
    if not body.strip():
        return []
    reply = read(body, POPPED)
    return [
        copied(
            QueueMessage,
            each,
            queue=each.queue or reply.queue or "",
            group=group,
            lease_id=each.lease_id or "",
            payload=carried(each) or b"null",
        )
        for each in reply.messages or ()
    ]


def pushed(reply: PushedReply, item: Item) -> Pushed:
    """The result for one item of a push."""
    return Pushed(
        item.queue,
        item.partition,
        reply.partition_id or "",
        reply.message_id or "",
        reply.transaction_id or "",
        duplicate=reply.status == "duplicate",
        refused=(reply.error or "refused") if reply.status == "failed" else "",
        scheduled=bool(reply.scheduled),
        trace_id=reply.trace_id or None,
    )
