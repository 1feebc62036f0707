"""Handing out messages: what comes back first, then what nobody of the group has had, from whoever waited longest.

`claimed` moves on only together with the delivery row of each message that it passes.
"""

import json
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from pump.queue.errors import Conflict, NotFound
from pump.queue.ids import mint
from pump.queue.limits import LONGEST_LEASE_SECONDS, MOST_POPPED
from pump.queue.options import QueueOptions
from pump.queue.sqlite.dead_letters import RETRIES, Fate, bury
from pump.queue.sqlite.gaps import claim_beyond_passed
from pump.queue.sqlite.progress import Progress, is_held, progress_of, rest, set_ready
from pump.queue.sqlite.push import place_all_due
from pump.queue.sqlite.work import Group, Partition, Queue, Work
from pump.queue.vocabulary import Leased, Taken, Want

NOTHING: Final = "no_available_partition"
HELD: Final = "lease_held"
NO_PARTITION: Final = "partition_not_found"
WINDOW: Final = "window_buffer"
QUEUES_LIMIT: Final = -1


class Row(NamedTuple):
    """A message that may be handed out, and how often it was before."""

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


class Hand:
    """What one pop has in hand, and how much more it may take."""

    def __init__(self, work: Work, want: Want, queue: Queue, group: Group) -> None:
        self.work: Final = work
        self.want: Final = want
        self.queue: Final = queue
        self.group: Final = group
        self.lease_id: Final = "" if want.auto_ack else mint()
        lease_time = queue.options.lease_time if want.lease_time is None else want.lease_time
        self.until: Final = work.now + min(lease_time, LONGEST_LEASE_SECONDS)
        self.limit: Final = queue.options.retry_limit if want.retry_limit == QUEUES_LIMIT else want.retry_limit
        self.messages: Final[list[Leased]] = []
        self.parts: Final[list[int]] = []
        self.room = min(want.limit, MOST_POPPED)
        self.bytes_left = want.largest_reply
        self.crowded = False
        """Whether the message that was looked at last is left for another answer, for its size alone."""

    @property
    def full(self) -> bool:
        """Whether nothing more may be taken."""
        return self.room < 1 or len(self.parts) >= self.want.partitions

    def fits(self, row: Row) -> bool:
        """Whether the message may be in the answer; the first one may in any case."""
        self.crowded = self.room > 0 and bool(self.messages) and len(row.payload) > self.bytes_left
        return self.room > 0 and not self.crowded

    def take(self, row: Row, partition: Partition) -> Row:
        """The message goes with the answer."""
        payload = self.work.readable(row.sealed, row.payload, partition.uid, row.transaction_id)
        self.room -= 1
        self.bytes_left -= len(row.payload)
        self.messages.append(
            Leased(
                row.id, row.transaction_id, partition.uid, partition.name, self.queue.name, payload, row.at, row.seq,
                row.deliveries, row.retries, row.crashes, self.lease_id, row.trace_id, row.producer,
            )
        )  # fmt: skip
        return row

    def is_spent(self, row: Row) -> bool:
        """Whether the message has died in hand so often that nobody gets it again."""
        return row.lease_id is not None and exceeds(row.retries + row.crashes, self.limit, self.queue.options)


def exceeds(spent: int, limit: int | None, options: QueueOptions) -> bool:
    """Whether retries and crashes make a dead letter of a message."""
    return limit is not None and spent > limit and options.dead_letter_queue and options.dead_letter_after_max_retries


def pop(work: Work, want: Want) -> Taken:
    """Lease what is ready."""
    queue = queue_for(work, want)
    group = work.group(queue.id, want.group)
    if group is None:
        group = make_group(work, queue, want)
    place_all_due(work, queue)
    hand = Hand(work, want, queue, group)
    why = from_one(hand, want.partition) if want.partition is not None else from_any(hand)
    if not hand.messages:
        return Taken(why_empty=why, due_in=due_in(work, queue, group))
    if not want.auto_ack:
        work.execute(
            "INSERT INTO lease (id, group_id, parts, until) VALUES (?, ?, ?, ?)",
            (hand.lease_id, group.id, json.dumps(hand.parts), hand.until),
        )
    return Taken(hand.messages, hand.lease_id, hand.until if hand.lease_id else 0.0, len(hand.parts))


