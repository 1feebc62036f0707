"""Settling leased messages. A consumer without a live lease changes nothing."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pump.queue.limits import LONGEST_LEASE_SECONDS, checked_text, is_text
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
from pump.queue.sqlite.dead_letters import BY_CONSUMER, MAX_RETRIES, Cause, insert_dead
from pump.queue.sqlite.pop import exceeds
from pump.queue.sqlite.progress import Progress, has_open, is_leased, progress_of, release, update_ready
from pump.queue.sqlite.work import Partition, Queue, SqliteWork
from pump.queue.vocabulary import Extended, Settled, Settlement, Status

AT_ONCE: Final = 0.0
"""A due time in the past on any clock."""


class DeliveryRow(NamedTuple):
    """A message and its delivery to one group; only `seq` is set if it was never handed out or is settled."""

    seq: int
    delivered_seq: int | None
    lease_id: str | None
    visible_at: float | None
    deliveries: int
    retries: int
    crashes: int
    budget: int | None


def settle_messages(
    work: SqliteWork, settlements: Sequence[Settlement], leases: frozenset[str] = frozenset(), *, benign: bool = True
) -> list[Settled]:
    """Carry out each settlement; `benign` says whether completing a completed message counts as a success."""
    settlers: dict[tuple[str, str], PartitionSettler | None] = {}
    outcomes: list[tuple[PartitionSettler | None, Settled]] = []
    for settlement in settlements:
        key = (settlement.partition_id, settlement.group)
        if key not in settlers:
            settlers[key] = settler_for(work, settlement)
        settler = settlers[key]
        settled = settler.settle(settlement, leases, benign=benign) if settler else refused(settlement)
        outcomes.append((settler, settled))
    for each in settlers.values():
        if each:
            each.finish()
    results = []
    for settler, settled in outcomes:
        if settler and settler.released and settled.success and settled.message != ALREADY_ACKNOWLEDGED:
            name, _, message, _, queue, partition, _, dead = settled
            settled = Settled(name, True, message, None, queue, partition, True, dead)  # noqa: FBT003, PLW2901 - faster than _replace
        results.append(settled)
    return results


def refused(settlement: Settlement) -> Settled:
    """The result of a settlement of a message that does not exist."""
    return Settled(settlement.transaction_id, success=False, message=NOT_FOUND, error=ERRORS[NOT_FOUND])


def settler_for(work: SqliteWork, settlement: Settlement) -> "PartitionSettler | None":
    """The settler for the settlement's partition and group; None if there is no such partition."""
    partition = work.partition_by_uid(settlement.partition_id) if is_text(settlement.partition_id) else None
    if partition is None:
        return None
    group = work.group(partition.queue_id, settlement.group) if is_text(settlement.group) else None
    queue = work.queue_of(partition.queue_id)
    progress = (
        Progress(0, partition.id, 0, None, None, None) if group is None else progress_of(work, group.id, partition.id)
    )
    return PartitionSettler(work, queue, partition, progress)


