"""Handing out messages: redeliveries first, then new messages, from the partition that has waited longest.

`claimed` grows only together with the delivery row of each message that it passes.
"""

import json
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.limits import LONGEST_LEASE_SECONDS, MOST_POPPED
from pump.queue.options import QueueOptions
from pump.queue.sealing import PASS_SECONDS
from pump.queue.sqlite.dead_letters import MAX_RETRIES, Cause, insert_dead
from pump.queue.sqlite.gaps import skip_passed
from pump.queue.sqlite.groups import make_group
from pump.queue.sqlite.progress import Progress, is_leased, next_ready, progress_of, set_ready
from pump.queue.sqlite.push import number_all_due
from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import Leased, PopRequest, PopResult

NOTHING: Final = "no_available_partition"
LEASE_HELD: Final = "lease_held"
NO_PARTITION: Final = "partition_not_found"
WINDOW: Final = "window_buffer"
LIMIT_OF_QUEUE: Final = -1
"""As a retry limit: use the limit of the queue."""


class Candidate(NamedTuple):
    """A message that may be handed out, and how often it was handed out, retried and crashed before."""

    seq: int
    lease_id: str | None
    deliveries: int
    retries: int
    crashes: int
    visible_at: float | None
    error: str | None
    id: str
    transaction_id: str
    trace_id: str | None
    producer: str | None
    at: float
    sealed: int
    payload: bytes


class PopState:
    """The messages that one pop has taken so far, and how much more it may take."""

    def __init__(self, work: SqliteWork, request: PopRequest, queue: Queue, group: ConsumerGroup) -> None:
        self.work: Final = work
        self.request: Final = request
        self.queue: Final = queue
        self.group: Final = group
        self.lease_id: Final = "" if request.auto_ack else mint()
        lease_time = queue.options.lease_time if request.lease_time is None else request.lease_time
        self.until: Final = work.now + min(lease_time, LONGEST_LEASE_SECONDS)
        self.messages: Final[list[Leased]] = []
        self.parts: Final[list[int]] = []
        self.room = min(request.limit, MOST_POPPED)
        self.bytes_left = request.largest_reply
        self.passed_over = False
        """Whether a message of the current partition could not be opened."""
        self.too_large = False
        """Whether the last message that was looked at did not fit, only because of its size."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be taken."""
        return self.room < 1 or len(self.parts) >= self.request.partitions

    def fits(self, row: Candidate) -> bool:
        """Whether the message fits into the reply; the first one always does if `room` is left."""
        self.too_large = self.room > 0 and bool(self.messages) and len(row.payload) > self.bytes_left
        return self.room > 0 and not self.too_large

    def take(self, row: Candidate, partition: Partition) -> bool:
        """Add the message to the reply; False if its payload cannot be opened here."""
        payload = self.work.readable(row.payload, partition.uid, row.transaction_id, sealed=bool(row.sealed))
        if payload is None:
            self.passed_over = True
            return False
        self.room -= 1
        self.bytes_left -= len(row.payload)
        self.messages.append(
            Leased(
                row.id, row.transaction_id, partition.uid, partition.name, self.queue.name, payload, row.at, row.seq,
                row.deliveries, row.retries, row.crashes, self.lease_id, row.trace_id, row.producer,
            )
        )  # fmt: skip
        return True

    def pass_over(self, row: Candidate, partition: Partition) -> None:
        """Leave the message to other servers for a while; no attempt is counted."""
        self.work.execute(
            "INSERT OR REPLACE INTO delivery (group_id, part_id, seq, lease_id, deliveries, retries, crashes, budget,"
            " visible_at, error) VALUES (?, ?, ?, NULL, ?, ?, ?, ?, ?, ?)",
            (
                self.group.id, partition.id, row.seq, row.deliveries, row.retries, row.crashes,
                self.request.retry_limit, self.work.now + PASS_SECONDS, row.error,
            ),
        )  # fmt: skip

    def candidates(self, statement: str, values: tuple[object, ...]) -> list[Candidate]:
        """The messages that a statement finds."""
        return list(map(Candidate._make, self.work.execute(statement, values)))

    def is_spent(self, row: Candidate) -> bool:
        """Whether the message's lease has expired, and its attempts are used up."""
        return row.lease_id is not None and exceeds(
            row.retries + row.crashes, self.request.retry_limit, self.queue.options
        )


