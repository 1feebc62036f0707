"""The bodies of requests: the client writes them, the server reads them. null is the same as absent."""

import json
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import asdict

from pump.queue import limits
from pump.queue.errors import BadRequest
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import DEFAULT_GROUP, DEFAULT_PARTITION, Push, Settled, Settlement, Status, Step, Trace
from pump.queue.wire.json_body import ABSENT, NULL, Reader, payload_of
from pump.queue.wire.times import Time

Given = TypeVar("Given")

_LONGEST_SECONDS: Final = 100 * 365 * 86_400

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_LONGEST_SECONDS)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=limits.LARGEST_NUMBER)]
SettlementOrResult: TypeAlias = Settlement | Settled
"""A settlement to carry out, or the result of one that cannot be carried out."""

_STATUSES: Final = {each.value: each for each in Status} | {"success": Status.COMPLETED}


class PushItem(Struct, rename="camel", gc=False):
    """One message to store."""

    queue: Name
    partition: str | None = ABSENT
    transaction_id: str | None = ABSENT
    trace_id: str | None = ABSENT
    delay_seconds: Seconds | None = ABSENT
    not_before: Time | None = ABSENT
    payload: Raw = ABSENT
    data: Raw = ABSENT
    """The payload under the name that some clients have for it."""


class PushRequest(Struct):
    """`POST /api/v1/push`."""

    items: list[PushItem]


class AckRequest(Struct, rename="camel"):
    """`POST /api/v1/ack`, and one item of a batch."""

    transaction_id: Name
    partition_id: Name
    lease_id: str | None = ABSENT
    status: str | None = ABSENT
    consumer_group: str | None = ABSENT
    error: Raw = ABSENT
    delay_seconds: Seconds | None = ABSENT
    reason: str | None = ABSENT


class AckBatchRequest(Struct, rename="camel"):
    """`POST /api/v1/ack/batch`."""

    acknowledgments: list[AckRequest]
    consumer_group: str | None = ABSENT
    """The group of each settlement that names none."""


class PushOperation(Struct, tag_field="type", tag="push"):
    """Messages to store in a transaction."""

    items: list[PushItem]


class AckOperation(AckRequest, tag_field="type", tag="ack"):
    """A message to settle in a transaction."""


class TransactionRequest(Struct, rename="camel"):
    """`POST /api/v1/transaction`."""

    operations: list[PushOperation | AckOperation]
    required_leases: list[str] | None = ABSENT


class ExtendRequest(Struct):
    """`POST /api/v1/lease/:lease/extend`."""

    seconds: float | None = ABSENT


class OptionsRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """The options of a queue: `retryDelay` is in milliseconds, the other times are in seconds."""

    ordered: bool | None = ABSENT
    lease_time: Seconds | None = ABSENT
    retry_limit: Whole | None = ABSENT
    retry_delay: Annotated[float, Meta(ge=0, le=1000 * _LONGEST_SECONDS)] | None = ABSENT
    max_size: Whole | None = ABSENT
    ttl: Seconds | None = ABSENT
    priority: Whole | None = ABSENT
    dead_letter_queue: bool | None = ABSENT
    dead_letter_after_max_retries: bool | None = field(name="dlqAfterMaxRetries", default=ABSENT)
    delayed_processing: Seconds | None = ABSENT
    window_buffer: Seconds | None = ABSENT
    max_wait_time: Seconds | None = field(name="maxWaitTimeSeconds", default=ABSENT)
    retention_enabled: bool | None = ABSENT
    retention: Seconds | None = field(name="retentionSeconds", default=ABSENT)
    completed_retention: Seconds | None = field(name="completedRetentionSeconds", default=ABSENT)
    encryption: bool | None = field(name="encryptionEnabled", default=ABSENT)


class ConfigureRequest(Struct):
    """`POST /api/v1/configure`."""

    queue: Name
    namespace: str | None = ABSENT
    task: str | None = ABSENT
    options: OptionsRequest | None = ABSENT


class SeekRequest(Struct, rename="camel"):
    """`POST …/seek`."""

    to_end: bool | None = ABSENT
    timestamp: Time | None = ABSENT


class SubscriptionRequest(Struct, rename="camel"):
    """`POST /api/v1/consumer-groups/:group/subscription`."""

    subscription_timestamp: Time


class DeadLetterRequest(Struct, rename="camel"):
    """`POST /api/v1/messages/…/dlq`."""

    consumer_group: str | None = ABSENT
    error: Raw = ABSENT


class RedriveRequest(Struct):
    """`POST /api/v1/dlq/redrive`."""

    ids: list[str]


class TraceRequest(Struct, rename="camel"):
    """`POST /api/v1/traces`."""

    transaction_id: Name
    partition_id: Name
    data: Raw
    consumer_group: str | None = ABSENT
    event_type: str | None = ABSENT
    trace_names: str | list[str] | None = ABSENT


