"""Messages that a group has given up: one row a message and group, with its own copy of everything."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.names import is_text
from pump.queue.sqlite_progress import is_held, progress_of, ready_again
from pump.queue.sqlite_push import push
from pump.queue.sqlite_work import Work
from pump.queue.vocabulary import DeadLetter, Filter, Push, Pushed

RETRIES: Final = "max_retries"
GIVEN_UP: Final = "dlq"
REDRIVEN: Final = "reprocess-"
WAITED: Final = "max_wait_time"
RETENTION: Final = "retention"


class Fate(NamedTuple):
    """Why a message died, and how often it had been tried."""

    reason: str
    error: str
    retries: int = 0
    crashes: int = 0
    deliveries: int = 0


def bury(work: Work, group_id: int, part_id: int, seq: int, fate: Fate) -> None:
    """Make a dead letter of a message for a group, which has then settled it."""
    work.execute(BURY, (mint(), group_id, *fate, work.now, part_id, seq))
    work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (group_id, part_id, seq))


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
    rows = work.execute(
        "SELECT id, group_id, part_id, seq FROM dead WHERE partition_uid = ? AND transaction_id = ? AND seq IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM message AS m WHERE m.part_id = dead.part_id AND m.seq = dead.seq)"
        " AND EXISTS (SELECT 1 FROM consumer_group AS g WHERE g.id = dead.group_id)",
        (partition_uid, transaction_id),
    ).fetchall()
    for dead_id, group_id, part_id, seq in rows:
        work.execute("DELETE FROM dead WHERE id = ?", (dead_id,))
        work.execute(
            "INSERT INTO delivery (group_id, part_id, seq, deliveries, retries, crashes, budget, visible_at)"
            " VALUES (?, ?, ?, 0, 0, 0, -1, ?)",
            (group_id, part_id, seq, work.now),
        )
        queue = work.queue_of(work.partition_of(part_id).queue_id)
        progress = progress_of(work, group_id, part_id)
        if not is_held(work, queue, progress):
            ready_again(work, queue, progress)
    return len(rows)
