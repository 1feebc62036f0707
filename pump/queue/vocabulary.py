"""The values that callers and the engines of the queue exchange; they have no behaviour.

Times are seconds since the epoch by the database's clock. Ids are strings. Nothing here knows JSON or SQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

DEFAULT_PARTITION: Final = "Default"
DEFAULT_GROUP: Final = "__QUEUE_MODE__"


class Status(StrEnum):
    """How a consumer settles a message that it has leased."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Counts as a retry; after the last one the message is a dead letter."""
    RETRY = "retry"
    """Given back; no attempt is counted. The pump's nack."""
    DEAD = "dlq"


class State(StrEnum):
    """The state of a message for one group; computed, never stored."""

    PENDING = "pending"
    LEASED = "processing"
    COMPLETED = "completed"
    DEAD = "dead_letter"


class Push(NamedTuple):
    """One message to store. The same transaction id in the same partition is the same message."""

    queue: str
    payload: bytes
    partition: str = DEFAULT_PARTITION
    transaction_id: str = ""
    """Generated if empty."""
    trace_id: str | None = None
    not_before: float = 0.0
    """When it is due; until then it is scheduled, and has no place in its partition."""
    delay: float = 0.0
    """The same, as seconds from now by the database's clock; the later of the two counts."""
    producer: str | None = None


class Pushed(NamedTuple):
    """The result of one Push."""

    queue: str
    partition: str
    partition_id: str
    message_id: str
    transaction_id: str
    duplicate: bool = False
    """The message was stored before; `message_id` is the id of that stored message."""
    refused: str = ""
    """Why it was not stored, such as "queue is full"; there is no message id then."""
    scheduled: bool = False
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRequest:
    """A consumer's request for messages."""

    queue: str
    partition: str | None = None
    """None means the partition that has waited longest."""
    group: str = DEFAULT_GROUP
    limit: int = 1
    partitions: int = 1
    """The most partitions to take from, all under one lease; `limit` is for all of them together."""
    lease_time: float | None = None
    """None means the lease time of the queue."""
    auto_ack: bool = False
    subscribe_from: float | str = "all"
    """Where a new group starts: "all", "new", or a time. A group that exists keeps its progress."""
    ordered: bool | None = None
    """The mode, if this request creates the queue or is its first consumer; otherwise another mode is a Conflict."""
    retry_limit: int | None = -1
    """-1 means the queue's limit; None means that the consumer itself decides when to give a message up."""
    create_group: bool = True
    largest_reply: int = 10_000_000
    """In bytes of payload; the first message may be larger."""


class Leased(NamedTuple):
    """One message that a consumer has leased."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    payload: bytes
    created_at: float
    sequence: int
    deliveries: int
    """The number of deliveries, this one included."""
    retries: int
    crashes: int
    lease_id: str
    trace_id: str | None = None
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class PopResult:
    """The answer to a PopRequest."""

    messages: Sequence[Leased] = ()
    lease_id: str = ""
    expires_at: float = 0.0
    partitions: int = 0
    why_empty: str = ""
    """"no_available_partition", "lease_held", "partition_not_found" or "window_buffer"."""
    due_in: float | None = None
    """If nothing is ready: the seconds until a delay or a lease ends and something is ready for this group."""


class Settlement(NamedTuple):
    """How a consumer settles one message."""

    transaction_id: str
    partition_id: str
    lease_id: str | None = None
    """Required, unless the engine is lenient or one of the transaction's `leases` covers the message."""
    status: Status = Status.COMPLETED
    group: str = DEFAULT_GROUP
    error: str | None = None
    delay: float | None = None
    """Seconds until it is due again. None means for FAILED the queue's retry delay, and for RETRY at once."""
    reason: str = ""
    """For DEAD: the kind of reason, stored beside the error."""
    retries: int | None = None
    """For FAILED: the number of retries to store, if the consumer does the counting."""


class Settled(NamedTuple):
    """The result of one Settlement."""

    transaction_id: str
    success: bool
    message: str
    """One of: acknowledged, already_acknowledged, failed_retry, failed_dlq, released, invalid_lease, not_found."""
    error: str | None = None
    queue: str | None = None
    partition: str | None = None
    lease_released: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Extended:
    """The result of renewing a lease."""

    lease_id: str
    success: bool
    expires_at: float | None = None
    error: str = ""
    """Empty, "Lease not found" or "Lease already expired"."""


Step: TypeAlias = Push | Settlement
Result: TypeAlias = Pushed | Settled


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a transaction: all steps were carried out or, with `success` False, none."""

    success: bool
    results: Sequence[Result]
    error: str = ""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue, its partitions and its groups."""

    id: str
    name: str
    namespace: str
    task: str
    ordered: bool | None
    """None while nobody has consumed from it."""
    created_at: float
    partitions: Sequence["PartitionInfo"] = ()
    groups: Sequence["GroupInfo"] = ()


class ProgressNumbers(NamedTuple):
    """The messages of a partition for one group, counted by state."""

    pending: int
    leased: int
    completed: int
    dead: int


class PartitionNumbers(NamedTuple):
    """The number of messages in a partition, and for each group their number by state."""

    messages: int
    progress: Sequence[ProgressNumbers]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition, its number of messages, and the progress of every group in it."""

    id: str
    name: str
    messages: int
    last_sequence: int
    created_at: float
    progress: Sequence["ProgressInfo"] = ()


@dataclass(frozen=True, slots=True)
class ProgressInfo:
    """The progress of one group in one partition. `cursor` never passes a message that is not settled."""

    group: str
    cursor: int
    pending: int
    leased: int
    completed: int
    """In total, including messages that retention has removed."""
    dead: int
    lag_seconds: float
    lease_id: str | None
    lease_until: float | None
    last_consumed_at: float | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One consumer group of one queue."""

    name: str
    queue: str
    partitions: int
    partitions_with_lag: int
    lag: int
    lag_seconds: float
    subscription: str
    """ "all", "new" or "timestamp"."""
    subscription_from: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored message as an operator sees it, with its state for each group."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    payload: bytes | None
    """None in lists, and if it is encrypted with a key that is missing here."""
    created_at: float
    sequence: int | None
    """None while it is scheduled."""
    trace_id: str | None
    producer: str | None
    states: dict[str, State] = field(default_factory=dict)
    retries: int = 0
    error: str | None = None
    lease_until: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that one group has given up; it outlives its queue."""

    id: str
    """The id of the dead letter, not of the message."""
    message_id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    group: str
    payload: bytes | None
    reason: str
    error: str
    retries: int
    crashes: int
    deliveries: int
    producer: str | None
    created_at: float
    moved_at: float
    redriven_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which stored messages or dead letters to list; None means any."""

    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    state: State | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A note about a message."""

    transaction_id: str
    partition_id: str
    data: bytes
    """JSON."""
    group: str | None = None
    event: str = "info"
    names: Sequence[str] = ()
    id: str = ""
    created_at: float = 0.0
