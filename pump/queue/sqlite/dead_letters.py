"""Messages that a group has given up: one row for each message and group, with its own copy of the message."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pump.queue.ids import ids_for, mint
from pump.queue.limits import is_text
from pump.queue.results import push_of
from pump.queue.sqlite.progress import is_leased, progress_of, update_ready
from pump.queue.sqlite.push import push_messages
from pump.queue.sqlite.work import Partition, Queue, SqliteWork
from pump.queue.vocabulary import DeadLetter, Filter, Pushed

log: Final = logging.getLogger("pump.queue")

MAX_RETRIES: Final = "max_retries"
BY_CONSUMER: Final = "dlq"
MAX_WAIT: Final = "max_wait_time"
RETENTION: Final = "retention"
BY_OPERATOR: Final = "operator"


class Cause(NamedTuple):
    """Why a message became a dead letter, and how often it had been tried."""

    reason: str
    error: str
    retries: int = 0
    crashes: int = 0
    deliveries: int = 0


class Position(NamedTuple):
    """The queue, partition and place of a stored message."""

    queue: Queue
    partition: Partition
    message_id: str
    seq: int | None
    """None while it is scheduled."""


def position_of(work: SqliteWork, partition_uid: str, transaction_id: str) -> Position | None:
    """The position of a message; None if there is no such message."""
    partition = work.partition_by_uid(partition_uid) if is_text(partition_uid) else None
    if partition is None or not is_text(transaction_id):
        return None
    row = work.execute(
        "SELECT id, seq FROM message WHERE part_id = ?1 AND transaction_id = ?2"
        " UNION ALL SELECT id, NULL FROM scheduled WHERE part_id = ?1 AND transaction_id = ?2",
        (partition.id, transaction_id),
    ).fetchone()
    return row and Position(work.queue_of(partition.queue_id), partition, *row)


def insert_dead(work: SqliteWork, group_id: int, part_id: int, seq: int, cause: Cause) -> None:
    """Make a message a dead letter for a group; this settles it."""
    work.execute(INSERT_DEAD, (mint(), group_id, *cause, work.now, part_id, seq))
    work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (group_id, part_id, seq))


def insert_dead_ahead(work: SqliteWork, group_id: int, position: Position, cause: Cause) -> bool:
    """The same for a message that was not handed out to the group yet; False if the group has already settled it."""
    _, partition, message_id, seq = position
    passed = work.execute(
        "INSERT OR IGNORE INTO passed (message_id, group_id, part_id, seq, dead) VALUES (?, ?, ?, ?, 1)",
        (message_id, group_id, partition.id, seq),
    )
    if passed.rowcount < 1:
        return False
    statement, last = (INSERT_DEAD_SCHEDULED, message_id) if seq is None else (INSERT_DEAD, seq)
    work.execute(statement, (mint(), group_id, *cause, work.now, partition.id, last))
    return True


INSERT_DEAD: Final = """
INSERT INTO dead (id, message_id, group_name, group_id, part_id, seq, queue, partition, partition_uid, transaction_id,
    trace_id, producer, sealed, payload, reason, error, retries, crashes, deliveries, created_at, moved_at)
SELECT ?1, m.id, g.name, g.id, m.part_id, m.seq, q.name, p.name, p.uid, m.transaction_id,
    m.trace_id, m.producer, m.sealed, m.payload, ?3, ?4, ?5, ?6, ?7, m.at, ?8
FROM message AS m CROSS JOIN partition AS p ON p.id = m.part_id CROSS JOIN queue AS q ON q.id = p.queue_id
    CROSS JOIN consumer_group AS g ON g.id = ?2
WHERE m.part_id = ?9 AND m.seq = ?10
ON CONFLICT (message_id, group_name) DO UPDATE SET group_id = excluded.group_id, part_id = excluded.part_id,
    seq = excluded.seq, reason = excluded.reason, error = excluded.error, retries = excluded.retries,
    crashes = excluded.crashes, deliveries = excluded.deliveries, moved_at = excluded.moved_at, redriven_at = NULL
