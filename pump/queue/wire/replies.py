"""Replies: the server writes them, the client reads those that are structs. They hold payloads as they were pushed.

As the API defines it, members are in camelCase, except some of a push's reply. Times are in UTC, to the microsecond.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    GroupInfo,
    Leased,
    PartitionInfo,
    PartitionNumbers,
    PopRequest,
    PopResult,
    ProgressInfo,
    ProgressNumbers,
    Pushed,
    Result,
    Settled,
    State,
    Stored,
    Trace,
)
from pump.queue.wire.json_body import ABSENT, NULL, encode, is_json, payload_of
from pump.queue.wire.times import Time, time_text

Copy = TypeVar("Copy")
Reply: TypeAlias = Mapping[str, object]

LAGGING_SECONDS: Final = 300.0

_ERRORS: Final[Mapping[str, str]] = {"invalid_lease": "Invalid or expired lease", "not_found": "Message not found"}


class PushedReply(Struct, gc=False):
    """The result for one message of a push."""

    index: int = 0
    transaction_id: str | None = None
    queue: str | None = field(name="queueName", default=None)
    status: str = ""
    """ "queued", "duplicate" or "failed"."""
    message_id: str | None = ABSENT
    partition_id: str | None = ABSENT
    trace_id: str | None = ABSENT
    scheduled: bool = ABSENT
    error: str = ABSENT


class MessageReply(Struct, rename="camel", gc=False):
    """One message that a consumer has leased."""

    id: str = ""
    transaction_id: str = ""
    trace_id: str | None = None
    producer: str | None = field(name="producerSub", default=None)
    created_at: Time = Time(0)
    queue: str | None = None
    partition_id: str = ""
    partition: str = ""
    lease_id: str | None = None
    group: str | None = field(name="consumerGroup", default=None)
    sequence: int = 0
    deliveries: int = 1
    retries: int = 0
    crashes: int = 0
    data: Raw = NULL
    data_encoding: str | None = ABSENT
    """ "base64" if the payload is not JSON."""


class PopReply(Struct, rename="camel", gc=False):
    """All messages of a pop; the other members describe the first message."""

    success: bool = True
    queue: str | None = None
    partition: str | None = None
    partition_id: str | None = None
    lease_id: str | None = None
    expires_at: Time | None = None
    consumer_group: str | None = None
    partitions_claimed: int = 0
    messages: list[MessageReply] | None = None


class SettledReply(Struct, rename="camel", gc=False):
    """The result of one settlement."""

    index: int = 0
    transaction_id: str | None = None
    success: bool = False
    message: str | None = None
    error: str | None = None
    queue: str | None = field(name="queueName", default=None)
    partition: str | None = field(name="partitionName", default=None)
    lease_released: bool = False
    dead: bool = field(name="dlq", default=False)


class ExtendedReply(Struct, rename="camel"):
    """The result of renewing a lease."""

    success: bool
    lease_id: str | None = None
    error: str | None = None
    expires_at: Time | None = None
    new_expires_at: Time | None = None


class DeadLetterReply(Struct, rename="camel"):
    """One dead letter."""

    id: str
    message_id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    group: str = field(name="consumerGroup")
    reason: str
    error: str = field(name="errorMessage")
    retries: int = field(name="retryCount")
    crashes: int
    deliveries: int
    producer: str | None = field(name="producerSub")
    created_at: Time
    failed_at: Time
    moved_at: Time = field(name="movedToDlqAt")
    redriven_at: Time | None
    data: Raw = NULL
    data_encoding: str | None = ABSENT
    """ "base64", or "encrypted" if the server does not have the key."""


class DeadLettersReply(Struct):
    """A page of dead letters."""

    messages: list[DeadLetterReply]
    total: int
    pagination: dict[str, int]


class GroupReply(Struct, rename="camel"):
    """One consumer group of one queue."""

    name: str
    queue: str = field(name="queueName")
    topics: list[str]
    partitions: int = field(name="members")
    partitions_with_lag: int
    lag: int = field(name="totalLag")
    lag_seconds: float = field(name="maxTimeLag")
    state: str
    subscription: str = field(name="subscriptionMode")
    subscription_from: Time | None = field(name="subscriptionTimestamp")
    created_at: Time = field(name="subscriptionCreatedAt")


def copied(kind: Callable[..., Copy], source: object, **others: object) -> Copy:
    """A struct, dataclass or named tuple, filled from the attributes of the source with the same names."""
    names = getattr(kind, "__match_args__", ())
    return kind(**{name: getattr(source, name) for name in names if hasattr(source, name)} | others)


def carried(reply: MessageReply | DeadLetterReply) -> bytes | None:
    """The payload as it was pushed; None if it is encrypted."""
    if reply.data_encoding == "encrypted":
        return None
    payload = payload_of(reply.data)
    return base64.b64decode(json.loads(payload)) if reply.data_encoding == "base64" else payload


# -- to producers and consumers


def pushed(results: Sequence[Pushed]) -> bytes:
    """The result for each message, in order."""
    return encode([_pushed(index, each) for index, each in enumerate(results)])


def _pushed(index: int, result: Pushed) -> PushedReply:
    if result.refused:
        return PushedReply(index, result.transaction_id, result.queue, "failed", error=result.refused)
    if result.duplicate:
        return PushedReply(index, result.transaction_id, result.queue, "duplicate", result.message_id)
    return PushedReply(
        index,
        result.transaction_id,
        result.queue,
        "queued",
        result.message_id,
        result.partition_id,
        result.trace_id,
        result.scheduled or ABSENT,
    )


def popped(request: PopRequest, result: PopResult) -> bytes:
    """The reply to a consumer's pop."""
    first = result.messages[0]
    return encode(
        PopReply(
            queue=request.queue,
            partition=first.partition,
            partition_id=first.partition_id,
            lease_id="" if request.auto_ack else result.lease_id,
            expires_at=None if request.auto_ack else Time(result.expires_at),
            consumer_group=request.group,
            partitions_claimed=result.partitions,
            messages=[_message(each, request) for each in result.messages],
        )
    )


