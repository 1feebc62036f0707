"""What requests say, in the queue's own words. What is built wrongly is a BadRequest; null is the same as absent."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

from pump.queue import limits as names
from pump.queue.errors import BadRequest
from pump.queue.vocabulary import (
    DEFAULT_GROUP,
    DEFAULT_PARTITION,
    Filter,
    Push,
    Settled,
    Settlement,
    State,
    Status,
    Step,
    Trace,
    Want,
)
from pump.queue.wire.plain_pushes import plain_pushes
from pump.queue.wire.raw_json import Raw, parse

Members: TypeAlias = Mapping[str, object]
Asked: TypeAlias = Settlement | Settled
"""A settlement to carry out, or the answer to one that says nothing that could be."""

LONGEST_WAIT_SECONDS: Final = 3600.0
DEFAULT_WAIT_SECONDS: Final = 30.0
MOST_LISTED: Final = 1000

_PAYLOADS: Final = frozenset({"payload", "data"})
_DATA: Final = frozenset({"data"})
_NULL: Final = Raw("null")
_MOST_QUERY_FIELDS: Final = 50
_MOST_SECONDS: Final = 100 * 365 * 86_400
_ACK_PARTITION: Final = "partitionId is required to ensure message uniqueness"
_BATCH_TRANSACTION: Final = "Each acknowledgment must have a valid transactionId string"
_BATCH_PARTITION: Final = "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
_ORDINARY: Final = {"transactionId", "partitionId", "leaseId", "status"}
_STATUSES: Final[Mapping[str, Status]] = {
    "completed": Status.COMPLETED,
    "success": Status.COMPLETED,
    "failed": Status.FAILED,
    "retry": Status.RETRY,
    "dlq": Status.DEAD,
}


# -- pushes, settlements and transactions


def pushes(body: bytes, producer: str | None) -> Sequence[Push]:
    """All messages of a push, or nothing but why not, with the place of the first that is wrong."""
    plain = plain_pushes(body, producer)
    return pushes_by_member(body, producer) if plain is None else plain


def pushes_by_member(body: bytes, producer: str | None) -> Sequence[Push]:
    """The same, whatever the body."""
    items = _list(_object(body, _PAYLOADS), "items", "items array is required")
    _few(items)
    return [_push(item, index, "items", producer) for index, item in enumerate(items)]


def acknowledgement(body: bytes) -> Asked:
    """One settlement."""
    members = _object(body)
    return _settlement(members, "transactionId is required", _ACK_PARTITION, _group(members))


def acknowledgements(body: bytes) -> Sequence[Asked]:
    """Several, with one group for those that name none."""
    members = _object(body)
    items = _list(members, "acknowledgments", "acknowledgments array is required")
    _few(items)
    group = _group(members) if items else DEFAULT_GROUP
    return [_ordinary(item, group) or _numbered_settlement(item, index, group) for index, item in enumerate(items)]


def _ordinary(item: object, group: str) -> Settlement | None:
    """A settlement as most clients write it: four plain texts, and nothing else; None where it may be otherwise."""
    if not isinstance(item, dict) or item.keys() != _ORDINARY:
        return None
    transaction_id, partition_id, lease_id = item["transactionId"], item["partitionId"], item["leaseId"]
    if not (isinstance(transaction_id, str) and isinstance(partition_id, str) and isinstance(lease_id, str)):
        return None
    texts, status = transaction_id + partition_id + lease_id, item["status"]
    if not (transaction_id and partition_id and lease_id and texts.isascii() and texts.isprintable()):
        return None
    known = _STATUSES.get(status) if isinstance(status, str) else None
    return None if known is None else Settlement(transaction_id, partition_id, lease_id, known, group)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Steps that belong together; `places` says of which operation each is one."""

    steps: Sequence[Step]
    places: Sequence[int]
    leases: frozenset[str]