def exceeds(attempts: int, limit: int | None, options: QueueOptions) -> bool:
    """Whether a message with this many retries and crashes becomes a dead letter."""
    limit = options.retry_limit if limit == LIMIT_OF_QUEUE else limit
    return (
        limit is not None and attempts > limit and options.dead_letter_queue and options.dead_letter_after_max_retries
    )


def pop_messages(work: SqliteWork, request: PopRequest) -> PopResult:
    """Lease the messages that are ready."""
    queue = queue_for(work, request)
    if request.create_group:
        group = work.group(queue.id, request.group) or make_group(work, queue, request.group, request.subscribe_from)
    else:
        group = work.required_group(queue, request.group)
    number_all_due(work, queue)
    state = PopState(work, request, queue, group)
    why = from_one(state, request.partition) if request.partition is not None else from_any(state)
    if not state.messages:
        return PopResult(why_empty=why, due_in=due_in(work, queue, group))
    if not request.auto_ack:
        work.execute(
            "INSERT INTO lease (id, group_id, parts, until) VALUES (?, ?, ?, ?)",
            (state.lease_id, group.id, json.dumps(state.parts), state.until),
        )
    return PopResult(state.messages, state.lease_id, state.until if state.lease_id else 0.0, len(state.parts))


def queue_for(work: SqliteWork, request: PopRequest) -> Queue:
    """The queue, created if it is missing; its first consumer decides its mode."""
    queue = work.queue(request.queue) if request.create_group else work.required_queue(request.queue)
    ordered = request.ordered is not False
    if queue is None:
        return work.make_queue(request.queue, ordered, QueueOptions(ordered=ordered))
    if queue.mode is None:
        return work.set_mode(queue, ordered)
    if request.ordered is not None and request.ordered != queue.mode:
        raise Conflict(f"queue {request.queue!r} is {'ordered' if queue.mode else 'not ordered'}")
    return queue


# -- a first look, which writes nothing: most pops find nothing


def empty_result(work: SqliteWork, request: PopRequest) -> PopResult | None:
    """The result if there is nothing to hand out; None if `pop_messages` has to run."""
    queue = work.queue(request.queue)
    if queue is None or queue.mode is None or request.ordered not in {None, queue.mode}:
        return None
    group = work.group(queue.id, request.group)
    if group is None or work.exists(ANY_DUE, queue.id, work.now):
        return None
    why = NOTHING
    if request.partition is not None:
        why = why_nothing_in(work, queue, group, request.partition)
    elif work.exists(ANY_READY, group.id, work.now):
        return None
    return PopResult(why_empty=why, due_in=due_in(work, queue, group)) if why else None


def why_nothing_in(work: SqliteWork, queue: Queue, group: ConsumerGroup, name: str) -> str:
    """Why there is nothing in one partition; "" if there may be something."""
    partition = work.partition(queue.id, name)
    if partition is None:
        return NO_PARTITION
    progress = progress_of(work, group.id, partition.id)
    if progress.ready_at is not None and progress.ready_at <= work.now:
        return ""
    if is_leased(work, queue, progress):
        return LEASE_HELD
    window = queue.options.window_buffer
    return WINDOW if window and partition.last_at + window > work.now else NOTHING


ANY_DUE: Final = "SELECT 1 FROM scheduled WHERE queue_id = ? AND due_at <= ? LIMIT 1"
ANY_READY: Final = "SELECT 1 FROM progress WHERE group_id = ? AND ready_at <= ? LIMIT 1"


# -- which partitions


def from_one(state: PopState, name: str) -> str:
    """Take from the partition of that name; returns why there was nothing."""
    partition = state.work.partition(state.queue.id, name)
    if partition is None:
        return NO_PARTITION
    progress = progress_of(state.work, state.group.id, partition.id)
    if is_leased(state.work, state.queue, progress):
        return LEASE_HELD
    return take_from(state, partition, progress) or NOTHING


