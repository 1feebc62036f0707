"""Storing messages: each gets the next place of its partition, or waits without one until it is due."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

from pump.queue.ids import mint, mint_many
from pump.queue.limits import MOST_PARTITIONS
from pump.queue.options import QueueOptions
from pump.queue.sqlite.gaps import GONE_BEYOND, place_passed
from pump.queue.sqlite.work import NO_KEY, Partition, Queue, Work
from pump.queue.vocabulary import Push, Pushed

FULL: Final = "queue is full"
TOO_MANY_PARTITIONS: Final = "queue has too many partitions"
PLACED_AT_ONCE: Final = 1000

Row = tuple[int, int, str, str, str | None, str | None, float, int, bytes]


def push(work: Work, items: Sequence[Push]) -> list[Pushed]:
    """Store each; answers in order."""
    shelves: dict[tuple[str, str], Shelf] = {}
    places: list[tuple[Shelf, int]] = []
    ids = mint_many(2 * len(items))
    for index, item in enumerate(items):
        key = (item.queue, item.partition)
        shelf = shelves.get(key)
        if shelf is None:
            shelf = shelves[key] = Shelf(work, *key)
        places.append((shelf, shelf.add(item, ids[2 * index], ids[2 * index + 1])))
    rooms: dict[int, Room] = {}
    for shelf in shelves.values():
        shelf.fill(rooms)
    return [shelf.answers[index] for shelf, index in places]


class Room:
    """How many more a queue takes."""

    def __init__(self, work: Work, queue: Queue) -> None:
        limit = queue.options.max_size
        self.left: float = limit - backlog(work, queue.id) if limit else float("inf")


class Shelf:
    """What one call pushes to one partition."""

    def __init__(self, work: Work, queue_name: str, name: str) -> None:
        self._work = work
        self._queue = work.queue(queue_name) or work.make_queue(queue_name, None, QueueOptions())
        self._name = name
        self._items: list[tuple[Push, str, str]] = []
        self._rows: list[Row] = []
        self.answers: list[Pushed] = []

    def add(self, item: Push, message_id: str, minted: str) -> int:
        """Take note of an item; its number on this shelf."""
        self._items.append((item, message_id, item.transaction_id or minted))
        return len(self._items) - 1

    def fill(self, rooms: dict[int, Room]) -> None:
        """Store what may be stored."""
        reason, partition = self._opened()
        if partition is None:
            self.answers = [self._refused(item, transaction_id, "", reason) for item, _, transaction_id in self._items]
            return
        if self._queue.id not in rooms:
            rooms[self._queue.id] = Room(self._work, self._queue)
        room, known = rooms[self._queue.id], self._known(partition)
        now, seq = self._work.now, partition.last_seq
        at = max(now, partition.last_at)
        for item, message_id, transaction_id in self._items:
            if transaction_id in known:
                self.answers.append(
                    self._answer(item, known[transaction_id], transaction_id, partition, duplicate=True)
                )
                continue
            if room.left < 1:
                self.answers.append(self._refused(item, transaction_id, partition.uid, FULL))
                continue
            room.left -= 1
            known[transaction_id] = message_id
            due = max(item.not_before, now + item.delay)
            if due > now:
                self._schedule(item, message_id, transaction_id, partition, due)
            else:
                seq += 1
                sealed, payload = self._sealed(item, partition, transaction_id)
                self._rows.append((
                    partition.id, seq, message_id, transaction_id, item.trace_id, item.producer, at, sealed, payload
                ))  # fmt: skip
            self.answers.append(self._answer(item, message_id, transaction_id, partition, scheduled=due > now))
        store(self._work, self._queue, partition.id, self._rows)

    def _opened(self) -> tuple[str, Partition | None]:
        """The partition, or why nothing can be stored in it."""
        work, queue = self._work, self._queue
        place_all_due(work, queue)
        if queue.options.encryption and work.sealing is None:
            return NO_KEY, None
        partition = work.partition(queue.id, self._name)
        if partition is None and has_too_many_partitions(work, queue.id):
            return TOO_MANY_PARTITIONS, None
        return "", partition or make_partition(work, queue.id, self._name)

    def _known(self, partition: Partition) -> dict[str, str]:
        """Those of the transaction ids that are in the partition already, with the ids of their messages."""
        given = json.dumps([item.transaction_id for item, _, _ in self._items if item.transaction_id])
        if given == "[]" or not (partition.last_seq or self._has_scheduled(partition)):
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

    def _has_scheduled(self, partition: Partition) -> bool:
        found = self._work.execute("SELECT 1 FROM scheduled WHERE part_id = ? LIMIT 1", (partition.id,)).fetchone()
        return found is not None

    def _sealed(self, item: Push, partition: Partition, transaction_id: str) -> tuple[int, bytes]:
        """The payload as it is stored, and whether it is sealed."""
        if not self._queue.options.encryption or self._work.sealing is None:
            return 0, item.payload
        return 1, self._work.sealing.seal(item.payload, partition.uid, transaction_id)

    def _schedule(self, item: Push, message_id: str, transaction_id: str, partition: Partition, due: float) -> None:
        """Keep it until it is due."""
        sealed, payload = self._sealed(item, partition, transaction_id)
        self._work.execute(
            "INSERT INTO scheduled"
            " (part_id, transaction_id, queue_id, due_at, id, trace_id, producer, at, sealed, payload)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                partition.id, transaction_id, self._queue.id, due, message_id, item.trace_id, item.producer,
                self._work.now, sealed, payload,
            ),
        )  # fmt: skip
        self._work.rung.add(self._queue.name)

    def _answer(
        self,
        item: Push,
        message_id: str,
        transaction_id: str,
        partition: Partition,
        *,
        duplicate: bool = False,
        scheduled: bool = False,
    ) -> Pushed:
        return Pushed(
            item.queue,
            item.partition,
            partition.uid,
            message_id,
            transaction_id,
            duplicate,
            "",
            scheduled,
            item.trace_id,
        )

    def _refused(self, item: Push, transaction_id: str, partition_uid: str, why: str) -> Pushed:
        return Pushed(
            item.queue, item.partition, partition_uid, "", transaction_id, refused=why, trace_id=item.trace_id
        )


def store(work: Work, queue: Queue, part_id: int, rows: Sequence[Row]) -> None:
    """Insert messages that have their places, and make their partition ready for every group."""
    if not rows:
        return
    work.executemany(
        "INSERT INTO message (part_id, seq, id, transaction_id, trace_id, producer, at, sealed, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    work.execute("UPDATE partition SET last_seq = ?, last_at = ? WHERE id = ?", (rows[-1][1], rows[-1][6], part_id))
    work.execute(WAKE if queue.ordered else WAKE_ALL, (work.now, part_id))
    work.rung.add(queue.name)


WAKE: Final = "UPDATE progress SET ready_at = ?1 WHERE part_id = ?2 AND ready_at IS NULL"
"""In order, a lease or a delay keeps back what is new."""
WAKE_ALL: Final = "UPDATE progress SET ready_at = ?1 WHERE part_id = ?2 AND (ready_at IS NULL OR ready_at > ?1)"


def make_partition(work: Work, queue_id: int, name: str) -> Partition:
    """A new partition, which every group of its queue has all of before it."""
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


def has_too_many_partitions(work: Work, queue_id: int) -> bool:
    """Whether the queue may not have another."""
    row: tuple[int] = work.execute("SELECT partitions FROM queue WHERE id = ?", (queue_id,)).fetchone()
    return row[0] >= MOST_PARTITIONS


def backlog(work: Work, queue_id: int) -> int:
    """How many messages the slowest group has still to settle; all, where there is no group."""
    counted: tuple[int | None] = work.execute(BACKLOG, (queue_id,)).fetchone()
    waiting: tuple[int] = work.execute("SELECT count(*) FROM scheduled WHERE queue_id = ?", (queue_id,)).fetchone()
    return (stored_in(work, queue_id) if counted[0] is None else counted[0]) + waiting[0]


BACKLOG: Final = f"""
SELECT max(n) FROM (
    SELECT (
        SELECT sum(part.last_seq - pr.claimed - ({GONE_BEYOND})
            + (SELECT count(*) FROM delivery AS d WHERE d.group_id = g.id AND d.part_id = part.id))
        FROM partition AS part CROSS JOIN progress AS pr ON pr.group_id = g.id AND pr.part_id = part.id
        WHERE part.queue_id = g.queue_id) AS n
    FROM consumer_group AS g WHERE g.queue_id = ?)