def transaction(body: bytes, producer: str | None) -> Transaction:
    """All operations of a transaction."""
    members = _object(body, _PAYLOADS)
    operations = _list(members, "operations", "operations array required")
    if not operations:
        raise BadRequest("operations array cannot be empty")
    placed = [
        (place, step)
        for place, operation in enumerate(operations)
        for step in _steps(operation, f"operations[{place}]", producer)
    ]
    _few(placed)
    leases = _strings(members, "requiredLeases")
    return Transaction([step for _, step in placed], [place for place, _ in placed], frozenset(leases))


def seconds_to_extend(body: bytes) -> float | None:
    """How long a lease is to last from now; None, also without any body, is its queue's own time."""
    if not body.strip():
        return None
    seconds = _number(_object(body), "seconds")
    return None if seconds is None else lease_seconds("seconds", seconds)


def lease_seconds(what: str, seconds: float) -> float:
    """So long a lease may last."""
    if not 0 < seconds <= names.LONGEST_LEASE_SECONDS:
        raise BadRequest(f"{what} must be more than 0 and at most {names.LONGEST_LEASE_SECONDS:.0f} seconds")
    return seconds


def _push(item: object, index: int, where: str, producer: str | None) -> Push:
    members = _an_object(item, where, index)
    try:
        push = Push(
            _needed(members, "queue", "Queue must be a string"),
            _payload(members),
            _string(members, "partition", "Partition must be a string") or DEFAULT_PARTITION,
            _string(members, "transactionId", "TransactionId must be a string") or "",
            _string(members, "traceId", "TraceId must be a string"),
            _moment(members, "notBefore") or 0.0,
            _number(members, "delaySeconds") or 0.0,
            producer,
        )
        names.check_push(push)
    except BadRequest as wrong:
        raise BadRequest(f"{wrong} ({where}[{index}])") from None
    return push


def _payload(members: Members) -> bytes:
    raw = members.get("payload", members.get("data", _NULL))
    return raw.body if isinstance(raw, Raw) else b"null"


def _settlement(members: Members, no_transaction: str, no_partition: str, group: str) -> Asked:
    transaction_id, partition_id = _needed(members, "transactionId", no_transaction), members.get("partitionId")
    if not isinstance(partition_id, str) or not partition_id:
        raise BadRequest(no_partition)
    for name in ("transactionId", "partitionId", "leaseId"):
        names.check_text(name, str(members.get(name)))
    word = _string(members, "status", "status must be a string") or Status.COMPLETED
    if word not in _STATUSES:
        return Settled(transaction_id, success=False, message="unknown_status", error=f"Unknown status {word[:40]!r}")
    settlement = Settlement(
        transaction_id,
        partition_id,
        _string(members, "leaseId", "leaseId must be a string") or None,
        _STATUSES[word],
        group,
        _error_text(members.get("error")),
        _number(members, "delaySeconds"),
        names.checked_text(_string(members, "reason", "reason must be a string")) or "",
    )
    names.check_settlement(settlement)
    return settlement


def _numbered_settlement(item: object, index: int, group: str) -> Asked:
    where = f"acknowledgments[{index}]"
    members = _an_object(item, where)
    try:
        return _settlement(members, _BATCH_TRANSACTION, _BATCH_PARTITION, _group(members, group))
    except BadRequest as wrong:
        raise BadRequest(f"{wrong} ({where})") from None


def _steps(operation: object, where: str, producer: str | None) -> Sequence[Step]:
    members = _an_object(operation, where)
    kind = members.get("type")
    if kind == "push":
        items = _list(members, "items", f"items array is required ({where})")
        return [_push(item, index, f"{where}.items", producer) for index, item in enumerate(items)]
    if kind != "ack":
        raise BadRequest(f"type must be push or ack ({where})")
    try:
        return [_sensible(_settlement(members, "transactionId is required", _ACK_PARTITION, _group(members)))]
    except BadRequest as wrong:
        raise BadRequest(f"{wrong} ({where})") from None


