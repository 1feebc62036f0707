"""The texts of results and errors, shared by both engines: what a caller sees never depends on the database."""

from typing import Final

from pump.queue.errors import Conflict
from pump.queue.vocabulary import DeadLetter, Push, Pushed

FULL: Final = "queue is full"
TOO_MANY_PARTITIONS: Final = "queue has too many partitions"

ACKNOWLEDGED: Final = "acknowledged"
ALREADY_ACKNOWLEDGED: Final = "already_acknowledged"
RELEASED: Final = "released"
FAILED_RETRY: Final = "failed_retry"
FAILED_DEAD: Final = "failed_dlq"
INVALID_LEASE: Final = "invalid_lease"
NOT_FOUND: Final = "not_found"
ERRORS: Final = {INVALID_LEASE: "Invalid or expired lease", NOT_FOUND: "Message not found"}
"""The error text for each reason to refuse a settlement."""

LEASE_NOT_FOUND: Final = "Lease not found"
LEASE_EXPIRED: Final = "Lease already expired"

REDRIVEN: Final = "reprocess-"
"""The prefix of the transaction id of a dead letter that is pushed again."""


def push_refused(item: Push, transaction_id: str, partition_id: str, why: str) -> Pushed:
    """The result for an item that was not stored."""
    return Pushed(item.queue, item.partition, partition_id, "", transaction_id, refused=why, trace_id=item.trace_id)


def push_of(dead: DeadLetter, trace_id: str | None) -> Push:
    """The Push that stores a dead letter's message again."""
    if dead.payload is None:
        raise Conflict(f"dead letter {dead.id} is encrypted with a key that the server does not have")
    name = REDRIVEN + dead.transaction_id
    return Push(dead.queue, dead.payload, dead.partition, name, trace_id=trace_id, producer=dead.producer)