def queue_for(work: Work, want: Want) -> Queue:
    """The queue, made where there is none; whoever consumes first decides its mode."""
    queue = work.queue(want.queue)
    if queue is None:
        if not want.create_group:
            raise NotFound(f"there is no queue {want.queue!r}")
        return work.make_queue(want.queue, want.ordered is not False, QueueOptions(ordered=want.ordered is not False))
    if queue.mode is None:
        return work.set_mode(queue, want.ordered is not False)
    if want.ordered is not None and want.ordered != queue.mode:
        raise Conflict(f"queue {want.queue!r} is {'ordered' if queue.mode else 'not ordered'}")
    return queue


def make_group(work: Work, queue: Queue, want: Want) -> Group:
    """The group that the consumer names, beginning where it says."""
    if not want.create_group:
        raise NotFound(f"queue {want.queue!r} has no group {want.group!r}")
    return subscribe(work, queue, want.group, want.subscribe_from)


def subscribe(work: Work, queue: Queue, name: str, start: float | str) -> Group:
    """A new group of a queue, with its progress in every partition."""
    kind, since = (start, None) if isinstance(start, str) else ("timestamp", start)
    work.execute(
        "INSERT INTO consumer_group (queue_id, name, subscription, subscription_from, created_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (queue.id, name, kind, since, work.now),
    )
    group = work.group(queue.id, name)
    assert group is not None  # noqa: S101 - it was inserted in the line above
    for partition in work.partitions(queue.id):
        claimed = before(work, partition, start)
        ready = min(work.now, partition.last_at) if claimed < partition.last_seq else None
        work.execute(
            "INSERT INTO progress (group_id, part_id, claimed, ready_at) VALUES (?, ?, ?, ?)",
            (group.id, partition.id, claimed, ready),
        )
    return group


def before(work: Work, partition: Partition, start: float | str) -> int:
    """The last place in a partition that lies before such a beginning."""
    if start == "new":
        return partition.last_seq
    if start == "all":
        first = work.execute("SELECT min(seq) FROM message WHERE part_id = ?", (partition.id,)).fetchone()[0]
        return partition.last_seq if first is None else first - 1
    return last_before(work, partition, float(start))


