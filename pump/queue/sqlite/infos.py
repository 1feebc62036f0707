"""Queues, partitions and groups as operators see them, counted from the rows at one moment."""

from collections.abc import Sequence
from typing import Final

from pump.queue.limits import LONGEST_LEASE_SECONDS
from pump.queue.numbers import numbers_of
from pump.queue.sqlite.gaps import NEW_IN, NEXT, OPEN
from pump.queue.sqlite.progress import Progress, is_leased, progress_of
from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import GroupInfo, PartitionInfo, PartitionNumbers, ProgressInfo, QueueInfo


def list_queues(work: SqliteWork, name: str | None = None, *, whole: bool = False) -> list[QueueInfo]:
    """All queues, with partitions and groups only if `whole`; or the named queue with its partitions and groups."""
    rows = work.execute(
        "SELECT id, uid, name, namespace, task, ordered, created_at FROM queue"
        " WHERE ?1 IS NULL OR name = ?1 ORDER BY name",
        (name,),
    ).fetchall()
    return [_queue_info(work, row, whole=whole or name is not None) for row in rows]


def _queue_info(work: SqliteWork, row: tuple[int, str, str, str, str, int | None, float], *, whole: bool) -> QueueInfo:
    queue_id, uid, name, namespace, task, ordered, created_at = row
    mode = None if ordered is None else bool(ordered)
    if not whole:
        return QueueInfo(uid, name, namespace, task, mode, created_at)
    queue, groups = work.queue_of(queue_id), work.groups_of(queue_id)
    partitions = [_partition_info(work, queue, each, groups) for each in work.partitions(queue_id)]
    infos = [_group_info(work, queue, group) for group in groups]
    return QueueInfo(uid, name, namespace, task, mode, created_at, partitions, infos)


def count_messages(work: SqliteWork, queue: str | None) -> dict[str, list[PartitionNumbers]]:
    """Count the messages of each partition, in all or by group and state, for every queue or one."""
    return numbers_of(work.execute(NUMBERS, (work.now, work.now + LONGEST_LEASE_SECONDS, queue)))


NUMBERS: Final = """
WITH part AS MATERIALIZED (
    SELECT p.id, p.last_seq, q.name, q.ordered IS NOT 0 AS ordered
    FROM partition AS p JOIN queue AS q ON q.id = p.queue_id WHERE ?3 IS NULL OR q.name = ?3),
placed AS MATERIALIZED (
    SELECT m.part_id, count(*) AS n FROM message AS m WHERE m.part_id IN (SELECT id FROM part) GROUP BY m.part_id),
waiting AS MATERIALIZED (SELECT part_id, count(*) AS n FROM scheduled GROUP BY part_id),
empty AS MATERIALIZED (
    SELECT pr.group_id, pr.part_id, sum(gap.last - max(gap.seq - 1, pr.claimed)) AS n
    FROM gap JOIN progress AS pr ON pr.part_id = gap.part_id AND gap.last > pr.claimed GROUP BY 1, 2),
ahead AS MATERIALIZED (
    SELECT x.group_id, x.part_id, sum(x.seq IS NOT NULL AND x.seq > pr.claimed) AS placed,
        sum(x.seq IS NULL) AS waiting, sum(x.seq IS NULL AND x.dead) AS dead
    FROM passed AS x JOIN progress AS pr ON pr.group_id = x.group_id AND pr.part_id = x.part_id GROUP BY 1, 2),
given AS MATERIALIZED (
    SELECT d.group_id, d.part_id, count(*) AS n, sum(d.lease_id IS NOT NULL AND CASE WHEN part.ordered
        THEN d.lease_id = pr.lease_id AND pr.lease_until > ?1 AND pr.lease_until <= ?2
        ELSE d.visible_at > ?1 END) AS leased
    FROM delivery AS d JOIN part ON part.id = d.part_id
    JOIN progress AS pr ON pr.group_id = d.group_id AND pr.part_id = d.part_id GROUP BY 1, 2),
buried AS MATERIALIZED (SELECT group_id, part_id, count(*) AS n FROM dead WHERE seq IS NOT NULL GROUP BY 1, 2)
SELECT part.name, part.id, coalesce(placed.n, 0) + coalesce(waiting.n, 0), pr.group_id,
    part.last_seq - pr.claimed - coalesce(empty.n, 0) - coalesce(ahead.placed, 0)
        + coalesce(given.n, 0) - coalesce(given.leased, 0) + coalesce(waiting.n, 0) - coalesce(ahead.waiting, 0),
    coalesce(given.leased, 0), pr.total, coalesce(ahead.dead, 0) + coalesce(buried.n, 0)
FROM part LEFT JOIN placed ON placed.part_id = part.id LEFT JOIN waiting ON waiting.part_id = part.id
LEFT JOIN progress AS pr ON pr.part_id = part.id
LEFT JOIN empty ON empty.group_id = pr.group_id AND empty.part_id = pr.part_id
LEFT JOIN ahead ON ahead.group_id = pr.group_id AND ahead.part_id = pr.part_id
LEFT JOIN given ON given.group_id = pr.group_id AND given.part_id = pr.part_id
LEFT JOIN buried ON buried.group_id = pr.group_id AND buried.part_id = pr.part_id
ORDER BY part.id, pr.group_id
"""