def from_any(state: PopState) -> str:
    """Take from the partitions that have waited longest; each partition is tried once."""
    work, tried = state.work, set[int]()
    while not state.is_full:
        ready = work.execute(
            "SELECT part_id FROM progress WHERE group_id = ? AND ready_at <= ? ORDER BY ready_at, part_id LIMIT ?",
            (state.group.id, work.now, len(tried) + state.request.partitions),
        ).fetchall()
        new = [part_id for (part_id,) in ready if part_id not in tried]
        if not new:
            break
        for part_id in new:
            tried.add(part_id)
            if not state.is_full:
                take_from(state, work.partition_of(part_id), progress_of(work, state.group.id, part_id))
    return NOTHING


def take_from(state: PopState, partition: Partition, progress: Progress) -> str:
    """Take what fits from one partition and store when to look there next; returns why all is held back, or ""."""
    window, had = state.queue.options.window_buffer, len(state.messages)
    if window and partition.last_at + window > state.work.now:
        set_ready(state.work, progress, partition.last_at + window)
        return WINDOW
    state.too_large = state.passed_over = False
    again, blocked = take_redeliveries(state, partition)
    new, claimed = ([], progress.claimed) if blocked else take_new(state, partition, progress.claimed)
    claimed = skip_passed(state.work, state.group.id, partition.id, claimed, partition.last_seq)
    store_taken(state, partition, claimed, again, new)
    if len(state.messages) > had:
        state.parts.append(partition.id)
    elif state.too_large:  # it keeps its turn: else messages that fill each reply could hold it back for ever
        set_ready(state.work, progress._replace(ready_at=None), progress.ready_at)
    elif state.passed_over and state.queue.ordered:  # in order, later messages have to wait for it
        set_ready(state.work, progress._replace(ready_at=None), state.work.now + PASS_SECONDS)
    return ""


def take_redeliveries(state: PopState, partition: Partition) -> tuple[list[Candidate], bool]:
    """Take messages that were delivered before and are due again; also returns whether they hold back later ones."""
    taken: list[Candidate] = []
    for row in redeliveries_in_order(state, partition) if state.queue.ordered else redeliveries_due(state, partition):
        if row.visible_at is not None and row.visible_at > state.work.now:
            return taken, True
        now = row if row.lease_id is None else row._replace(crashes=row.crashes + 1)
        if state.is_spent(now):
            cause = Cause(MAX_RETRIES, "the lease expired too often", now.retries, now.crashes, now.deliveries)
            insert_dead(state.work, state.group.id, partition.id, now.seq, cause)
        elif not state.fits(now):
            return taken, True
        elif state.take(after := now._replace(deliveries=row.deliveries + 1), partition):
            taken.append(after)
        elif state.queue.ordered:
            return taken, True
        else:
            state.pass_over(now, partition)
    return taken, False


def redeliveries_in_order(state: PopState, partition: Partition) -> Iterator[Candidate]:
    """In an ordered partition: all delivered messages that are not settled, in order."""
    after = 0
    while found := state.candidates(IN_ORDER, (state.group.id, partition.id, after, state.room + 1)):
        yield from found
        after = found[-1].seq


def redeliveries_due(state: PopState, partition: Partition) -> Iterator[Candidate]:
    """In an unordered partition: the messages whose lease or delay has ended."""
    after = (-1.0, 0)
    while found := state.candidates(
        WHEN_DUE, (state.group.id, partition.id, *after, state.work.now, max(state.room, 1))
    ):
        yield from found
        after = (found[-1].visible_at or 0.0, found[-1].seq)