def _message(found: Leased, request: PopRequest) -> MessageReply:
    return MessageReply(
        found.id,
        found.transaction_id,
        found.trace_id,
        found.producer,
        Time(found.created_at),
        found.queue,
        found.partition_id,
        found.partition,
        "" if request.auto_ack else found.lease_id,
        request.group,
        found.sequence,
        found.deliveries,
        found.retries,
        found.crashes,
        *_carried(found.payload),
    )


def settled(results: Sequence[Settled]) -> bytes:
    """The result of each settlement, in order."""
    return encode([_settled(index, each) for index, each in enumerate(results)])


def _settled(index: int, result: Settled) -> SettledReply:
    return SettledReply(
        index,
        result.transaction_id,
        result.success,
        result.message,
        None if result.success else result.error or _ERRORS.get(result.message, result.message),
        result.queue,
        result.partition,
        result.lease_released,
        result.dead,
    )


def committed(transaction_id: str, outcome: Committed, places: Sequence[int]) -> Reply:
    """The result of a transaction; if it was refused, none of its steps was carried out."""
    placed = zip(places, outcome.results, strict=False)
    results = [_step(place, each, committed=outcome.success) for place, each in placed]
    reply = {"success": outcome.success, "transactionId": transaction_id, "results": results}
    if outcome.success:
        return reply
    errors = [each["error"] for each in results if each["error"]]
    return {**reply, "error": outcome.error or (errors[0] if errors else "Transaction failed")}


def _step(place: int, result: Result, *, committed: bool) -> Reply:
    if isinstance(result, Settled):
        found = msgspec.to_builtins(_settled(place, result))
        return {**found, "type": "ack", "success": committed and result.success}
    stored = committed and not result.refused
    return {
        "index": place,
        "type": "push",
        "success": stored,
        "transactionId": result.transaction_id,
        "messageId": result.message_id if stored else None,
        "partitionId": result.partition_id if stored else None,
        "queueName": result.queue,
        "error": result.refused or ("duplicate" if result.duplicate else None),
    }


def extended(result: Extended) -> ExtendedReply:
    """The result of renewing a lease."""
    expires_at = _time(result.expires_at)
    return ExtendedReply(result.success, result.lease_id, result.error or None, expires_at, expires_at)


# -- to operators


def partition(found: PartitionInfo) -> Reply:
    """One partition, and its message counts by state for the group that is furthest behind."""
    return {
        "id": found.id,
        "name": found.name,
        "createdAt": time_text(found.created_at),
        "lastSequence": found.last_sequence,
        "stats": stats([found]),
    }


def stats(partitions: Iterable[PartitionInfo | PartitionNumbers]) -> dict[str, int]:
    """Message counts by state, for the slowest group of each partition; without any group, all are pending."""
    total = dict.fromkeys(("total", "pending", "processing", "completed", "failed", "deadLetter"), 0)
    for each in partitions:
        total["total"] += each.messages
        if not each.progress:
            total["pending"] += each.messages
            continue
        every: Sequence[ProgressInfo | ProgressNumbers] = each.progress
        slowest = max(every, key=lambda progress: progress.pending + progress.leased)
        total["pending"] += slowest.pending
        total["processing"] += slowest.leased
        total["completed"] += slowest.completed
        total["deadLetter"] += slowest.dead
    return total