def last_before(work: Work, partition: Partition, moment: float) -> int:
    """The last place whose message is older than a moment, by halving: times rise with places."""
    low = before(work, partition, "all")
    high = partition.last_seq
    while low < high:
        row = work.execute(
            "SELECT seq, at FROM message WHERE part_id = ? AND seq > ? ORDER BY seq LIMIT 1",
            (partition.id, (low + high) // 2),
        ).fetchone()
        if row is None or row[0] > high or row[1] >= moment:
            high = (low + high) // 2
        else:
            low = row[0]
    return low


# -- which partitions


def from_one(hand: Hand, name: str) -> str:
    """Take from the partition of that name; says why there was nothing."""
    partition = hand.work.partition(hand.queue.id, name)
    if partition is None:
        return NO_PARTITION
    progress = progress_of(hand.work, hand.group.id, partition.id)
    if is_held(hand.work, hand.queue, progress):
        return HELD
    return take_from(hand, partition, progress) or NOTHING


def from_any(hand: Hand) -> str:
    """Take from the partitions that have waited longest, looking into each once."""
    work, tried = hand.work, set[int]()
    while not hand.full:
        ready = work.execute(
            "SELECT part_id FROM progress WHERE group_id = ? AND ready_at <= ? ORDER BY ready_at, part_id LIMIT ?",
            (hand.group.id, work.now, len(tried) + hand.want.partitions),
        ).fetchall()
        fresh = [part_id for (part_id,) in ready if part_id not in tried]
        if not fresh:
            break
        for part_id in fresh:
            tried.add(part_id)
            if not hand.full:
                take_from(hand, work.partition_of(part_id), progress_of(work, hand.group.id, part_id))
    return NOTHING


def take_from(hand: Hand, partition: Partition, progress: Progress) -> str:
    """Take what fits from one partition and say when to look there next; a reason where it is withheld."""
    window, had = hand.queue.options.window_buffer, len(hand.messages)
    if window and partition.last_at + window > hand.work.now:
        set_ready(hand.work, progress, partition.last_at + window)
        return WINDOW
    hand.crowded = False
    again, blocked = returned(hand, partition)
    fresh = [] if blocked else untouched(hand, partition, progress.claimed)
    claimed = fresh[-1].seq if fresh else progress.claimed
    claimed = claim_beyond_passed(hand.work, hand.group.id, partition.id, claimed, partition.last_seq)
    write = settle_at_once if hand.want.auto_ack else hand_out
    write(hand, partition, claimed, again, fresh)
    if len(hand.messages) > had:
        hand.parts.append(partition.id)
    elif hand.crowded:  # it keeps its turn, or others that fill each answer would keep it back for ever
        set_ready(hand.work, progress._replace(ready_at=None), progress.ready_at)
    return ""


def returned(hand: Hand, partition: Partition) -> tuple[list[Row], bool]:
    """Take messages that were handed out before and are due again; and whether they keep later ones back."""
    taken: list[Row] = []
    for row in again_in_order(hand, partition) if hand.queue.ordered else again_when_due(hand, partition):
        if row.visible_at is not None and row.visible_at > hand.work.now:
            return taken, True
        now = row if row.lease_id is None else row._replace(crashes=row.crashes + 1)
        if hand.is_spent(now):
            give_up(hand, partition, now)
        elif not hand.fits(now):
            return taken, True
        else:
            taken.append(hand.take(now._replace(deliveries=row.deliveries + 1), partition))
    return taken, False


def again_in_order(hand: Hand, partition: Partition) -> Iterator[Row]:
    """In an ordered partition: all that is not settled, in order."""
    after = 0
    while found := rows_of(hand, AGAIN_IN_ORDER, (hand.group.id, partition.id, after, hand.room + 1)):
        yield from found
        after = found[-1].seq


def again_when_due(hand: Hand, partition: Partition) -> Iterator[Row]:
    """Where each message has a lease of its own: those whose lease or delay is over."""
    after = (-1.0, 0)
    while found := rows_of(
        hand, AGAIN_WHEN_DUE, (hand.group.id, partition.id, *after, hand.work.now, max(hand.room, 1))
    ):
        yield from found
        after = (found[-1].visible_at or 0.0, found[-1].seq)


def untouched(hand: Hand, partition: Partition, claimed: int) -> list[Row]:
    """Take messages that nobody of the group has had, and that are old enough."""
    delay = hand.queue.options.delayed_processing
    newest = hand.work.now - delay if delay else math.inf
    taken: list[Row] = []
    values = (partition.id, claimed, hand.room, hand.group.id)
    for row in rows_of(hand, UNTOUCHED, values) if hand.room else ():
        if row.at > newest or not hand.fits(row):
            break
        taken.append(hand.take(row, partition))
    return taken


def rows_of(hand: Hand, statement: str, values: tuple[object, ...]) -> list[Row]:
    """What a statement finds."""
    return list(map(Row._make, hand.work.execute(statement, values)))


def give_up(hand: Hand, partition: Partition, row: Row) -> None:
    """Nobody gets the message again: whoever had it, died of it or with it, too often."""
    fate = Fate(RETRIES, "the lease expired too often", row.retries, row.crashes, row.deliveries)
    bury(hand.work, hand.group.id, partition.id, row.seq, fate)


def settle_at_once(hand: Hand, partition: Partition, claimed: int, again: list[Row], fresh: list[Row]) -> None:
    """Messages of a consumer that wants no leases are completed as they go."""
    work = hand.work
    work.executemany(
        "DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?",
        [(hand.group.id, partition.id, row.seq) for row in again],
    )
    work.execute(
        "UPDATE progress SET claimed = ?, lease_id = NULL, lease_until = NULL, ready_at = ?, total = total + ?,"
        " last_consumed_at = ? WHERE group_id = ? AND part_id = ?",
        (
            claimed, rest(work, hand.queue, hand.group.id, partition.id, claimed), len(again) + len(fresh), work.now,
            hand.group.id, partition.id,
        ),
    )  # fmt: skip


def hand_out(hand: Hand, partition: Partition, claimed: int, again: list[Row], fresh: list[Row]) -> None:
    """Messages go out under a lease: of the partition, or each under its own."""
    work, queue, rows = hand.work, hand.queue, [*again, *fresh]
    lease_ends = None if queue.ordered else hand.until
    work.executemany(
        "INSERT OR REPLACE INTO delivery (group_id, part_id, seq, lease_id, deliveries, retries, crashes, budget,"
        " visible_at, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                hand.group.id, partition.id, row.seq, hand.lease_id, row.deliveries, row.retries, row.crashes,
                hand.want.retry_limit, lease_ends, row.error,
            )
            for row in rows
        ],
    )  # fmt: skip
    held = queue.ordered and bool(rows)
    ready_at = hand.until if held else rest(work, queue, hand.group.id, partition.id, claimed)
    lease = (hand.lease_id, hand.until) if held else (None, None)
    work.execute(
        "UPDATE progress SET claimed = ?, lease_id = ?, lease_until = ?, ready_at = ?, last_consumed_at = ?"
        " WHERE group_id = ? AND part_id = ?",
        (claimed, *lease, ready_at, work.now, hand.group.id, partition.id),
    )


