"""What consumers say of messages that they have leased. Whoever has no live lease changes nothing."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pump.queue.limits import LONGEST_LEASE_SECONDS, checked_text, is_text
from pump.queue.sqlite.dead_letters import GIVEN_UP, RETRIES, Fate, bury
from pump.queue.sqlite.pop import QUEUES_LIMIT, exceeds
from pump.queue.sqlite.progress import Progress, has_open, is_held, progress_of, ready_again, release
from pump.queue.sqlite.work import Partition, Queue, Work
from pump.queue.vocabulary import Extended, Settled, Settlement, Status

NO_LEASE: Final = "Invalid or expired lease"
NO_MESSAGE: Final = "Message not found"
ACKNOWLEDGED: Final = "acknowledged"
AT_ONCE: Final = 0.0
"""When something is due that is due whatever the clock says."""
AGAIN: Final = "already_acknowledged"


class Row(NamedTuple):
    """A message as one group has it; all but its place and its group's claim is null where nobody has it."""

    seq: int
    known: int | None
    lease_id: str | None
    visible_at: float | None
    deliveries: int
    retries: int
    crashes: int
    budget: int | None


def settle(
    work: Work, settlements: Sequence[Settlement], leases: frozenset[str] = frozenset(), *, benign: bool = True
) -> list[Settled]:
    """Carry out each; `benign` says whether a message that is completed already counts as a success."""
    places: dict[tuple[str, str], Place | None] = {}
    outcomes: list[tuple[Place | None, Settled]] = []
    for settlement in settlements:
        key = (settlement.partition_id, settlement.group)
        if key not in places:
            places[key] = place_at(work, settlement)
        place = places[key]
        outcomes.append((place, place.settle(settlement, leases, benign=benign) if place else missing(settlement)))
    for each in places.values():
        if each:
            each.conclude()
    return [with_release(place, settled) for place, settled in outcomes]


def with_release(place: "Place | None", settled: Settled) -> Settled:
    """The answer, saying whether its lease ended in this call."""
    if place is None or not place.released or not settled.success or settled.message == AGAIN:
        return settled
    return Settled(
        settled.transaction_id,
        success=True,
        message=settled.message,
        queue=settled.queue,
        partition=settled.partition,
        lease_released=True,
        dead=settled.dead,
    )


def missing(settlement: Settlement) -> Settled:
    """The answer where there is no such message."""
    return Settled(settlement.transaction_id, success=False, message="not_found", error=NO_MESSAGE)


def refused(answer: Settled) -> Settled:
    """The answer to whoever does not have the message."""
    return answer._replace(success=False, message="invalid_lease", error=NO_LEASE)


def place_at(work: Work, settlement: Settlement) -> "Place | None":
    """Where the message should be; None where there is no such partition."""
    partition = work.partition_by_uid(settlement.partition_id) if is_text(settlement.partition_id) else None
    if partition is None:
        return None
    group = work.group(partition.queue_id, settlement.group) if is_text(settlement.group) else None
    queue = work.queue_of(partition.queue_id)
    progress = (
        Progress(0, partition.id, 0, None, None, None) if group is None else progress_of(work, group.id, partition.id)
    )
    return Place(work, queue, partition, progress)


