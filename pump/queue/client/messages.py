"""What a client of the queue says and hears, and how HTTP has it. Payloads stay as they were, to the byte."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from pump.queue.errors import BadRequest, QueueUnavailable
from pump.queue.vocabulary import (
    DEFAULT_GROUP,
    DEFAULT_PARTITION,
    DeadLetter,
    GroupInfo,
    Pushed,
    Settled,
    Status,
)
from pump.queue.wire.raw_json import Raw, parse
from pump.queue.wire.replies import time_text
from pump.queue.wire.requests import moment

Tree: TypeAlias = Mapping[str, object]

_CARRIED: Final = frozenset({"data"})
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message to push."""

    queue: str
    data: object = None
    """Anything that is JSON."""
    payload: bytes | None = None
    """JSON that is written already, which is sent instead of `data`, as it is."""
    partition: str = DEFAULT_PARTITION
    transaction_id: str = ""
    """Minted where empty, once, however often it has to be tried."""
    trace_id: str | None = None
    delay: float = 0.0
    """Seconds until it is due."""
    not_before: float = 0.0
    """When it is due, in seconds since the epoch."""

    def written(self, transaction_id: str) -> bytes:
        """As HTTP has it."""
        members: dict[str, object] = {
            "queue": self.queue,
            "partition": self.partition,
            "transactionId": transaction_id,
        }
        if self.trace_id is not None:
            members["traceId"] = self.trace_id
        if self.delay:
            members["delaySeconds"] = self.delay
        if self.not_before:
            members["notBefore"] = time_text(self.not_before)
        payload = _encode(self.data).encode() if self.payload is None else self.payload
        return b'%s,"payload":%s}' % (dump(members)[:-1], payload)


@dataclass(slots=True, eq=False)
class QueueMessage:
    """One message in the hand of this client."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    group: str
    lease_id: str
    """Empty where it was popped with `auto_ack`."""
    payload: bytes = field(repr=False)
    created_at: float
    """In seconds since the epoch."""
    sequence: int = 0
    deliveries: int = 1
    """This one included."""
    retries: int = 0
    crashes: int = 0
    trace_id: str | None = None
    producer: str | None = None
    settled: bool = False
    """The server has confirmed what this client said of it."""
    lost: bool = False
    """It is known not to be ours any more."""

    @property
    def is_open(self) -> bool:
        """Whether something is still to be said of it."""
        return not self.settled and not self.lost

    @property
    def data(self) -> object:
        """The payload, read as JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to say of one message."""

    message: QueueMessage
    status: Status = Status.COMPLETED
    error: str | None = None
    delay: float | None = None
    """For FAILED and RETRY: seconds until it is due again."""
    reason: str = ""

    def written(self) -> dict[str, object]:
        """As HTTP has it."""
        message = self.message
        members: dict[str, object] = {
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "leaseId": message.lease_id,
            "status": self.status.value,
            "consumerGroup": message.group,
        }
        given = {"error": self.error, "delaySeconds": self.delay, "reason": self.reason or None}
        return {**members, **{name: value for name, value in given.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of dead letters, newest first, and how many there are in all."""

    letters: Sequence[DeadLetter]
    total: int


def dump(tree: object) -> bytes:
    """The body of a request."""
    return _encode(tree).encode()


def members(body: bytes) -> Tree:
    """An object that the server sent."""
    tree = _parsed(body)
    if not isinstance(tree, dict):
        raise QueueUnavailable("the server's answer is no object")
    return tree


def rows(body: bytes) -> Sequence[Tree]:
    """An array of objects that the server sent."""
    tree = _parsed(body)
    if not isinstance(tree, list):
        raise QueueUnavailable("the server's answer is no array")
    return tree


def _parsed(body: bytes) -> object:
    try:
        return parse(body, _CARRIED)
    except BadRequest as error:
        raise QueueUnavailable(f"the server's answer makes no sense: {error}") from error


def messages(body: bytes, group: str) -> list[QueueMessage]:
    """What a pop brought."""
    if not body.strip():
        return []
    reply = members(body)
    found = cast("Sequence[Tree]", reply.get("messages") or ())
    return [_message(each, str(each.get("queue") or reply.get("queue") or ""), group) for each in found]