_MILLISECONDS: Final = 1000
_LEASE_TIME_OF_ZERO: Final = 60.0
_NO_QUEUE: Final = "Queue must be a string"
_NO_ITEMS: Final = "items array is required"
_NO_TARGET: Final = "Must specify either 'toEnd': true or 'timestamp'"
_NO_TIME: Final = "Missing subscriptionTimestamp in request body"
_NO_TRACED: Final = "transactionId and partitionId are required"
_ONE_ACK: Final = {
    "transactionId": "transactionId is required",
    "partitionId": "partitionId is required to ensure message uniqueness",
}
_EACH_ACK: Final = {
    "transactionId": "Each acknowledgment must have a valid transactionId string",
    "partitionId": "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
}

_PUSH: Final = Reader(
    PushRequest,
    {
        "items": _NO_ITEMS,
        "queue": _NO_QUEUE,
        "partition": "Partition must be a string",
        "transactionId": "TransactionId must be a string",
        "traceId": "TraceId must be a string",
    },
)
_ACK: Final = Reader(AckRequest, _ONE_ACK)
_ACK_BATCH: Final = Reader(AckBatchRequest, {"acknowledgments": "acknowledgments array is required", **_EACH_ACK})
_TRANSACTION: Final = Reader(
    TransactionRequest,
    {
        "operations": "operations array required",
        "type": "type must be push or ack",
        "items": _NO_ITEMS,
        "queue": _NO_QUEUE,
        **_ONE_ACK,
    },
)
_CONFIGURE: Final = Reader(
    ConfigureRequest,
    {"queue": "queue is required", "retryDelay": "retryDelay must be a number of milliseconds, 0 or more"},
)
_EXTEND: Final = Reader(ExtendRequest, may_be_empty=True)
_SEEK: Final = Reader(SeekRequest, {"toEnd": _NO_TARGET}, may_be_empty=True)
_SUBSCRIPTION: Final = Reader(SubscriptionRequest, {"subscriptionTimestamp": _NO_TIME}, may_be_empty=True)
_DEAD_LETTER: Final = Reader(DeadLetterRequest, may_be_empty=True)
_REDRIVE: Final = Reader(RedriveRequest, {"ids": "ids array is required"})
_TRACE: Final = Reader(
    TraceRequest,
    {
        "transactionId": _NO_TRACED,
        "partitionId": _NO_TRACED,
        "data": "data is required",
        "traceNames": "traceNames must be an array of strings",
    },
)


# -- read by the server


def pushes(body: bytes, producer: str | None) -> list[Push]:
    """All messages of a push."""
    return [_push(item, producer) for item in _PUSH.read(body).items]


def acknowledgement(body: bytes) -> SettlementOrResult:
    """One settlement."""
    return _settlement(_ACK.read(body))


def acknowledgements(body: bytes) -> list[SettlementOrResult]:
    """Several settlements, with one group for those that name none."""
    request, found = _ACK_BATCH.read(body), list[SettlementOrResult]()
    group = _group(request.consumer_group) or DEFAULT_GROUP
    try:
        for item in request.acknowledgments:
            found.append(_settlement(item, group))
    except BadRequest as wrong:
        raise BadRequest(f"{wrong} (acknowledgments[{len(found)}])") from None
    return found


def transaction(body: bytes, producer: str | None) -> tuple[Sequence[Step], Sequence[int], frozenset[str]]:
    """The steps of a transaction, the indexes of their operations, and the leases that it requires."""
    request = _TRANSACTION.read(body)
    if not request.operations:
        raise BadRequest("operations array cannot be empty")
    placed = [
        (place, step)
        for place, operation in enumerate(request.operations)
        for step in _steps(operation, f"operations[{place}]", producer)
    ]
    leases = _texts("requiredLeases", request.required_leases or [])
    return [step for _, step in placed], [place for place, _ in placed], frozenset(leases)


def configuration(body: bytes) -> tuple[ConfigureRequest, QueueOptions]:
    """The request to configure a queue, and all options; an option that it leaves out gets its default."""
    request = _CONFIGURE.read(body)
    for what, label in (("namespace", request.namespace), ("task", request.task)):
        if label:
            limits.check_name(what, label)
    return request, _options(request.options or OptionsRequest())


def _options(request: OptionsRequest) -> QueueOptions:
    given = {name: value for name, value in asdict(request).items() if value is not ABSENT and value is not None}
    if "lease_time" in given:
        given["lease_time"] = lease_seconds("leaseTime", given["lease_time"] or _LEASE_TIME_OF_ZERO)
    if "retry_delay" in given:
        given["retry_delay"] /= _MILLISECONDS
    return QueueOptions(**given)


