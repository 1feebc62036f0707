"""What the queue says, as HTTP has it: members in camelCase, times in UTC with microseconds, payloads as they came."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from pump.queue.raw_json import is_json
from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    GroupInfo,
    Leased,
    PartitionInfo,
    ProgressInfo,
    Pushed,
    Result,
    Settled,
    State,
    Stored,
    Taken,
    Trace,
    Want,
)

Reply: TypeAlias = Mapping[str, object]

LAGGING_SECONDS: Final = 300.0

_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_INVALID: Final[Mapping[str, str]] = {
    "invalid_lease": "Invalid or expired lease",
    "not_found": "Message not found",
}


def dump(tree: object) -> bytes:
    """The body of a reply."""
    return _encode(tree).encode()


def time_text(seconds: float | None) -> str | None:
    """A time of the database as people and programs read it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# -- what producers and consumers are told


def pushed(results: Sequence[Pushed]) -> list[Reply]:
    """What became of each message, in order."""
    return [_pushed(index, each) for index, each in enumerate(results)]


def _pushed(index: int, result: Pushed) -> Reply:
    common = {"index": index, "transaction_id": result.transaction_id, "queueName": result.queue}
    if result.refused:
        return {**common, "status": "failed", "error": result.refused}
    found = {**common, "status": "duplicate" if result.duplicate else "queued", "message_id": result.message_id}
    if result.duplicate:
        return found
    scheduled = {"scheduled": True} if result.scheduled else {}
    return {**found, "partition_id": result.partition_id, "trace_id": result.trace_id, **scheduled}


def popped(want: Want, taken: Taken) -> bytes:
    """The reply to a consumer, with every payload as it was pushed."""
    first = taken.messages[0]
    lease_id = "" if want.auto_ack else taken.lease_id
    head = {
        "success": True,
        "queue": want.queue,
        "partition": first.partition,
        "partitionId": first.partition_id,
        "leaseId": lease_id,
        "expiresAt": None if want.auto_ack else time_text(taken.expires_at),
        "consumerGroup": want.group,
        "partitionsClaimed": taken.partitions,
    }
    messages = b",".join(_message(each, want) for each in taken.messages)
    return b'%s,"messages":[%s]}' % (dump(head)[:-1], messages)


def _message(message: Leased, want: Want) -> bytes:
    members = {
        "id": message.id,
        "transactionId": message.transaction_id,
        "traceId": message.trace_id,
        "producerSub": message.producer,
        "createdAt": time_text(message.created_at),
        "queue": message.queue,
        "partitionId": message.partition_id,
        "partition": message.partition,
        "leaseId": "" if want.auto_ack else message.lease_id,
        "consumerGroup": want.group,
        "sequence": message.sequence,
        "deliveries": message.deliveries,
        "retries": message.retries,
        "crashes": message.crashes,
    }
    return _with_payload(members, "data", message.payload)


def settled(results: Iterable[Settled]) -> list[Reply]:
    """What became of each settlement, in order."""
    return [_settled(index, each) for index, each in enumerate(results)]


def _settled(index: int, result: Settled) -> Reply:
    error = None if result.success else result.error or _INVALID.get(result.message, result.message)
    return {
        "index": index,
        "transactionId": result.transaction_id,
        "success": result.success,
        "message": result.message,
        "error": error,
        "queueName": result.queue,
        "partitionName": result.partition,
        "leaseReleased": result.lease_released,
        "dlq": result.dead,
    }


def committed(transaction_id: str, outcome: Committed, places: Sequence[int]) -> Reply:
    """What became of a transaction; where it was refused, nothing in it succeeded."""
    placed = zip(places, outcome.results, strict=False)
    results = [_step(place, each, committed=outcome.success) for place, each in placed]
    reply = {"success": outcome.success, "transactionId": transaction_id, "results": results}
    return reply if outcome.success else {**reply, "error": outcome.error or _first_error(results)}


def _step(place: int, result: Result, *, committed: bool) -> Reply:
    if isinstance(result, Settled):
        found = {**_settled(place, result), "type": "ack"}
        return found if committed else {**found, "success": False}
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


def _first_error(results: Sequence[Reply]) -> object:
    return next((each["error"] for each in results if each["error"]), "Transaction failed")


def extended(result: Extended) -> Reply:
    """What became of a wish to renew: one object, whatever came of it."""
    expires_at = time_text(result.expires_at)
    return {
        "leaseId": result.lease_id,
        "success": result.success,
        "error": result.error or None,
        "expiresAt": expires_at,
        "newExpiresAt": expires_at,
    }


# -- what operators are told


