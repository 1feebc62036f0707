"""Storing messages: each gets the next place of its partition, or waits without one until it is due."""

import json
from collections.abc import Sequence
from typing import Final

from pump.queue.ids import mint
from pump.queue.limits import MOST_PARTITIONS
from pump.queue.options import QueueOptions
from pump.queue.results import FULL, TOO_MANY_PARTITIONS, push_refused
from pump.queue.sqlite.gaps import OPEN, number_passed
from pump.queue.sqlite.work import Partition, Queue, SqliteWork
from pump.queue.vocabulary import Push, Pushed
from pump.queue.work import NO_KEY

NUMBERED_AT_ONCE: Final = 1000

Row = tuple[int, int, str, str, str | None, str | None, float, int, bytes]


def push_messages(work: SqliteWork, items: Sequence[Push], ids: Sequence[str]) -> list[Pushed]:
    """Store each message; results in order. The ids come from `ids_for`."""
    if items:
        work.must_have_room(sum(len(item.payload) for item in items))
    batches: dict[tuple[str, str], PartitionBatch] = {}
    places: list[tuple[PartitionBatch, int]] = []
    minted = iter(ids[len(items) :])
    for item, message_id in zip(items, ids, strict=False):
        key = (item.queue, item.partition)
        batch = batches.get(key)
        if batch is None:
            batch = batches[key] = PartitionBatch(work, *key)
        places.append((batch, len(batch.items)))
        batch.items.append((item, message_id, item.transaction_id or next(minted)))
    room_left: dict[int, float] = {}
    for batch in batches.values():
        batch.store(room_left)
    return [batch.results[index] for batch, index in places]


class PartitionBatch:
    """The messages that one call pushes to one partition."""

    def __init__(self, work: SqliteWork, queue_name: str, name: str) -> None:
        self._work = work
        self._queue = work.queue(queue_name) or work.make_queue(queue_name, None, QueueOptions())
        self._name = name
        self.items: list[tuple[Push, str, str]] = []
        self._rows: list[Row] = []
        self._scheduled: list[tuple[object, ...]] = []
        self.results: list[Pushed] = []

    def store(self, room_left: dict[int, float]) -> None:
        """Store the messages that fit. `room_left` is, for each queue, how many more messages it takes in this call."""
        reason, partition = self._opened()
        if partition is None:
            self.results = [push_refused(item, transaction_id, "", reason) for item, _, transaction_id in self.items]
            return
        queue_id, known = self._queue.id, self._known(partition)
        if queue_id not in room_left:
            room_left[queue_id] = room_in(self._work, self._queue)
        now, seq = self._work.now, partition.last_seq
        at = max(now, partition.last_at)
        head = (self._queue.name, self._name, partition.uid)
        for item, message_id, transaction_id in self.items:
            if transaction_id in known:
                result = Pushed(*head, known[transaction_id], transaction_id, duplicate=True, trace_id=item.trace_id)
                self.results.append(result)
                continue
            if room_left[queue_id] < 1:
                self.results.append(push_refused(item, transaction_id, partition.uid, FULL))
                continue
            room_left[queue_id] -= 1
            known[transaction_id] = message_id
            due = max(item.not_before, now + item.delay)
            sealed, payload = self._sealed(item, partition, transaction_id)
            if due > now:
                self._scheduled.append((
                    partition.id, transaction_id, queue_id, due, message_id, item.trace_id, item.producer, now, sealed,
                    payload,
                ))  # fmt: skip
            else:
                seq += 1
                self._rows.append((
                    partition.id, seq, message_id, transaction_id, item.trace_id, item.producer, at, sealed, payload
                ))  # fmt: skip
            result = Pushed(*head, message_id, transaction_id, False, "", due > now, item.trace_id)  # noqa: FBT003 - in order
            self.results.append(result)
        insert_messages(self._work, self._queue, partition.id, self._rows)
        if self._scheduled:
            self._work.executemany(
                "INSERT INTO scheduled"
                " (part_id, transaction_id, queue_id, due_at, id, trace_id, producer, at, sealed, payload)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self._scheduled,
            )
            self._work.changed.add(self._queue.name)

    def _opened(self) -> tuple[str, Partition | None]:
        """The partition, or the reason why nothing can be stored in it."""
        work, queue = self._work, self._queue
        number_all_due(work, queue)
        if queue.options.encryption and work.sealing is None:
            return NO_KEY, None
        partition = work.partition(queue.id, self._name)
        if partition is None and work.number("SELECT partitions FROM queue WHERE id = ?", queue.id) >= MOST_PARTITIONS:
            return TOO_MANY_PARTITIONS, None
        return "", partition or make_partition(work, queue.id, self._name)

    def _known(self, partition: Partition) -> dict[str, str]:
        """The transaction ids that are in the partition already, each with the id of its message."""
        given = json.dumps([item.transaction_id for item, _, _ in self.items if item.transaction_id])
        scheduled = "SELECT 1 FROM scheduled WHERE part_id = ? LIMIT 1"
        if given == "[]" or not (partition.last_seq or self._work.exists(scheduled, partition.id)):
            return {}
        return dict(
            self._work.execute(
                "SELECT m.transaction_id, m.id FROM json_each(?1) AS given CROSS JOIN message AS m"
                " WHERE m.part_id = ?2 AND m.transaction_id = given.value"
                " UNION ALL SELECT s.transaction_id, s.id FROM json_each(?1) AS given CROSS JOIN scheduled AS s"
                " WHERE s.part_id = ?2 AND s.transaction_id = given.value",
                (given, partition.id),
            )
        )

    def _sealed(self, item: Push, partition: Partition, transaction_id: str) -> tuple[int, bytes]:
        """Whether the payload is sealed, and the payload as it is stored."""
        if not self._queue.options.encryption or self._work.sealing is None:
            return 0, item.payload
        return 1, self._work.sealing.seal(item.payload, partition.uid, transaction_id)