def options_written(options: QueueOptions) -> OptionsRequest:
    """All options in their HTTP form."""
    values = {name: getattr(options, name) for name in OptionsRequest.__struct_fields__}
    values["retry_delay"] *= _MILLISECONDS
    whole = {name: int(value) for name, value in values.items() if isinstance(value, float) and value.is_integer()}
    return OptionsRequest(**{**values, **whole})


def seconds_to_extend(body: bytes) -> float | None:
    """How long a lease should last from now; None (also without a body) means its queue's lease time."""
    seconds = _given(_EXTEND.read(body).seconds)
    return None if seconds is None else lease_seconds("seconds", seconds)


def lease_seconds(what: str, seconds: float) -> float:
    """The seconds; BadRequest if no lease may last that long."""
    if not 0 < seconds <= limits.LONGEST_LEASE_SECONDS:
        raise BadRequest(f"{what} must be more than 0 and at most {limits.LONGEST_LEASE_SECONDS:.0f} seconds")
    return seconds


def seek_target(body: bytes) -> float | None:
    """Where a group has to go on: at a time, or with None at the end."""
    request = _SEEK.read(body)
    if not request.to_end and _given(request.timestamp) is None:
        raise BadRequest(_NO_TARGET)
    return None if request.to_end else request.timestamp


def subscription_time(body: bytes) -> float:
    """The time at which a group has to begin again."""
    return _SUBSCRIPTION.read(body).subscription_timestamp


def dead_letter(body: bytes) -> tuple[str | None, str]:
    """The group for which a message becomes a dead letter, None for all groups, and the error text."""
    request = _DEAD_LETTER.read(body)
    return _group(request.consumer_group), _error_text(request.error) or ""


def redrive_ids(body: bytes) -> Sequence[str]:
    """The dead letters to push again."""
    return _texts("ids", _REDRIVE.read(body).ids)


def trace(body: bytes) -> Trace:
    """A note about a message."""
    request = _TRACE.read(body)
    if request.data == NULL:
        raise BadRequest("data is required")
    names = request.trace_names or []
    note = Trace(
        transaction_id=request.transaction_id,
        partition_id=request.partition_id,
        data=payload_of(request.data),
        group=request.consumer_group or None,
        event=request.event_type or "info",
        names=[names] if isinstance(names, str) else names,
    )
    if len(note.data) > limits.LARGEST_PAYLOAD_BYTES:
        raise BadRequest(f"data must not be larger than {limits.LARGEST_PAYLOAD_BYTES} bytes")
    return note


def _push(item: PushItem, producer: str | None) -> Push:
    return Push(
        item.queue,
        payload_of(item.payload or item.data or NULL),
        item.partition or DEFAULT_PARTITION,
        item.transaction_id or "",
        _given(item.trace_id),
        item.not_before or 0.0,
        item.delay_seconds or 0.0,
        producer,
    )


def _settlement(item: AckRequest, group: str = DEFAULT_GROUP) -> SettlementOrResult:
    ids = item.transaction_id + item.partition_id + (item.lease_id or "")
    limits.check_text("transactionId, partitionId and leaseId", ids)
    status = _STATUSES.get(item.status or Status.COMPLETED)
    if status is None:
        error = f"Unknown status {item.status[:40]!r}" if item.status else ""
        return Settled(item.transaction_id, success=False, message="unknown_status", error=error)
    return Settlement(
        item.transaction_id,
        item.partition_id,
        item.lease_id or None,
        status,
        _group(item.consumer_group) or group,
        _error_text(item.error) if item.error else None,
        _given(item.delay_seconds),
        (limits.checked_text(item.reason) or "") if item.reason else "",
    )


def _steps(operation: PushOperation | AckOperation, where: str, producer: str | None) -> Sequence[Step]:
    if isinstance(operation, PushOperation):
        return [_push(item, producer) for item in operation.items]
    try:
        found = _settlement(operation)
    except BadRequest as wrong:
        raise BadRequest(f"{wrong} ({where})") from None
    if isinstance(found, Settled):
        raise BadRequest(f"{found.error} ({where})")
    return [found]


def _group(given: str | None) -> str | None:
    return limits.check_name("consumerGroup", given) if given else None


def _error_text(error: Raw) -> str | None:
    """A consumer's error as text. It may be any JSON: a wrong type must not prevent the settlement."""
    if not error or error == NULL:
        return None
    text = bytes(error).decode()
    return limits.checked_text(json.loads(text) if text.startswith('"') else text)


def _texts(name: str, texts: Sequence[str]) -> Sequence[str]:
    if len(texts) > limits.MOST_ITEMS:
        raise BadRequest(f"at most {limits.MOST_ITEMS} {name} at once")
    for each in texts:
        limits.check_text(name, each)
    return texts


def _given(value: Given | None) -> Given | None:
    return None if value is ABSENT else value
