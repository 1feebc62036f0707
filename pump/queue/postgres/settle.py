"""Settling leased messages: one statement for all completions, another for the other settlements."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

from pump.queue.limits import checked_text, is_storable, uuid_or_none
from pump.queue.postgres.work import PostgresWork
from pump.queue.results import (
    ACKNOWLEDGED,
    ALREADY_ACKNOWLEDGED,
    ERRORS,
    FAILED_DEAD,
    FAILED_RETRY,
    INVALID_LEASE,
    LEASE_EXPIRED,
    LEASE_NOT_FOUND,
    NOT_FOUND,
    RELEASED,
)
from pump.queue.vocabulary import Extended, Settled, Settlement, Status

LEASE_ENDED: Final = 16
"""Added to the code of a settlement whose lease ended."""
MESSAGES: Final = (
    ACKNOWLEDGED, ALREADY_ACKNOWLEDGED, INVALID_LEASE, NOT_FOUND, FAILED_RETRY, FAILED_DEAD, RELEASED,
)  # fmt: skip
"""The message for each code that the database returns."""


class SettleOutcome(NamedTuple):
    """The outcome of one settlement."""

    message: str
    lease_ended: bool = False
    queue: str | None = None
    partition: str | None = None


def settle_messages(
    work: PostgresWork, settlements: Sequence[Settlement], leases: frozenset[str] = frozenset(), *, benign: bool = True
) -> list[Settled]:
    """Carry out each settlement; `benign` says whether completing a completed message counts as a success."""
    outcomes: dict[int, SettleOutcome] = {}
    batches = list(batches_of(settlements))
    with work.together() if len(batches) > 1 else nullcontext():
        for indexes, completes in batches:
            items = [settlements[index] for index in indexes]
            outcomes.update(zip(indexes, carried_out(work, items, leases, completes=completes), strict=True))
    ended = [settlements[index] for index, outcome in outcomes.items() if outcome.lease_ended]
    released = {(each.group, each.partition_id) for each in ended}
    return [
        result(each, outcomes.get(index, NOWHERE), benign=benign, released=(each.group, each.partition_id) in released)
        for index, each in enumerate(settlements)
    ]


NOWHERE: Final = SettleOutcome(NOT_FOUND)


def batches_of(settlements: Sequence[Settlement]) -> Iterator[tuple[Sequence[int], bool]]:
    """The batches, each for one group and one statement: the indexes in it, and whether all of them complete.

    If a message is settled twice, all settlements of its group stay in order: the first decides if the second is valid.
    """
    bundles: dict[tuple[str, bool], list[int]] = {}
    seen: set[tuple[str, str, str]] = set()
    twice: set[str] = set()
    uids = {uid for uid in {each.partition_id for each in settlements} if uuid_or_none(uid) is not None}
    groups = {group for group in {each.group for each in settlements} if is_storable(group)}
    for index, each in enumerate(settlements):
        if each.partition_id not in uids or each.group not in groups or not is_storable(each.transaction_id):
            continue
        message = (each.group, each.partition_id, each.transaction_id)
        if message in seen:
            twice.add(each.group)
        seen.add(message)
        bundles.setdefault((each.group, each.status is Status.COMPLETED), []).append(index)
    for group in sorted(twice):
        yield sorted(bundles.pop((group, True), []) + bundles.pop((group, False), [])), False
    # Completions go first: other settlements may end the same lease.
    for group, completes in sorted(bundles, key=lambda key: (not key[1], key[0])):
        yield bundles[group, completes], completes


def carried_out(
    work: PostgresWork, items: Sequence[Settlement], leases: frozenset[str], *, completes: bool
) -> Iterator[SettleOutcome]:
    """Carry out one statement; yields the outcome of each settlement."""
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(item.partition_id for item in items), 1)}
    values: list[object] = [
        items[0].group,
        list(numbers),
        [numbers[item.partition_id] for item in items],
        [item.transaction_id for item in items],
        lease_ids(items),
    ]
    if not completes:
        values += [
            [item.status.value for item in items],
            [None if item.delay is None else float(item.delay) for item in items],
            [checked_text(item.error) for item in items],
            [checked_text(item.reason) for item in items],
            [item.retries for item in items],
        ]
    values += [[lease for lease in leases if uuid_or_none(lease)], work.lenient and not leases, work.offset]
    ((codes, queues, names),) = work.rows(COMPLETE if completes else SETTLE, *values)
    known: dict[tuple[int, int], SettleOutcome] = {}  # most outcomes of a call are equal
    for item, code in zip(items, codes, strict=True):
        place = numbers[item.partition_id] - 1
        outcome = known.get((code, place))
        if outcome is None:
            message = MESSAGES[code % LEASE_ENDED]
            outcome = SettleOutcome(message, code >= LEASE_ENDED, queues[place], names[place])
            outcome = known[code, place] = NOWHERE if message == NOT_FOUND else outcome
            if outcome.queue and (outcome.lease_ended or outcome.message in {FAILED_RETRY, RELEASED}):
                work.changed.add(outcome.queue)
        yield outcome


def lease_ids(items: Sequence[Settlement]) -> list[str | None]:
    """The lease id of each settlement; a text that is no UUID becomes an id that no lease has."""
    given = {item.lease_id for item in items}
    known = {lease: None if lease is None else uuid_or_none(lease) or NO_SUCH_LEASE for lease in given}
    return [known[item.lease_id] for item in items]


NO_SUCH_LEASE: Final = "00000000-0000-0000-0000-000000000000"


def result(each: Settlement, outcome: SettleOutcome, *, benign: bool, released: bool) -> Settled:
    """The result that the caller gets for an outcome."""
    message = outcome.message
    if message == ALREADY_ACKNOWLEDGED and not benign:
        message = INVALID_LEASE
    success = message not in ERRORS
    return Settled(
        each.transaction_id, success, message, ERRORS.get(message), outcome.queue, outcome.partition,
        released and success and message != ALREADY_ACKNOWLEDGED, message == FAILED_DEAD,
    )  # fmt: skip


def extend_lease(work: PostgresWork, lease_id: str, seconds: float | None) -> Extended:
    """Extend a lease to end no earlier than `seconds` from now; None means the lease time of its queue."""
    rows = work.rows(EXTEND, lease_id, seconds, work.offset) if uuid_or_none(lease_id) else []
    if not rows:
        return Extended(lease_id, success=False, error=LEASE_NOT_FOUND)
    if rows[0][0] is None:
        return Extended(lease_id, success=False, error=LEASE_EXPIRED)
    return Extended(lease_id, success=True, expires_at=rows[0][0])


COMPLETE: Final = (
    "select * from message_pump.complete(%s::text, %b::text[]::uuid[], %b::integer[], %b::text[], %b::text[]::uuid[],"
    " %s::text[]::uuid[], %s::boolean, %s::float8)"
)
SETTLE: Final = (
    "select * from message_pump.settle(%s::text, %s::text[]::uuid[], %s::integer[], %s::text[], %s::text[]::uuid[],"
    " %s::text[], %s::float8[], %s::text[], %s::text[], %s::integer[], %s::text[]::uuid[], %s::boolean, %s::float8)"
)
EXTEND: Final = "select * from message_pump.extend(%s::text::uuid, %s::float8, %s::float8)"