def insert_messages(work: SqliteWork, queue: Queue, part_id: int, rows: Sequence[Row]) -> None:
    """Insert messages that have places, and make their partition ready for every group."""
    if not rows:
        return
    work.executemany(
        "INSERT INTO message (part_id, seq, id, transaction_id, trace_id, producer, at, sealed, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    work.execute("UPDATE partition SET last_seq = ?, last_at = ? WHERE id = ?", (rows[-1][1], rows[-1][6], part_id))
    work.execute(WAKE if queue.ordered else WAKE_ALL, (work.now, part_id))
    work.changed.add(queue.name)


WAKE: Final = "UPDATE progress SET ready_at = ?1 WHERE part_id = ?2 AND ready_at IS NULL"
"""In an ordered partition, a lease or a delay holds back new messages."""
WAKE_ALL: Final = "UPDATE progress SET ready_at = ?1 WHERE part_id = ?2 AND (ready_at IS NULL OR ready_at > ?1)"


def make_partition(work: SqliteWork, queue_id: int, name: str) -> Partition:
    """Make a partition; every group of its queue starts at its beginning."""
    work.execute(
        "INSERT INTO partition (uid, queue_id, name, created_at) VALUES (?, ?, ?, ?)",
        (mint(), queue_id, name, work.now),
    )
    made = work.partition(queue_id, name)
    assert made is not None  # noqa: S101 - it was inserted in the line above
    work.execute(
        "INSERT INTO progress (group_id, part_id, claimed, ready_at) SELECT id, ?, 0, NULL FROM consumer_group"
        " WHERE queue_id = ?",
        (made.id, queue_id),
    )
    work.execute("UPDATE queue SET partitions = partitions + 1 WHERE id = ?", (queue_id,))
    return made


def room_in(work: SqliteWork, queue: Queue) -> float:
    """How many more messages fit: the limit minus the open ones of the slowest group; without a group, minus all."""
    if not queue.options.max_size:
        return float("inf")
    unsettled: int | None = work.execute(UNSETTLED, (queue.id,)).fetchone()[0]
    if unsettled is None:
        unsettled = work.number(STORED, queue.id)
    return queue.options.max_size - unsettled - work.number(SCHEDULED, queue.id)


STORED: Final = "SELECT count(*) FROM partition AS p CROSS JOIN message AS m ON m.part_id = p.id WHERE p.queue_id = ?"
SCHEDULED: Final = "SELECT count(*) FROM scheduled WHERE queue_id = ?"
UNSETTLED: Final = f"""
SELECT max(n) FROM (
    SELECT (
        SELECT sum({OPEN})
        FROM partition AS part CROSS JOIN progress AS pr ON pr.group_id = g.id AND pr.part_id = part.id
        WHERE part.queue_id = g.queue_id) AS n
    FROM consumer_group AS g WHERE g.queue_id = ?)
"""  # noqa: S608 - of constants


# -- scheduled messages


def number_due(work: SqliteWork, queue: Queue) -> bool:
    """Give the queue's due messages their places, in the order they became due; returns whether there may be more."""
    due = work.execute(
        "SELECT part_id, transaction_id, id, trace_id, producer, sealed, payload, due_at FROM scheduled"
        " WHERE queue_id = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?",
        (queue.id, work.now, NUMBERED_AT_ONCE),
    ).fetchall()
    for part_id in dict.fromkeys(row[0] for row in due):
        partition = work.partition_of(part_id)
        rows: list[Row] = [
            (
                part_id, partition.last_seq + index, message_id, transaction_id, trace_id, producer,
                max(due_at, partition.last_at), sealed, payload,
            )
            for index, (_, transaction_id, message_id, trace_id, producer, sealed, payload, due_at) in enumerate(
                (row for row in due if row[0] == part_id), 1
            )
        ]  # fmt: skip
        work.executemany(
            "DELETE FROM scheduled WHERE part_id = ? AND transaction_id = ?", [(part_id, row[3]) for row in rows]
        )
        number_passed(work, [(row[2], row[1]) for row in rows])
        insert_messages(work, queue, part_id, rows)
    return len(due) == NUMBERED_AT_ONCE


def number_all_due(work: SqliteWork, queue: Queue) -> None:
    """The same for all due messages: a message pushed now comes after those that were due before."""
    while number_due(work, queue):
        pass