class Place:
    """One partition for one group, while settlements come in."""

    def __init__(self, work: Work, queue: Queue, partition: Partition, progress: Progress) -> None:
        self._work = work
        self._queue = queue
        self._partition = partition
        self._progress = progress
        self._held = is_held(work, queue, progress)
        self._completed = 0
        self._gave_back = False
        self._settled = 0
        self.released = False

    def settle(self, settlement: Settlement, leases: frozenset[str], *, benign: bool) -> Settled:
        """Carry one out, if its lease allows."""
        row = self._row(settlement.transaction_id)
        if row is None:
            return refused(self._answer(settlement, "")) if self._is_scheduled(settlement) else missing(settlement)
        if not self._allows(row, settlement.lease_id, leases):
            if benign and settlement.status is Status.COMPLETED and self._is_completed(row):
                return self._answer(settlement, AGAIN)
            return refused(self._answer(settlement, ""))
        self._settled += 1
        return self._carry_out(settlement, row)

    def _carry_out(self, settlement: Settlement, row: Row) -> Settled:
        """Do as its consumer says."""
        match settlement.status:
            case Status.COMPLETED:
                return self._complete(settlement, row)
            case Status.RETRY:
                return self._give_back(settlement, row, row.retries, settlement.delay or 0.0, "released")
            case Status.FAILED:
                return self._fail(settlement, row)
            case Status.DEAD:
                return self._bury(settlement, row, row.retries, settlement.reason or GIVEN_UP)

    def _is_scheduled(self, settlement: Settlement) -> bool:
        """Whether the message waits without a place: nobody can have it."""
        if not is_text(settlement.transaction_id):
            return False
        found = self._work.execute(
            "SELECT 1 FROM scheduled WHERE part_id = ? AND transaction_id = ?",
            (self._partition.id, settlement.transaction_id),
        ).fetchone()
        return found is not None

    def conclude(self) -> None:
        """End the lease where it has nothing left or something went back, and say when to look here next."""
        if not self._settled:
            return
        work, progress = self._work, self._progress
        if self._completed:
            work.execute(
                "UPDATE progress SET total = total + ? WHERE group_id = ? AND part_id = ?",
                (self._completed, progress.group_id, progress.part_id),
            )
        if not self._queue.ordered:
            if self._gave_back:
                ready_again(work, self._queue, progress)
        elif not self._held:
            ready_again(work, self._queue, progress)
        elif self._gave_back or not has_open(work, self._progress):
            self.released = True
            release(work, self._queue, progress)

    def _row(self, transaction_id: str) -> Row | None:
        if not is_text(transaction_id):
            return None
        found = self._work.execute(ROW, (self._progress.group_id, self._partition.id, transaction_id)).fetchone()
        return found and Row._make(found)

    def _allows(self, row: Row, lease_id: str | None, leases: frozenset[str]) -> bool:
        """Whether the message is in the hand of whoever says so."""
        if row.lease_id is None:
            return False
        if lease_id is None and self._work.lenient:
            return True
        until = row.visible_at
        if self._queue.ordered:
            until = self._progress.lease_until if row.lease_id == self._progress.lease_id else None
        named = leases if lease_id is None else {lease_id}
        return row.lease_id in named and self._work.lease_lives(until)

    def _is_completed(self, row: Row) -> bool:
        """Whether the group has done the message, and did not give it up."""
        if row.known is not None or row.seq > self._progress.claimed or not self._progress.group_id:
            return False
        dead = self._work.execute(
            "SELECT 1 FROM dead WHERE part_id = ? AND seq = ? AND group_id = ?",
            (self._partition.id, row.seq, self._progress.group_id),
        ).fetchone()
        return dead is None

    def _complete(self, settlement: Settlement, row: Row) -> Settled:
        self._completed += 1
        self._work.execute(
            "DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?",
            (self._progress.group_id, self._partition.id, row.seq),
        )
        return self._answer(settlement, ACKNOWLEDGED)

    def _fail(self, settlement: Settlement, row: Row) -> Settled:
        """It counts as a retry, and may have been the last."""
        options = self._queue.options
        retries = row.retries + 1 if settlement.retries is None else settlement.retries
        limit = options.retry_limit if row.budget == QUEUES_LIMIT else row.budget
        if exceeds(retries + row.crashes, limit, options):
            return self._bury(settlement, row, retries, settlement.reason or RETRIES)
        delay = options.retry_delay if settlement.delay is None else settlement.delay
        return self._give_back(settlement, row, retries, delay, "failed_retry")

    def _give_back(self, settlement: Settlement, row: Row, retries: int, delay: float, message: str) -> Settled:
        self._gave_back = True
        due = self._work.now + delay if delay else AT_ONCE
        self._work.execute(
            "UPDATE delivery SET lease_id = NULL, retries = ?, visible_at = ?, error = coalesce(?, error)"
            " WHERE group_id = ? AND part_id = ? AND seq = ?",
            (retries, due, checked_text(settlement.error), self._progress.group_id, self._partition.id, row.seq),
        )
        return self._answer(settlement, message)

    def _bury(self, settlement: Settlement, row: Row, retries: int, reason: str) -> Settled:
        error = checked_text(settlement.error) or ""
        fate = Fate(reason, error, retries, row.crashes, row.deliveries)
        bury(self._work, self._progress.group_id, self._partition.id, row.seq, fate)
        return self._answer(settlement, "failed_dlq", dead=True)

    def _answer(self, settlement: Settlement, message: str, *, dead: bool = False) -> Settled:
        return Settled(
            settlement.transaction_id, success=True, message=message, queue=self._queue.name,
            partition=self._partition.name, dead=dead,
        )  # fmt: skip


ROW: Final = """
SELECT m.seq, d.seq, d.lease_id, d.visible_at, d.deliveries, d.retries, d.crashes, d.budget FROM message AS m
LEFT JOIN delivery AS d ON d.group_id = ?1 AND d.part_id = m.part_id AND d.seq = m.seq
WHERE m.part_id = ?2 AND m.transaction_id = ?3
"""


def extend(work: Work, lease_id: str, seconds: float | None) -> Extended:
    """Let a lease end no earlier than so many seconds from now."""
    row = work.execute(
        "SELECT g.queue_id, l.group_id, l.parts FROM lease AS l"
        " CROSS JOIN consumer_group AS g ON g.id = l.group_id WHERE l.id = ?",
        (lease_id,),
    ).fetchone()
    if row is None:
        return Extended(lease_id, success=False, error="Lease not found")
    queue = work.queue_of(row[0])
    until = work.now + min(queue.options.lease_time if seconds is None else seconds, LONGEST_LEASE_SECONDS)
    statement = EXTEND_PARTITIONS if queue.ordered else EXTEND_MESSAGES
    values = (until, row[1], row[2], lease_id, work.now)
    ends = [end for (end,) in work.execute(statement, values)]
    if not ends:
        return Extended(lease_id, success=False, error="Lease already expired")
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
