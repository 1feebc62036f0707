"""Messages that a group has given up: one row a message and group, with its own copy of everything."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.limits import is_text
from pump.queue.sqlite.progress import Progress, is_held, progress_of, ready_again
from pump.queue.sqlite.push import push
from pump.queue.sqlite.work import Queue, Work
from pump.queue.vocabulary import DeadLetter, Filter, Push, Pushed

log: Final = logging.getLogger("pump.queue")

RETRIES: Final = "max_retries"
GIVEN_UP: Final = "dlq"
REDRIVEN: Final = "reprocess-"
WAITED: Final = "max_wait_time"
RETENTION: Final = "retention"
OPERATOR: Final = "operator"


class Fate(NamedTuple):
    """Why a message died, and how often it had been tried."""

    reason: str
    error: str
    retries: int = 0
    crashes: int = 0
    deliveries: int = 0


class Where(NamedTuple):
    """A stored message; without a place while it is not due."""

    message_id: str
    seq: int | None


def place_of(work: Work, part_id: int, transaction_id: str) -> Where | None:
    """Where the message of that transaction id is."""
    row = work.execute(
        "SELECT id, seq FROM message WHERE part_id = ?1 AND transaction_id = ?2"
        " UNION ALL SELECT id, NULL FROM scheduled WHERE part_id = ?1 AND transaction_id = ?2",
        (part_id, transaction_id),
    ).fetchone()
    return row and Where(*row)


def bury(work: Work, group_id: int, part_id: int, seq: int, fate: Fate) -> None:
    """Make a dead letter of a message for a group, which has then settled it."""
    work.execute(BURY, (mint(), group_id, *fate, work.now, part_id, seq))
    work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (group_id, part_id, seq))


def bury_ahead(work: Work, group_id: int, part_id: int, where: Where, fate: Fate) -> bool:
    """The same of a message that the group has not come to; False where it is done with that already."""
    passed = work.execute(
        "INSERT OR IGNORE INTO passed (message_id, group_id, part_id, seq, dead) VALUES (?, ?, ?, ?, 1)",
        (where.message_id, group_id, part_id, where.seq),
    )
    if passed.rowcount < 1:
        return False
    if where.seq is None:
        work.execute(BURY_SCHEDULED, (mint(), group_id, *fate, work.now, part_id, where.message_id))
    else:
        work.execute(BURY, (mint(), group_id, *fate, work.now, part_id, where.seq))
    return True


BURY: Final = """
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
BURY_SCHEDULED: Final = (
    BURY.replace("m.part_id, m.seq,", "m.part_id, NULL,")
    .replace("FROM message AS m", "FROM scheduled AS m")
    .replace("m.seq = ?10", "m.id = ?10")
)


COUNT: Final = "SELECT count(*) FROM dead WHERE "
LETTER: Final = (
    "SELECT sealed, trace_id, id, message_id, transaction_id, partition_uid, partition, queue, group_name, payload,"
    " reason, error, retries, crashes, deliveries, producer, created_at, moved_at, redriven_at FROM dead WHERE "
)


def dead_letters(work: Work, which: Filter) -> tuple[list[DeadLetter], int]:
    """A page of dead letters, newest first, and how many there are in all."""
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
    total: tuple[int] = work.execute(COUNT + condition, values).fetchone()
    rows = work.execute(
        LETTER + condition + " ORDER BY moved_at DESC, id DESC LIMIT ? OFFSET ?", (*values, which.limit, which.offset)
    )
    return [letter(work, row) for row in rows.fetchall()], total[0]


def letter(work: Work, row: tuple[Any, ...]) -> DeadLetter:
    """One dead letter; without its payload where that cannot be read here."""
    found = DeadLetter(*row[2:])
    sealed = row[9]
    return replace(found, payload=work.opened(row[0], sealed, found.partition_id, found.transaction_id))


def redrive(work: Work, ids: Sequence[str]) -> list[Pushed | None]:
    """Push each again, once; None where there is none or it was done before."""
    return [redrive_one(work, dead_id) if is_text(dead_id) else None for dead_id in ids]


def redrive_one(work: Work, dead_id: str) -> Pushed | None:
    """Push one again and note that it was done, together."""
    row = work.execute(LETTER + "id = ? AND redriven_at IS NULL", (dead_id,)).fetchone()
    if row is None:
        return None
    dead = letter(work, row)
    if dead.payload is None:
        raise Conflict(f"dead letter {dead_id} is encrypted with a key that is not here")
    name = REDRIVEN + dead.transaction_id
    again = Push(dead.queue, dead.payload, dead.partition, name, trace_id=row[1], producer=dead.producer)
    pushed = push(work, [again])[0]
    if not pushed.refused:
        work.execute("UPDATE dead SET redriven_at = ? WHERE id = ?", (work.now, dead_id))
    return pushed


def retry(work: Work, partition_uid: str, transaction_id: str) -> int:
    """Make a dead message pending again in its place, for every group that gave it up."""
    partition = work.partition_by_uid(partition_uid) if is_text(partition_uid) else None
    where = partition and is_text(transaction_id) and place_of(work, partition.id, transaction_id)
    if not partition or not where:
        return 0
    queue = work.queue_of(partition.queue_id)
    number = sum(
        retry_for(work, queue, progress_of(work, each.id, partition.id), where) for each in work.groups(queue.id)
    )
    if number:
        log.info("message %s of partition %s was made pending again", transaction_id, partition_uid)
    return number


def retry_for(work: Work, queue: Queue, progress: Progress, where: Where) -> bool:
    """The same for one group; whether it had given the message up."""
    key = (progress.group_id, progress.part_id, where.seq)
    if where.seq is None or where.seq > progress.claimed:
        passed = work.execute(
            "DELETE FROM passed WHERE message_id = ? AND group_id = ? AND dead", (where.message_id, progress.group_id)
        )
        if passed.rowcount < 1:
            return False
    elif work.execute("SELECT 1 FROM dead WHERE group_id = ? AND part_id = ? AND seq = ?", key).fetchone() is None:
        return False
    else:
        work.execute(PENDING_AGAIN, (*key, work.now))
    work.execute("DELETE FROM dead WHERE message_id = ? AND group_id = ?", (where.message_id, progress.group_id))
    if not is_held(work, queue, progress):
        ready_again(work, queue, progress)
    return True


PENDING_AGAIN: Final = (
    "INSERT INTO delivery (group_id, part_id, seq, deliveries, retries, crashes, budget, visible_at)"
    " VALUES (?, ?, ?, 0, 0, 0, -1, ?)"
)