def take_new(state: PopState, partition: Partition, claimed: int) -> tuple[list[Candidate], int]:
    """Take messages that were never handed out to the group, if they are old enough; also returns the new claim."""
    delay = state.queue.options.delayed_processing
    newest = state.work.now - delay if delay else math.inf
    taken: list[Candidate] = []
    while state.room:
        had = claimed
        for row in state.candidates(NEW, (partition.id, claimed, state.room, state.group.id)):
            if row.at > newest or not state.fits(row):
                return taken, claimed
            if state.take(row, partition):
                taken.append(row)
            elif state.queue.ordered:
                return taken, claimed
            else:
                state.pass_over(row._replace(deliveries=0), partition)
            claimed = row.seq
        if claimed == had or not state.passed_over:
            break
    return taken, claimed


def store_taken(
    state: PopState, partition: Partition, claimed: int, again: list[Candidate], new: list[Candidate]
) -> None:
    """Lease the messages, the partition as a whole or each message by itself; with `auto_ack`, complete them."""
    work, queue, key, rows = state.work, state.queue, (state.group.id, partition.id), [*again, *new]
    completed = len(rows) if state.request.auto_ack else 0
    if completed:
        statement = "DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
        work.executemany(statement, [(*key, row.seq) for row in again])
    else:
        lease_ends = None if queue.ordered else state.until
        work.executemany(
            "INSERT OR REPLACE INTO delivery (group_id, part_id, seq, lease_id, deliveries, retries, crashes, budget,"
            " visible_at, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *key, row.seq, state.lease_id, row.deliveries, row.retries, row.crashes,
                    state.request.retry_limit, lease_ends, row.error,
                )
                for row in rows
            ],
        )  # fmt: skip
    leased = queue.ordered and len(rows) > completed
    ready_at = state.until if leased else next_ready(work, queue, *key, claimed)
    lease = (state.lease_id, state.until) if leased else (None, None)
    work.execute(
        "UPDATE progress SET claimed = ?, lease_id = ?, lease_until = ?, ready_at = ?, total = total + ?,"
        " last_consumed_at = ? WHERE group_id = ? AND part_id = ?",
        (claimed, *lease, ready_at, completed, work.now, *key),
    )


def due_in(work: SqliteWork, queue: Queue, group: ConsumerGroup) -> float | None:
    """Seconds until a delay or a lease ends and something is ready; None if nothing waits for a time."""
    row = work.execute(DUE, (group.id, queue.id)).fetchone()
    return None if row[0] is None else max(0.0, row[0] - work.now)


DUE: Final = """
SELECT min(at) FROM (
    SELECT min(ready_at) AS at FROM progress WHERE group_id = ?1 AND ready_at IS NOT NULL
    UNION ALL SELECT min(due_at) FROM scheduled WHERE queue_id = ?2)
"""
DELIVERED: Final = (
    "SELECT d.seq, d.lease_id, d.deliveries, d.retries, d.crashes, d.visible_at, d.error,"
    " m.id, m.transaction_id, m.trace_id, m.producer, m.at, m.sealed, m.payload"
)
IN_ORDER: Final = (
    DELIVERED + " FROM delivery AS d CROSS JOIN message AS m ON m.part_id = d.part_id AND m.seq = d.seq"
    " WHERE d.group_id = ? AND d.part_id = ? AND d.seq > ? ORDER BY d.seq LIMIT ?"
)
WHEN_DUE: Final = (
    DELIVERED + " FROM delivery AS d INDEXED BY delivery_by_visible"
    " CROSS JOIN message AS m ON m.part_id = d.part_id AND m.seq = d.seq"
    " WHERE d.group_id = ? AND d.part_id = ? AND (d.visible_at, d.seq) > (?, ?) AND d.visible_at <= ?"
    " ORDER BY d.visible_at, d.seq LIMIT ?"
)
NEW: Final = (
    "SELECT m.seq, NULL, 1, 0, 0, NULL, NULL, m.id, m.transaction_id, m.trace_id, m.producer, m.at, m.sealed, m.payload"
    " FROM message AS m WHERE m.part_id = ?1 AND m.seq > ?2 AND NOT EXISTS"
    " (SELECT 1 FROM passed AS x WHERE x.group_id = ?4 AND x.part_id = ?1 AND x.seq = m.seq) ORDER BY m.seq LIMIT ?3"
)