def due_in(work: Work, queue: Queue, group: Group) -> float | None:
    """Seconds until time alone makes something ready."""
    row = work.execute(DUE, (group.id, queue.id)).fetchone()
    return None if row[0] is None else max(0.0, row[0] - work.now)


DUE: Final = """
SELECT min(at) FROM (
    SELECT min(ready_at) AS at FROM progress WHERE group_id = ?1 AND ready_at IS NOT NULL
    UNION ALL SELECT min(due_at) FROM scheduled WHERE queue_id = ?2)
"""
COUNTS: Final = (
    "SELECT d.seq, d.lease_id, d.deliveries, d.retries, d.crashes, d.visible_at, d.error,"
    " m.id, m.transaction_id, m.trace_id, m.producer, m.at, m.sealed, m.payload"
)
AGAIN_IN_ORDER: Final = (
    COUNTS + " FROM delivery AS d CROSS JOIN message AS m ON m.part_id = d.part_id AND m.seq = d.seq"
    " WHERE d.group_id = ? AND d.part_id = ? AND d.seq > ? ORDER BY d.seq LIMIT ?"
)
AGAIN_WHEN_DUE: Final = (
    COUNTS + " FROM delivery AS d INDEXED BY delivery_by_visible"
    " CROSS JOIN message AS m ON m.part_id = d.part_id AND m.seq = d.seq"
    " WHERE d.group_id = ? AND d.part_id = ? AND (d.visible_at, d.seq) > (?, ?) AND d.visible_at <= ?"
    " ORDER BY d.visible_at, d.seq LIMIT ?"
)
UNTOUCHED: Final = (
    "SELECT m.seq, NULL, 1, 0, 0, NULL, NULL, m.id, m.transaction_id, m.trace_id, m.producer, m.at, m.sealed, m.payload"
    " FROM message AS m WHERE m.part_id = ?1 AND m.seq > ?2 AND NOT EXISTS"
    " (SELECT 1 FROM passed AS x WHERE x.group_id = ?4 AND x.part_id = ?1 AND x.seq = m.seq) ORDER BY m.seq LIMIT ?3"
)