"""
INSERT_DEAD_SCHEDULED: Final = (
    INSERT_DEAD.replace("m.part_id, m.seq,", "m.part_id, NULL,")
    .replace("FROM message AS m", "FROM scheduled AS m")
    .replace("m.seq = ?10", "m.id = ?10")
)


COUNT: Final = "SELECT count(*) FROM dead WHERE "
LETTER: Final = (
    "SELECT sealed, trace_id, id, message_id, transaction_id, partition_uid, partition, queue, group_name, payload,"
    " reason, error, retries, crashes, deliveries, producer, created_at, moved_at, redriven_at FROM dead WHERE "
)


def list_dead_letters(work: SqliteWork, which: Filter) -> tuple[list[DeadLetter], int]:
    """A page of dead letters, newest first, and their total number."""
    where = {
        "queue = ?": which.queue,
        "partition = ?": which.partition,
        "group_name = ?": which.group,
        "moved_at >= ?": which.since,
        "moved_at <= ?": which.until,
    }
    chosen = {condition: value for condition, value in where.items() if value is not None}
    condition = " AND ".join(("1", *chosen))
    values = tuple(chosen.values())
    rows = work.execute(
        LETTER + condition + " ORDER BY moved_at DESC, id DESC LIMIT ? OFFSET ?", (*values, which.limit, which.offset)
    )
    return [letter(work, row) for row in rows.fetchall()], work.number(COUNT + condition, *values)


def letter(work: SqliteWork, row: tuple[Any, ...]) -> DeadLetter:
    """A row as a dead letter; without its payload if that cannot be read here."""
    found = DeadLetter(*row[2:])
    payload = work.opened(row[9], found.partition_id, found.transaction_id, sealed=row[0])
    return replace(found, payload=payload)


def count_dead_letters(work: SqliteWork) -> dict[str, int]:
    """The number of dead letters of each queue."""
    return dict(work.execute("SELECT queue, count(*) FROM dead GROUP BY queue"))


def redrive_letters(work: SqliteWork, ids: Sequence[str]) -> list[Pushed | None]:
    """Push each again, once; None for one that is unknown or was redriven before."""
    return [_redrive(work, dead_id) if is_text(dead_id) else None for dead_id in ids]


def _redrive(work: SqliteWork, dead_id: str) -> Pushed | None:
    row = work.execute(LETTER + "id = ? AND redriven_at IS NULL", (dead_id,)).fetchone()
    if row is None:
        return None
    items = [push_of(letter(work, row), trace_id=row[1])]
    pushed = push_messages(work, items, ids_for(items))[0]
    if not pushed.refused:
        work.execute("UPDATE dead SET redriven_at = ? WHERE id = ?", (work.now, dead_id))
    return pushed


def retry_message(work: SqliteWork, partition_uid: str, transaction_id: str) -> int:
    """Make a dead message pending again in its old place for every group that gave it up; returns how many groups."""
    position = position_of(work, partition_uid, transaction_id)
    if position is None:
        return 0
    count = sum(_retry_for(work, group.id, position) for group in work.groups_of(position.queue.id))
    if count:
        log.info("message %s of partition %s was made pending again", transaction_id, partition_uid)
    return count


def _retry_for(work: SqliteWork, group_id: int, position: Position) -> bool:
    """The same for one group; returns whether it had given the message up."""
    queue, partition, message_id, seq = position
    progress = progress_of(work, group_id, partition.id)
    key = (*progress.key, seq)
    if seq is None or seq > progress.claimed:
        forget = "DELETE FROM passed WHERE message_id = ? AND group_id = ? AND dead"
        if work.execute(forget, (message_id, group_id)).rowcount < 1:
            return False
    elif not work.exists("SELECT 1 FROM dead WHERE group_id = ? AND part_id = ? AND seq = ?", *key):
        return False
    else:
        work.execute(PENDING_AGAIN, (*key, work.now))
    work.execute("DELETE FROM dead WHERE message_id = ? AND group_id = ?", (message_id, group_id))
    if not is_leased(work, queue, progress):
        update_ready(work, queue, progress)
    return True


PENDING_AGAIN: Final = (
    "INSERT INTO delivery (group_id, part_id, seq, deliveries, retries, crashes, budget, visible_at)"
    " VALUES (?, ?, ?, 0, 0, 0, -1, ?)"
)