class PartitionSettler:
    """Settles messages of one partition for one group."""

    def __init__(self, work: SqliteWork, queue: Queue, partition: Partition, progress: Progress) -> None:
        self._work = work
        self._queue = queue
        self._partition = partition
        self._progress = progress
        self._key = progress.key
        self._is_leased = is_leased(work, queue, progress)
        self._completed = 0
        self._gave_back = False
        self._settled = False
        self.released = False

    def settle(self, settlement: Settlement, leases: frozenset[str], *, benign: bool) -> Settled:
        """Carry out one settlement, if its lease is live."""
        row = self._delivery(settlement.transaction_id)
        if row is None:
            return self._invalid(settlement) if self._is_scheduled(settlement) else refused(settlement)
        if not self._allows(row, settlement.lease_id, leases):
            if benign and settlement.status is Status.COMPLETED and self._is_completed(row):
                return self._result(settlement, ALREADY_ACKNOWLEDGED)
            return self._invalid(settlement)
        self._settled = True
        return self._carry_out(settlement, row)

    def _carry_out(self, settlement: Settlement, row: DeliveryRow) -> Settled:
        match settlement.status:
            case Status.COMPLETED:
                return self._complete(settlement, row)
            case Status.RETRY:
                return self._give_back(settlement, row, row.retries, settlement.delay or 0.0, RELEASED)
            case Status.FAILED:
                return self._fail(settlement, row)
            case Status.DEAD:
                return self._give_up(settlement, row, row.retries, settlement.reason or BY_CONSUMER)

    def finish(self) -> None:
        """End the lease if all its messages are settled or one was given back, and store when to look here next."""
        if not self._settled:
            return
        work, progress = self._work, self._progress
        if self._completed:
            statement = "UPDATE progress SET total = total + ? WHERE group_id = ? AND part_id = ?"
            work.execute(statement, (self._completed, *progress.key))
        if not self._is_leased:
            if self._queue.ordered or self._gave_back:
                update_ready(work, self._queue, progress)
        elif self._gave_back or not has_open(work, progress):
            self.released = True
            release(work, self._queue, progress)

    def _is_scheduled(self, settlement: Settlement) -> bool:
        """Whether the message is scheduled: nobody can have leased it."""
        statement = "SELECT 1 FROM scheduled WHERE part_id = ? AND transaction_id = ?"
        transaction_id = settlement.transaction_id
        return is_text(transaction_id) and self._work.exists(statement, self._partition.id, transaction_id)

    def _delivery(self, transaction_id: str) -> DeliveryRow | None:
        if not is_text(transaction_id):
            return None
        found = self._work.execute(DELIVERY, (self._progress.group_id, self._partition.id, transaction_id)).fetchone()
        return found and DeliveryRow._make(found)

    def _allows(self, row: DeliveryRow, lease_id: str | None, leases: frozenset[str]) -> bool:
        """Whether the settlement comes from the consumer that has the message leased."""
        if row.lease_id is None:
            return False
        if lease_id is None and not leases and self._work.lenient:  # whoever names a lease means it
            return True
        until = row.visible_at
        if self._queue.ordered:
            until = self._progress.lease_until if row.lease_id == self._progress.lease_id else None
        named = leases if lease_id is None else {lease_id}
        return row.lease_id in named and self._work.lease_lives(until)

    def _is_completed(self, row: DeliveryRow) -> bool:
        """Whether the group has completed the message, as opposed to giving it up."""
        if row.delivered_seq is not None or row.seq > self._progress.claimed or not self._progress.group_id:
            return False
        dead = "SELECT 1 FROM dead WHERE part_id = ? AND seq = ? AND group_id = ?"
        return not self._work.exists(dead, self._partition.id, row.seq, self._progress.group_id)

    def _complete(self, settlement: Settlement, row: DeliveryRow) -> Settled:
        self._completed += 1
        statement = "DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
        self._work.execute(statement, (*self._key, row.seq))
        return self._result(settlement, ACKNOWLEDGED)

    def _fail(self, settlement: Settlement, row: DeliveryRow) -> Settled:
        """Count a retry; after the last one, give the message up."""
        options = self._queue.options
        retries = row.retries + 1 if settlement.retries is None else settlement.retries
        if exceeds(retries + row.crashes, row.budget, options):
            return self._give_up(settlement, row, retries, settlement.reason or MAX_RETRIES)
        delay = options.retry_delay if settlement.delay is None else settlement.delay
        return self._give_back(settlement, row, retries, delay, FAILED_RETRY)

    def _give_back(self, settlement: Settlement, row: DeliveryRow, retries: int, delay: float, message: str) -> Settled:
        self._gave_back = True
        due = self._work.now + delay if delay else AT_ONCE
        self._work.execute(
            "UPDATE delivery SET lease_id = NULL, retries = ?, visible_at = ?, error = coalesce(?, error)"
            " WHERE group_id = ? AND part_id = ? AND seq = ?",
            (retries, due, checked_text(settlement.error), *self._key, row.seq),
        )
        return self._result(settlement, message)

    def _give_up(self, settlement: Settlement, row: DeliveryRow, retries: int, reason: str) -> Settled:
        cause = Cause(reason, checked_text(settlement.error) or "", retries, row.crashes, row.deliveries)
        insert_dead(self._work, *self._key, row.seq, cause)
        return self._result(settlement, FAILED_DEAD)

    def _invalid(self, settlement: Settlement) -> Settled:
        result = self._result(settlement, INVALID_LEASE)
        return result._replace(success=False, error=ERRORS[INVALID_LEASE])

    def _result(self, settlement: Settlement, message: str) -> Settled:
        return Settled(
            settlement.transaction_id, success=True, message=message, queue=self._queue.name,
            partition=self._partition.name, dead=message == FAILED_DEAD,
        )  # fmt: skip


DELIVERY: Final = """
SELECT m.seq, d.seq, d.lease_id, d.visible_at, d.deliveries, d.retries, d.crashes, d.budget FROM message AS m
LEFT JOIN delivery AS d ON d.group_id = ?1 AND d.part_id = m.part_id AND d.seq = m.seq
WHERE m.part_id = ?2 AND m.transaction_id = ?3
"""


def extend_lease(work: SqliteWork, lease_id: str, seconds: float | None) -> Extended:
    """Extend a lease to end no earlier than `seconds` from now; None means the lease time of its queue."""
    row = work.execute(
        "SELECT g.queue_id, l.group_id, l.parts FROM lease AS l"
        " CROSS JOIN consumer_group AS g ON g.id = l.group_id WHERE l.id = ?",
        (lease_id,),
    ).fetchone()
    if row is None:
        return Extended(lease_id, success=False, error=LEASE_NOT_FOUND)
    queue = work.queue_of(row[0])
    until = work.now + min(queue.options.lease_time if seconds is None else seconds, LONGEST_LEASE_SECONDS)
    statement = EXTEND_PARTITIONS if queue.ordered else EXTEND_MESSAGES
    values = (until, row[1], row[2], lease_id, work.now)
    ends = [end for (end,) in work.execute(statement, values)]
    if not ends:
        return Extended(lease_id, success=False, error=LEASE_EXPIRED)
    work.execute("UPDATE lease SET until = max(until, ?) WHERE id = ?", (until, lease_id))
    return Extended(lease_id, success=True, expires_at=max(ends))


EXTEND_PARTITIONS: Final = """
UPDATE progress SET lease_until = max(lease_until, ?1), ready_at = max(lease_until, ?1)
WHERE group_id = ?2 AND part_id IN (SELECT value FROM json_each(?3)) AND lease_id = ?4 AND lease_until > ?5
RETURNING lease_until
"""
EXTEND_MESSAGES: Final = """
UPDATE delivery SET visible_at = max(visible_at, ?1)
WHERE group_id = ?2 AND part_id IN (SELECT value FROM json_each(?3)) AND lease_id = ?4 AND visible_at > ?5
RETURNING visible_at
"""