def _partition_info(
    work: SqliteWork, queue: Queue, partition: Partition, groups: Sequence[ConsumerGroup]
) -> PartitionInfo:
    placed = work.number("SELECT count(*) FROM message WHERE part_id = ?", partition.id)
    scheduled = work.number("SELECT count(*) FROM scheduled WHERE part_id = ?", partition.id)
    progress = [_progress_info(work, queue, partition, group, scheduled) for group in groups]
    return PartitionInfo(
        partition.uid, partition.name, placed + scheduled, partition.last_seq, partition.created_at, progress
    )


def _progress_info(
    work: SqliteWork, queue: Queue, partition: Partition, group: ConsumerGroup, scheduled: int
) -> ProgressInfo:
    progress = progress_of(work, group.id, partition.id)
    where = progress.key
    total, consumed_at = work.execute(
        "SELECT total, last_consumed_at FROM progress WHERE group_id = ? AND part_id = ?", where
    ).fetchone()
    lease = (progress.lease_id, progress.lease_until) if is_leased(work, queue, progress) else (None, None)
    delivered = work.number("SELECT count(*) FROM delivery WHERE group_id = ? AND part_id = ?", *where)
    leased = work.number(LEASED, *where, queue.ordered, lease[0], work.now)
    passed, given_up = work.execute(PASSED_SCHEDULED, where).fetchone()
    dead = work.number("SELECT count(*) FROM dead WHERE group_id = ? AND part_id = ? AND seq IS NOT NULL", *where)
    return ProgressInfo(
        group=group.name,
        cursor=cursor(work, progress),
        pending=work.number(NEW_IN, *where) + delivered - leased + scheduled - passed,
        leased=leased,
        completed=total,
        dead=given_up + dead,
        lag_seconds=_lag_seconds(work, progress),
        lease_id=lease[0],
        lease_until=lease[1],
        last_consumed_at=consumed_at,
    )


LEASED: Final = """
SELECT count(*) FROM delivery WHERE group_id = ?1 AND part_id = ?2
AND CASE WHEN ?3 THEN lease_id = ?4 ELSE lease_id IS NOT NULL AND visible_at > ?5 END
"""
PASSED_SCHEDULED: Final = (
    "SELECT count(*), coalesce(sum(dead), 0) FROM passed WHERE group_id = ? AND part_id = ? AND seq IS NULL"
)


def cursor(work: SqliteWork, progress: Progress) -> int:
    """The last place up to which everything is settled."""
    first = work.execute("SELECT min(seq) FROM delivery WHERE group_id = ? AND part_id = ?", progress.key).fetchone()[0]
    return progress.claimed if first is None else first - 1


def _lag_seconds(work: SqliteWork, progress: Progress) -> float:
    """The age of the oldest message that is not settled; 0 if there is none."""
    row = work.execute(NEXT, (*progress.key, cursor(work, progress))).fetchone()
    return 0.0 if row is None else max(0.0, work.now - row[1])


def list_groups(work: SqliteWork, name: str | None = None) -> list[GroupInfo]:
    """All groups of all queues, or those of that name."""
    rows = work.execute(
        "SELECT g.id, g.queue_id, g.name, g.subscription, g.subscription_from, g.created_at"
        " FROM consumer_group AS g CROSS JOIN queue AS q ON q.id = g.queue_id"
        " WHERE ?1 IS NULL OR g.name = ?1 ORDER BY q.name, g.name",
        (name,),
    ).fetchall()
    return [_group_info(work, work.queue_of(row[1]), ConsumerGroup(*row)) for row in rows]


def _group_info(work: SqliteWork, queue: Queue, group: ConsumerGroup) -> GroupInfo:
    partitions, behind, lag = work.execute(LAG, (group.id,)).fetchone()
    oldest = 0.0
    if lag:
        rows = work.execute(BEHIND, (group.id,)).fetchall()
        oldest = max((_lag_seconds(work, progress_of(work, group.id, part_id)) for (part_id,) in rows), default=0.0)
    return GroupInfo(
        group.name, queue.name, partitions, behind or 0, lag or 0, oldest, group.subscription,
        group.subscription_from, group.created_at,
    )  # fmt: skip


BEHIND: Final = """
SELECT pr.part_id FROM progress AS pr CROSS JOIN partition AS part ON part.id = pr.part_id
WHERE pr.group_id = ?1 AND (part.last_seq > pr.claimed
    OR EXISTS (SELECT 1 FROM delivery AS d WHERE d.group_id = ?1 AND d.part_id = pr.part_id))
"""
LAG: Final = f"""
SELECT count(*), sum(n > 0), sum(n) FROM (
    SELECT {OPEN} AS n
    FROM progress AS pr CROSS JOIN partition AS part ON part.id = pr.part_id WHERE pr.group_id = ?)
"""  # noqa: S608 - of constants
