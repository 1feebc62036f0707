"""The limits of names, ids, numbers and payloads; the arguments of every call are checked here first.

Text that passes can be stored unchanged by every database, so that no item can fail later.
"""

import unicodedata
import uuid
from collections.abc import Sequence
from typing import Final

from pump.queue.errors import BadRequest
from pump.queue.vocabulary import Filter, PopRequest, Push, Settlement, Step, Trace

LONGEST_NAME: Final = 255
LONGEST_ID_BYTES: Final = 255
"""Of a transaction id as UTF-8: an index must be able to hold it."""
LONGEST_ERROR: Final = 8192
"""Longer error texts are cut off."""
LARGEST_PAYLOAD_BYTES: Final = 1_000_000
MOST_QUEUES: Final = 1_000
"""The most queues that one call may push to."""
MOST_TRACE_NAMES: Final = 100
MOST_ITEMS: Final = 10_000
MOST_POPPED: Final = 10_000
MOST_PARTITIONS: Final = 100_000
"""The most partitions of one queue."""
LOOKED_AT_A_SECOND: Final = 20_000
"""How many messages that stay maintenance looks at a second, on average, to find settled ones among them."""
LARGEST_NUMBER: Final = 2**31 - 1
"""The largest count."""
FARTHEST_SECONDS: Final = 100_000_000_000.0
"""The longest duration, and the latest time since the epoch: a database can add two of them."""
LONGEST_LEASE_SECONDS: Final = 7 * 86_400.0
"""The longest lease. One that ends later than that from now dates from before the clock was put back: it is expired."""


def check_name(what: str, name: str) -> str:
    """The name; BadRequest, naming `what`, if it is wrong."""
    if not isinstance(name, str):
        raise BadRequest(f"{what} must be a string")
    if not name:
        raise BadRequest(f"{what} must not be empty")
    if len(name) > LONGEST_NAME:
        raise BadRequest(f"{what} must not be longer than {LONGEST_NAME} characters")
    check_text(what, name)
    return name


def check_text(what: str, text: str) -> None:
    """Refuse text that not every database can store: control characters and lone surrogates."""
    if text.isascii() and text.isprintable():
        return
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise BadRequest(f"{what} must not contain control characters")
    if not is_text(text):
        raise BadRequest(f"{what} must not contain lone surrogates")


def check_transaction_id(transaction_id: str) -> str:
    """The transaction id; BadRequest if it is wrong."""
    if not isinstance(transaction_id, str):
        raise BadRequest("TransactionId must be a string")
    if not transaction_id:
        raise BadRequest("TransactionId must not be empty")
    check_text("TransactionId", transaction_id)
    if len(transaction_id) * 4 > LONGEST_ID_BYTES and len(transaction_id.encode()) > LONGEST_ID_BYTES:
        raise BadRequest(f"TransactionId must not be longer than {LONGEST_ID_BYTES} bytes")
    return transaction_id