"""  # noqa: S608 - of constants


def stored_in(work: Work, queue_id: int) -> int:
    """How many messages a queue holds, whoever has settled them."""
    row: tuple[int] = work.execute(
        "SELECT count(*) FROM partition AS p CROSS JOIN message AS m ON m.part_id = p.id WHERE p.queue_id = ?",
        (queue_id,),
    ).fetchone()
    return row[0]


def place_due(work: Work, queue: Queue) -> bool:
    """Give the queue's due messages their places, in the order they became due; whether there may be more."""
    due = work.execute(
        "SELECT part_id, transaction_id, id, trace_id, producer, sealed, payload, due_at FROM scheduled"
        " WHERE queue_id = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?",
        (queue.id, work.now, PLACED_AT_ONCE),
    ).fetchall()
    for part_id in dict.fromkeys(row[0] for row in due):
        place_in(work, queue, part_id, [row for row in due if row[0] == part_id])
    return len(due) == PLACED_AT_ONCE


def place_all_due(work: Work, queue: Queue) -> None:
    """The same for all of them: what is pushed now comes after what was due before."""
    while place_due(work, queue):
        pass


def place_in(
    work: Work,
    queue: Queue,
    part_id: int,
    due: Iterable[tuple[int, str, str, str | None, str | None, int, bytes, float]],
) -> None:
    """Give the due messages of one partition the next places in it."""
    partition = work.partition_of(part_id)
    rows: list[Row] = [
        (
            part_id, partition.last_seq + index, message_id, transaction_id, trace_id, producer,
            max(due_at, partition.last_at), sealed, payload,
        )
        for index, (_, transaction_id, message_id, trace_id, producer, sealed, payload, due_at) in enumerate(due, 1)
    ]  # fmt: skip
    work.executemany(
        "DELETE FROM scheduled WHERE part_id = ? AND transaction_id = ?", [(part_id, row[3]) for row in rows]
    )
    place_passed(work, [(row[2], row[1]) for row in rows])
    store(work, queue, part_id, rows)
