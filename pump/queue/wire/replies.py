"""What the queue says, as HTTP has it: members in camelCase, times in UTC with microseconds, payloads as they came."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from math import modf
from typing import Final, TypeAlias

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
from pump.queue.wire.raw_json import json_text

Reply: TypeAlias = Mapping[str, object]

LAGGING_SECONDS: Final = 300.0

_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_MICROSECONDS: Final = 1_000_000
_FLAGS: Final = ("false", "true")
_INVALID: Final[Mapping[str, str]] = {
    "invalid_lease": "Invalid or expired lease",
    "not_found": "Message not found",
}


def dump(tree: object) -> bytes:
    """The body of a reply."""
    return _encode(tree).encode()


def time_text(seconds: float | None) -> str | None:
    """A time of the database as people and programs read it."""
    return None if seconds is None else _time_text(seconds)


def _time_text(seconds: float) -> str:
    fraction, whole = modf(seconds)
    microseconds = round(fraction * 1e6)  # as datetime rounds
    if not 0 <= microseconds < _MICROSECONDS:
        whole, microseconds = whole + microseconds // _MICROSECONDS, microseconds % _MICROSECONDS
    return f"{_second_text(whole)}.{microseconds:06}Z"


@lru_cache(maxsize=1024)
def _second_text(whole: float) -> str:
    """Most times of one reply are of few seconds."""
    return datetime.fromtimestamp(whole, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


# -- what producers and consumers are told


def pushed(results: Sequence[Pushed]) -> bytes:
    """What became of each message, in order. What most are told is written by hand, as there are many."""
    return f"[{','.join(map(_pushed_text, range(len(results)), results))}]".encode()


def _pushed_text(index: int, result: Pushed) -> str:
    if result.refused or result.duplicate or result.scheduled:
        return _encode(_pushed(index, result))
    return (
        f'{{"index":{index},"transaction_id":{quoted(result.transaction_id)},"queueName":{_name(result.queue)},'
        f'"status":"queued","message_id":{quoted(result.message_id)},"partition_id":{_name(result.partition_id)},'
        f'"trace_id":{_optional(result.trace_id)}}}'
    )


def _pushed(index: int, result: Pushed) -> Reply:
    found: dict[str, object] = {
        "index": index,
        "transaction_id": result.transaction_id,
        "queueName": result.queue,
        "status": "failed" if result.refused else "duplicate" if result.duplicate else "queued",
    }
    if result.refused:
        found["error"] = result.refused
        return found
    found["message_id"] = result.message_id
    if not result.duplicate:
        found["partition_id"], found["trace_id"] = result.partition_id, result.trace_id
        if result.scheduled:
            found["scheduled"] = True
    return found


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
    messages = ",".join(_messages(taken.messages, want))
    return f'{_encode(head)[:-1]},"messages":[{messages}]}}'.encode()


def _messages(found: Sequence[Leased], want: Want) -> Iterator[str]:
    """Each in JSON, written by hand: there are many in a reply, and most of one is as in the one before."""
    place, common = None, ""
    for each in found:
        if place != (each.partition_id, each.lease_id):
            place, common = (each.partition_id, each.lease_id), _common(each, want)
        yield (
            f'{{"id":{quoted(each.id)},"transactionId":{quoted(each.transaction_id)},'
            f'"traceId":{_optional(each.trace_id)},"producerSub":{_optional(each.producer)},'
            f'"createdAt":"{_time_text(each.created_at)}",{common},"sequence":{each.sequence},'
            f'"deliveries":{each.deliveries},"retries":{each.retries},"crashes":{each.crashes},'
            f"{_carried('data', each.payload)}}}"
        )


def _common(message: Leased, want: Want) -> str:
    members = {
        "queue": message.queue,
        "partitionId": message.partition_id,
        "partition": message.partition,
        "leaseId": "" if want.auto_ack else message.lease_id,
        "consumerGroup": want.group,
    }
    return _encode(members)[1:-1]


def _optional(text: str | None) -> str:
    return "null" if text is None else quoted(text)


_name: Final = lru_cache(maxsize=1024)(quoted)
"""Of which there are few in one reply."""


def settled(results: Sequence[Settled]) -> bytes:
    """What became of each settlement, in order. What most are told is written by hand, as there are many."""
    return f"[{','.join(map(_settled_text, range(len(results)), results))}]".encode()


def _settled_text(index: int, result: Settled) -> str:
    if not result.success or result.queue is None or result.partition is None:
        return _encode(_settled(index, result))
    return (
        f'{{"index":{index},"transactionId":{quoted(result.transaction_id)},"success":true,'
        f'"message":{_name(result.message)},"error":null,"queueName":{_name(result.queue)},'
        f'"partitionName":{_name(result.partition)},"leaseReleased":{_FLAGS[result.lease_released]},'
        f'"dlq":{_FLAGS[result.dead]}}}'
    )


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
    return f"{_encode(members)[:-1]},{_carried(name, payload)}}}".encode()


def _carried(name: str, payload: bytes) -> str:
    """A member with the payload as it is; one that is not JSON goes in base64, and says so."""
    text = json_text(payload)
    if text is None:
        return f'"{name}":"{base64.b64encode(payload).decode()}","{name}Encoding":"base64"'
    return f'"{name}":{text}'