def _message(tree: Tree, queue: str, group: str) -> QueueMessage:
    return QueueMessage(
        id=str(tree["id"]),
        transaction_id=str(tree["transactionId"]),
        partition_id=str(tree["partitionId"]),
        partition=str(tree["partition"]),
        queue=queue,
        group=group,
        lease_id=_text(tree, "leaseId"),
        payload=_payload(tree) or b"null",
        created_at=_time(tree, "createdAt") or 0.0,
        sequence=_whole(tree, "sequence"),
        deliveries=_whole(tree, "deliveries", 1),
        retries=_whole(tree, "retries"),
        crashes=_whole(tree, "crashes"),
        trace_id=_text(tree, "traceId") or None,
        producer=_text(tree, "producerSub") or None,
    )


def pushed(tree: Tree, item: Item) -> Pushed:
    """What became of an item."""
    return Pushed(
        item.queue,
        item.partition,
        _text(tree, "partition_id"),
        _text(tree, "message_id"),
        _text(tree, "transaction_id"),
        duplicate=tree.get("status") == "duplicate",
        refused=(_text(tree, "error") or "refused") if tree.get("status") == "failed" else "",
        scheduled=tree.get("scheduled") is True,
        trace_id=_text(tree, "trace_id") or None,
    )


def settled(tree: Tree) -> Settled:
    """What became of a verdict."""
    return Settled(
        _text(tree, "transactionId"),
        success=tree.get("success") is True,
        message=_text(tree, "message"),
        error=_text(tree, "error") or None,
        queue=_text(tree, "queueName") or None,
        partition=_text(tree, "partitionName") or None,
        lease_released=tree.get("leaseReleased") is True,
        dead=tree.get("dlq") is True,
    )


def dead_letters(body: bytes) -> DeadLetters:
    """A page of them."""
    reply = members(body)
    found = cast("Sequence[Tree]", reply.get("messages") or ())
    return DeadLetters([_dead_letter(each) for each in found], _whole(reply, "total", len(found)))


def _dead_letter(tree: Tree) -> DeadLetter:
    return DeadLetter(
        id=str(tree["id"]),
        message_id=_text(tree, "messageId"),
        transaction_id=str(tree["transactionId"]),
        partition_id=_text(tree, "partitionId"),
        partition=_text(tree, "partition"),
        queue=_text(tree, "queue"),
        group=_text(tree, "consumerGroup") or DEFAULT_GROUP,
        payload=_payload(tree),
        reason=_text(tree, "reason"),
        error=_text(tree, "errorMessage"),
        retries=_whole(tree, "retryCount"),
        crashes=_whole(tree, "crashes"),
        deliveries=_whole(tree, "deliveries"),
        producer=_text(tree, "producerSub") or None,
        created_at=_time(tree, "createdAt") or 0.0,
        moved_at=_time(tree, "movedToDlqAt") or 0.0,
        redriven_at=_time(tree, "redrivenAt"),
    )


def group(tree: Tree) -> GroupInfo:
    """One consumer group of one queue."""
    lag_seconds = tree.get("maxTimeLag")
    return GroupInfo(
        name=_text(tree, "name"),
        queue=_text(tree, "queueName"),
        partitions=_whole(tree, "members"),
        partitions_with_lag=_whole(tree, "partitionsWithLag"),
        lag=_whole(tree, "totalLag"),
        lag_seconds=float(lag_seconds) if isinstance(lag_seconds, int | float) else 0.0,
        subscription=_text(tree, "subscriptionMode"),
        subscription_from=_time(tree, "subscriptionTimestamp"),
        created_at=_time(tree, "subscriptionCreatedAt") or 0.0,
    )


def expires_at(tree: Tree) -> float:
    """When a lease ends."""
    return _time(tree, "expiresAt") or 0.0


def _payload(tree: Tree) -> bytes | None:
    raw = tree.get("data")
    if tree.get("dataEncoding") == "encrypted":
        return None
    body = raw.body if isinstance(raw, Raw) else b"null"
    return base64.b64decode(json.loads(body)) if tree.get("dataEncoding") == "base64" else body


def _text(tree: Tree, name: str) -> str:
    value = tree.get(name)
    return value if isinstance(value, str) else ""


def _whole(tree: Tree, name: str, default: int = 0) -> int:
    value = tree.get(name)
    return value if isinstance(value, int) else default


def _time(tree: Tree, name: str) -> float | None:
    text = _text(tree, name)
    return moment(name, text) if text else None