def is_text(text: str) -> bool:
    """Whether the text can be encoded: it has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def is_storable(text: str) -> bool:
    """Whether every database can store the text; if not, nothing can have this text as its name."""
    return is_text(text) and "\0" not in text


def uuid_or_none(text: str) -> str | None:
    """The text in the usual form of a UUID; None if it is no UUID."""
    try:
        return str(uuid.UUID(text))
    except (ValueError, AttributeError, TypeError):
        return None


def checked_text(text: str | None) -> str | None:
    """An error text that every database can store: cut off, and without characters that cannot be stored."""
    if text is None:
        return None
    return text[:LONGEST_ERROR].replace("\0", "�").encode("utf-8", "replace").decode()


def check_push(item: Push, largest: int = LARGEST_PAYLOAD_BYTES) -> None:
    """Refuse a Push that no queue can store."""
    check_name("Queue", item.queue)
    check_name("Partition", item.partition)
    if item.transaction_id:
        check_transaction_id(item.transaction_id)
    if item.trace_id is not None and uuid_or_none(item.trace_id) is None:
        raise BadRequest("TraceId must be a UUID")
    if item.producer is not None:
        check_name("Producer", item.producer)
    if not isinstance(item.payload, bytes):
        raise BadRequest("payload must be bytes")
    if len(item.payload) > largest:
        raise BadRequest(f"payload must not be larger than {largest} bytes")
    check_seconds("not_before", item.not_before)
    check_seconds("delay", item.delay)


def check_seconds(what: str, seconds: float) -> float:
    """The number; BadRequest if it is negative, no number or too large."""
    if not 0 <= seconds <= FARTHEST_SECONDS:
        raise BadRequest(f"{what} must be a number of seconds, from 0 to {FARTHEST_SECONDS:.0f}")
    return seconds


def check_count(what: str, number: int, least: int = 0) -> int:
    """The number; BadRequest if it is too small, or larger than a database can count."""
    if not least <= number <= LARGEST_NUMBER:
        raise BadRequest(f"{what} must be {least} or more, and at most {LARGEST_NUMBER}")
    return number


def check_steps(steps: Sequence[Step], largest: int = LARGEST_PAYLOAD_BYTES) -> None:
    """Refuse the whole call if it has too many items, or if one is wrong; the error says which."""
    if len(steps) > MOST_ITEMS:
        raise BadRequest(f"at most {MOST_ITEMS} items at once")
    if len(steps) > MOST_QUEUES and len({step.queue for step in steps if isinstance(step, Push)}) > MOST_QUEUES:
        raise BadRequest(f"at most {MOST_QUEUES} queues at once")
    for index, step in enumerate(steps):
        try:
            check_push(step, largest) if isinstance(step, Push) else check_settlement(step)
        except BadRequest as wrong:
            raise BadRequest(f"item {index}: {wrong}") from None


def check_settlement(settlement: Settlement) -> None:
    """Refuse wrong numbers. Unknown ids are not refused here: they get a result."""
    if settlement.delay is not None:
        check_seconds("delay", settlement.delay)
    if settlement.retries is not None:
        check_count("retries", settlement.retries)


def check_pop(request: PopRequest) -> None:
    """Refuse a PopRequest that no queue can answer."""
    check_name("Queue", request.queue)
    check_name("Consumer group", request.group)
    if request.partition is not None:
        check_name("Partition", request.partition)
    check_count("batch", request.limit, 1)
    check_count("partitions", request.partitions, 1)
    check_count("the largest reply", request.largest_reply)
    if request.retry_limit is not None:
        check_count("retry limit", request.retry_limit, -1)
    if request.lease_time is not None:
        check_seconds("lease time", request.lease_time)
    check_start(request.subscribe_from)


def check_start(start: float | str) -> None:
    """Refuse a value that is not a valid start of a group."""
    if isinstance(start, str):
        if start not in {"all", "new"}:
            raise BadRequest('a group starts at "all", "new" or a time')
    else:
        check_seconds("the time where a group starts", start)


def check_filter(which: Filter) -> None:
    """Refuse a filter with a wrong number, time or name."""
    check_count("limit", which.limit)
    check_count("offset", which.offset)
    for moment in (which.since, which.until):
        if moment is not None:
            check_seconds("a time", abs(moment))
    for name in (which.queue, which.partition, which.group):
        if name is not None:
            check_text("what is asked for", name)


def check_trace(trace: Trace) -> None:
    """Refuse a note that could not be found again."""
    check_transaction_id(trace.transaction_id)
    if uuid_or_none(trace.partition_id) is None:
        raise BadRequest("partitionId must be a UUID")
    check_name("eventType", trace.event)
    if len(trace.names) > MOST_TRACE_NAMES:
        raise BadRequest(f"at most {MOST_TRACE_NAMES} traceNames for one trace")
    for name in trace.names:
        check_name("traceNames", name)
    if trace.group is not None:
        check_name("Consumer group", trace.group)