def partition(found: PartitionInfo) -> Reply:
    """One partition, and where its messages are for the group that is furthest behind."""
    return {
        "id": found.id,
        "name": found.name,
        "createdAt": time_text(found.created_at),
        "lastSequence": found.last_sequence,
        "stats": stats([found]),
    }


def stats(partitions: Iterable[PartitionInfo]) -> dict[str, int]:
    """How many messages are where, each partition seen by its slowest group; without any group all are pending."""
    total = dict.fromkeys(("total", "pending", "processing", "completed", "failed", "deadLetter"), 0)
    for each in partitions:
        total["total"] += each.messages
        if not each.progress:
            total["pending"] += each.messages
            continue
        slowest = max(each.progress, key=lambda progress: progress.pending + progress.leased)
        total["pending"] += slowest.pending
        total["processing"] += slowest.leased
        total["completed"] += slowest.completed
        total["deadLetter"] += slowest.dead
    return total


def group(found: GroupInfo) -> Reply:
    """One group of one queue."""
    lagging = found.lag_seconds > LAGGING_SECONDS
    return {
        "name": found.name,
        "queueName": found.queue,
        "topics": [found.queue],
        "members": found.partitions,
        "partitionsWithLag": found.partitions_with_lag,
        "totalLag": found.lag,
        "maxTimeLag": found.lag_seconds,
        "state": "Lagging" if lagging else "Stable",
        "subscriptionMode": found.subscription,
        "subscriptionTimestamp": time_text(found.subscription_from),
        "subscriptionCreatedAt": time_text(found.created_at),
    }


def progress(name: str, found: ProgressInfo) -> Reply:
    """How far a group is in one partition."""
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


def listed(found: Stored) -> Reply:
    """One message in a list."""
    consumed = sum(state in {State.COMPLETED, State.DEAD} for state in found.states.values())
    return {
        "id": found.id,
        "transactionId": found.transaction_id,
        "partitionId": found.partition_id,
        "queue": found.queue,
        "partition": found.partition,
        "queuePath": f"{found.queue}/{found.partition}",
        "status": _overall(found.states.values()),
        "groups": dict(found.states),
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


def message(found: Stored, options: Reply | None) -> bytes:
    """One message with all there is to know of it."""
    members = {**listed(found), "queueConfig": options}
    if found.payload is None:
        return dump({**members, "payload": None, "payloadEncoding": "encrypted"})
    return _with_payload(members, "payload", found.payload)


def dead_letters(found: Sequence[DeadLetter], total: int, limit: int, offset: int) -> bytes:
    """A page of dead letters with their payloads."""
    tail = {"total": total, "pagination": {"limit": limit, "offset": offset, "total": total}}
    return b'{"messages":[%s],%s' % (b",".join(map(_dead_letter, found)), dump(tail)[1:])


def _dead_letter(found: DeadLetter) -> bytes:
    members = {
        "id": found.id,
        "messageId": found.message_id,
        "transactionId": found.transaction_id,
        "partitionId": found.partition_id,
        "queue": found.queue,
        "partition": found.partition,
        "consumerGroup": found.group,
        "reason": found.reason,
        "errorMessage": found.error,
        "retryCount": found.retries,
        "crashes": found.crashes,
        "deliveries": found.deliveries,
        "producerSub": found.producer,
        "createdAt": time_text(found.created_at),
        "failedAt": time_text(found.moved_at),
        "movedToDlqAt": time_text(found.moved_at),
        "redrivenAt": time_text(found.redriven_at),
    }
    if found.payload is None:
        return dump({**members, "data": None, "dataEncoding": "encrypted"})
    return _with_payload(members, "data", found.payload)


def traces(found: Sequence[Trace]) -> bytes:
    """Notes, oldest first."""
    return b'{"traces":[%s],"total":%d}' % (b",".join(map(_trace, found)), len(found))


def _trace(found: Trace) -> bytes:
    members = {
        "id": found.id,
        "transactionId": found.transaction_id,
        "partitionId": found.partition_id,
        "consumerGroup": found.group,
        "eventType": found.event,
        "traceNames": list(found.names),
        "createdAt": time_text(found.created_at),
    }
    return _with_payload(members, "data", found.data)


def _overall(states: Iterable[State]) -> str:
    """The least settled state of all groups; without any group it is pending."""
    order = (State.LEASED, State.PENDING, State.DEAD, State.COMPLETED)
    return min(states, key=order.index, default=State.PENDING)


def _with_payload(members: Reply, name: str, payload: bytes) -> bytes:
    """The members and the payload as it is; one that is not JSON goes in base64, and says so."""
    if not is_json(payload):
        text = base64.b64encode(payload).decode()
        return dump({**members, name: text, f"{name}Encoding": "base64"})
    return b'%s,"%s":%s}' % (dump(members)[:-1], name.encode(), payload)