def _sensible(asked: Asked) -> Settlement:
    """In a transaction there is nothing else to carry out instead."""
    if isinstance(asked, Settled):
        raise BadRequest(asked.error or asked.message)
    return asked


def _group(members: Members, otherwise: str = DEFAULT_GROUP) -> str:
    group = _string(members, "consumerGroup", "consumerGroup must be a string")
    return names.check_name("consumerGroup", group) if group else otherwise


def _error_text(value: object) -> str | None:
    """Whatever a consumer says went wrong: it is for people, and must not keep its message from being settled."""
    if value is None or isinstance(value, str):
        return names.checked_text(value)
    return names.checked_text(json.dumps(value))


# -- what is asked in a URL


def segment(text: str) -> str:
    """One part of a path as it was meant."""
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
    names.check_text("the path", decoded)
    return decoded


def query(text: bytes) -> dict[str, str]:
    """What stands behind the question mark; what is given without a value is absent."""
    try:
        pairs = parse_qsl(text.decode(), errors="strict", max_num_fields=_MOST_QUERY_FIELDS)
    except ValueError:  # a UnicodeDecodeError is one
        raise BadRequest("the query is not UTF-8, or has too many fields") from None
    for name, value in pairs:
        names.check_text(name[:40], value)
    return dict(pairs)


def want(queue: str, partition: str | None, asked: Mapping[str, str], *, create_group: bool) -> Want:
    """What a consumer asks for."""
    found = Want(
        queue=queue,
        partition=partition,
        group=asked.get("consumerGroup", DEFAULT_GROUP),
        limit=min(whole(asked, "batch", 1, least=1), names.MOST_POPPED),
        partitions=min(whole(asked, "partitions", 1, least=1), names.MOST_POPPED),
        auto_ack=flag(asked, "autoAck"),
        subscribe_from=_subscription(asked),
        create_group=create_group,
    )
    names.check_want(found)
    return found


def wait_seconds(asked: Mapping[str, str]) -> float:
    """How long a consumer is willing to wait; 0 where it is not."""
    milliseconds = whole(asked, "timeout", int(DEFAULT_WAIT_SECONDS * 1000))
    return min(milliseconds / 1000, LONGEST_WAIT_SECONDS) if flag(asked, "wait") else 0.0


def selection(asked: Mapping[str, str], default_limit: int) -> Filter:
    """Which messages or dead letters to list."""
    return Filter(
        queue=asked.get("queue"),
        partition=asked.get("partition"),
        group=asked.get("consumerGroup"),
        state=_state(asked.get("status")),
        since=_asked_moment(asked, "from"),
        until=_asked_moment(asked, "to"),
        limit=min(whole(asked, "limit", default_limit), MOST_LISTED),
        offset=whole(asked, "offset", 0),
    )


def whole(asked: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    """A whole number, not too small."""
    text = asked.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(2**53)) or int(text) < least:
        raise BadRequest(f"{name} must be a whole number, {least} or more")
    return int(text)