def group(found: GroupInfo) -> GroupReply:
    """One group of one queue."""
    state = "Lagging" if found.lag_seconds > LAGGING_SECONDS else "Stable"
    times = {"subscription_from": _time(found.subscription_from), "created_at": Time(found.created_at)}
    return copied(GroupReply, found, topics=[found.queue], state=state, **times)


def progress(name: str, found: ProgressInfo) -> Reply:
    """The progress of a group in one partition."""
    return {
        "partition": name,
        "cursor": found.cursor,
        "offsetLag": found.pending + found.leased,
        "timeLagSeconds": found.lag_seconds,
        "leaseActive": found.lease_id is not None,
        "workerId": found.lease_id,
        "leaseExpiresAt": time_text(found.lease_until),
        "totalConsumed": found.completed,
        "deadLetters": found.dead,
        "lastConsumedAt": time_text(found.last_consumed_at),
    }


def listed(found: Stored) -> dict[str, object]:
    """One message in a list."""
    consumed = sum(state in {State.COMPLETED, State.DEAD} for state in found.states.values())
    return {
        "id": found.id,
        "transactionId": found.transaction_id,
        "partitionId": found.partition_id,
        "queue": found.queue,
        "partition": found.partition,
        "queuePath": f"{found.queue}/{found.partition}",
        "status": _least_settled(found.states.values()),
        "groups": found.states,
        "busStatus": {"consumedBy": consumed, "totalGroups": len(found.states)},
        "scheduled": found.sequence is None,
        "sequence": found.sequence,
        "traceId": found.trace_id,
        "producerSub": found.producer,
        "retryCount": found.retries,
        "errorMessage": found.error,
        "leaseExpiresAt": time_text(found.lease_until),
        "createdAt": time_text(found.created_at),
    }


def message(found: Stored, options: object) -> Reply:
    """One message with all its details."""
    return {**listed(found), "queueConfig": options, **_members("payload", found.payload)}


def dead_letters(found: Sequence[DeadLetter], total: int, limit: int, offset: int) -> DeadLettersReply:
    """A page of dead letters with their payloads."""
    return DeadLettersReply(list(map(_dead_letter, found)), total, {"limit": limit, "offset": offset, "total": total})


def _dead_letter(found: DeadLetter) -> DeadLetterReply:
    times = {name: _time(getattr(found, name)) for name in ("created_at", "moved_at", "redriven_at")}
    data, encoding = _carried(found.payload)
    return copied(DeadLetterReply, found, **times, failed_at=times["moved_at"], data=data, data_encoding=encoding)


def _time(seconds: float | None) -> Time | None:
    return None if seconds is None else Time(seconds)


_NOT_REDRIVEN: Final = "no dead letter has this id, or it was redriven before"


def redriven(dead_letter_id: str, pushed: Pushed | None) -> Reply:
    """The result of pushing one dead letter again."""
    if pushed is None:
        return {"id": dead_letter_id, "redriven": False, "error": _NOT_REDRIVEN}
    if pushed.refused:
        return {"id": dead_letter_id, "redriven": False, "error": pushed.refused}
    ids = {"messageId": pushed.message_id, "transactionId": pushed.transaction_id}
    return {"id": dead_letter_id, "redriven": True, **ids}


def traces(found: Sequence[Trace]) -> Reply:
    """Notes, oldest first."""
    return {"traces": list(map(_trace, found)), "total": len(found)}


def _trace(found: Trace) -> Reply:
    return {
        "id": found.id,
        "transactionId": found.transaction_id,
        "partitionId": found.partition_id,
        "consumerGroup": found.group,
        "eventType": found.event,
        "traceNames": found.names,
        "createdAt": time_text(found.created_at),
        **_members("data", found.data),
    }


def _least_settled(states: Iterable[State]) -> State:
    """The least settled state among all groups; without any group, a message is pending."""
    order = (State.LEASED, State.PENDING, State.DEAD, State.COMPLETED)
    return min(states, key=order.index, default=State.PENDING)


def _members(name: str, payload: bytes | None) -> Reply:
    body, encoding = _carried(payload)
    return {name: body} | ({f"{name}Encoding": encoding} if encoding else {})


def _carried(payload: bytes | None) -> tuple[Raw, str]:
    """A payload in the form for a reply, and its encoding if it is not plain JSON."""
    if payload is None:
        return NULL, "encrypted"
    if is_json(payload):
        return Raw(payload), ABSENT
    return Raw(b'"%s"' % base64.b64encode(payload)), "base64"