def flag(asked: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """A yes or a no."""
    if name not in asked:
        return default
    answer = {"true": True, "1": True, "false": False, "0": False}.get(asked[name].lower())
    if answer is None:
        raise BadRequest(f"{name} must be true or false")
    return answer


def _subscription(asked: Mapping[str, str]) -> float | str:
    start = asked.get("subscriptionFrom")
    if start is not None:
        return "new" if start == "now" else moment("subscriptionFrom", start)
    mode = asked.get("subscriptionMode", "all")
    if mode not in {"all", "new", "new-only"}:
        raise BadRequest("subscriptionMode must be all or new")
    return mode.removesuffix("-only")


def _state(word: str | None) -> State | None:
    if word is None:
        return None
    try:
        return State(word)
    except ValueError:
        raise BadRequest(f"status must be one of {', '.join(State)}") from None


def _asked_moment(asked: Mapping[str, str], name: str) -> float | None:
    return moment(name, asked[name]) if name in asked else None


# -- what operators say


def seek_target(body: bytes) -> float | None:
    """Where a group is to go on: at a time, or with None at the end."""
    members = _object(body) if body.strip() else {}
    if members.get("toEnd") is True:
        return None
    target = _moment(members, "timestamp")
    if target is None:
        raise BadRequest("Must specify either 'toEnd': true or 'timestamp'")
    return target


def burial(body: bytes) -> tuple[str | None, str]:
    """For which group a message is given up, None for all, and why; there may be no body."""
    members = _object(body) if body.strip() else {}
    return _group(members, "") or None, _error_text(members.get("error")) or ""


def subscription_time(body: bytes) -> float:
    """Where a group is to begin again."""
    target = _moment(_object(body) if body.strip() else {}, "subscriptionTimestamp")
    if target is None:
        raise BadRequest("Missing subscriptionTimestamp in request body")
    return target


def trace(body: bytes) -> Trace:
    """A note about a message."""
    members = _object(body, _DATA)
    if not isinstance(members.get("transactionId"), str) or not isinstance(members.get("partitionId"), str):
        raise BadRequest("transactionId and partitionId are required")
    data = members.get("data")
    if not isinstance(data, Raw) or data == _NULL:
        raise BadRequest("data is required")
    filed = members.get("traceNames")
    note = Trace(
        transaction_id=_needed(members, "transactionId", ""),
        partition_id=_needed(members, "partitionId", ""),
        data=data.body,
        group=_string(members, "consumerGroup", "consumerGroup must be a string"),
        event=_string(members, "eventType", "eventType must be a string") or "info",
        names=[filed] if isinstance(filed, str) else _strings(members, "traceNames"),
    )
    names.check_trace(note)
    if len(note.data) > names.LARGEST_PAYLOAD_BYTES:
        raise BadRequest(f"data must not be larger than {names.LARGEST_PAYLOAD_BYTES} bytes")
    return note


def ids(body: bytes) -> Sequence[str]:
    """The dead letters that are meant."""
    members = _object(body)
    if not isinstance(members.get("ids"), list):
        raise BadRequest("ids array is required")
    return _strings(members, "ids")


# -- single members


def members_of(body: bytes) -> Members:
    """The members of a body that has to be an object."""
    return _object(body)


def moment(what: str, text: str) -> float:
    """The time that a text names; without an offset it is UTC."""
    try:
        read = datetime.fromisoformat(text)
        found = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{what} must be a time such as 2026-01-31T12:00:00Z") from None
    return names.check_seconds(what, found)


def _object(body: bytes, carried: frozenset[str] = frozenset()) -> Members:
    return _an_object(parse(body, carried), "the body")


def _an_object(value: object, where: str, index: int | None = None) -> Members:
    if not isinstance(value, dict):
        raise BadRequest(f"{where if index is None else f'{where}[{index}]'} must be an object")
    return value


def _list(members: Members, name: str, refusal: str) -> Sequence[object]:
    value = members.get(name)
    if not isinstance(value, list):
        raise BadRequest(refusal)
    return value


def _few(items: Sequence[object]) -> None:
    names.check_number(items)


def _string(members: Members, name: str, refusal: str) -> str | None:
    value = members.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(refusal)
    return value


def _needed(members: Members, name: str, refusal: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(refusal)
    return value


def _strings(members: Members, name: str) -> Sequence[str]:
    value = members.get(name)
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadRequest(f"{name} must be an array of strings")
    for each in found:
        names.check_text(name, each)
    return found


def _number(members: Members, name: str) -> float | None:
    value = members.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        raise BadRequest(f"{name} must be a number of seconds, 0 or more")
    return float(value)


def _moment(members: Members, name: str) -> float | None:
    value = _string(members, name, f"{name} must be a string")
    return None if value is None else moment(name, value)
