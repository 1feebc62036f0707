"""Queues, partitions and groups as operators see them, counted from the rows at one moment."""

from collections.abc import Sequence
from typing import Final

from pump.queue.sqlite.gaps import NEXT, NOTHING_AFTER, nothing_after
from pump.queue.sqlite.progress import Progress, is_leased, progress_of
from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import GroupInfo, PartitionInfo, ProgressInfo, QueueInfo


def list_queues(work: SqliteWork, name: str | None = None) -> list[QueueInfo]:
    """All queues without their partitions, or the one of that name with its partitions."""
    rows = work.execute(
        "SELECT id, uid, name, namespace, task, ordered, created_at FROM queue"
        " WHERE ?1 IS NULL OR name = ?1 ORDER BY name",
        (name,),
    ).fetchall()
    return [info(work, row, whole=name is not None) for row in rows]


def info(work: SqliteWork, row: tuple[int, str, str, str, str, int | None, float], *, whole: bool) -> QueueInfo:
    """One queue."""
    queue_id, uid, name, namespace, task, ordered, created_at = row
    queue = work.queue_of(queue_id)
    groups = work.groups_of(queue_id)
    partitions = [partition_info(work, queue, each, groups) for each in work.partitions(queue_id)] if whole else []
    mode = None if ordered is None else bool(ordered)
    infos = [group_info(work, queue, group) for group in groups]
    return QueueInfo(uid, name, namespace, task, mode, created_at, partitions, infos)


def partition_info(
    work: SqliteWork, queue: Queue, partition: Partition, groups: Sequence[ConsumerGroup]
) -> PartitionInfo:
    """One partition."""
    placed = work.number("SELECT count(*) FROM message WHERE part_id = ?", partition.id)
    scheduled = work.number("SELECT count(*) FROM scheduled WHERE part_id = ?", partition.id)
    progress = [progress_info(work, queue, partition, group, scheduled) for group in groups]
    return PartitionInfo(
        partition.uid, partition.name, placed + scheduled, partition.last_seq, partition.created_at, progress
    )


def progress_info(
    work: SqliteWork, queue: Queue, partition: Partition, group: ConsumerGroup, scheduled: int
) -> ProgressInfo:
    """How far one group is in one partition."""
    progress = progress_of(work, group.id, partition.id)
    where = (group.id, partition.id)
    total, consumed_at = work.execute(
        "SELECT total, last_consumed_at FROM progress WHERE group_id = ? AND part_id = ?", where
    ).fetchone()
    lease = (progress.lease_id, progress.lease_until) if is_leased(work, queue, progress) else (None, None)
    delivered = work.number("SELECT count(*) FROM delivery WHERE group_id = ? AND part_id = ?", *where)
    new = partition.last_seq - progress.claimed - nothing_after(work, *where, progress.claimed)
    passed, given_up = work.execute(PASSED_SCHEDULED, where).fetchone()
    leased = leased_in(work, queue, progress)
    return ProgressInfo(
        group=group.name,
        cursor=cursor(work, progress),
        pending=new + delivered - leased + scheduled - passed,
        leased=leased,
        completed=total,
        dead=given_up
        + work.number("SELECT count(*) FROM dead WHERE group_id = ? AND part_id = ? AND seq IS NOT NULL", *where),
        lag_seconds=lag_seconds(work, progress),
        lease_id=lease[0],
        lease_until=lease[1],
        last_consumed_at=consumed_at,
    )


PASSED_SCHEDULED: Final = (
    "SELECT count(*), coalesce(sum(dead), 0) FROM passed WHERE group_id = ? AND part_id = ? AND seq IS NULL"
)


def cursor(work: SqliteWork, progress: Progress) -> int:
    """The last place up to which everything is settled."""
    first = work.execute(
        "SELECT min(seq) FROM delivery WHERE group_id = ? AND part_id = ?", (progress.group_id, progress.part_id)
    ).fetchone()[0]
    return progress.claimed if first is None else first - 1


def leased_in(work: SqliteWork, queue: Queue, progress: Progress) -> int:
    """How many messages are leased."""
    where = (progress.group_id, progress.part_id)
    if not queue.ordered:
        return work.number(
            "SELECT count(*) FROM delivery"
            " WHERE group_id = ? AND part_id = ? AND lease_id IS NOT NULL AND visible_at > ?",
            *where,
            work.now,
        )
    if not is_leased(work, queue, progress):
        return 0
    return work.number(
        "SELECT count(*) FROM delivery WHERE group_id = ? AND part_id = ? AND lease_id = ?",
        *where,
        progress.lease_id,
    )


def lag_seconds(work: SqliteWork, progress: Progress) -> float:
    """The age of the oldest message that is not settled; 0 where there is none."""
    row = work.execute(NEXT, (progress.group_id, progress.part_id, cursor(work, progress))).fetchone()
    return 0.0 if row is None else max(0.0, work.now - row[1])


def list_groups(work: SqliteWork, name: str | None = None) -> list[GroupInfo]:
    """All groups of all queues, or those of that name."""
    rows = work.execute(
        "SELECT g.id, g.queue_id, g.name, g.subscription, g.subscription_from, g.created_at"
        " FROM consumer_group AS g CROSS JOIN queue AS q ON q.id = g.queue_id"
        " WHERE ?1 IS NULL OR g.name = ?1 ORDER BY q.name, g.name",
        (name,),
    ).fetchall()
    return [group_info(work, work.queue_of(row[1]), ConsumerGroup(*row)) for row in rows]


def group_info(work: SqliteWork, queue: Queue, group: ConsumerGroup) -> GroupInfo:
    """One group of one queue."""
    partitions, behind, lag = work.execute(LAG, (group.id,)).fetchone()
    return GroupInfo(
        group.name,
        queue.name,
        partitions,
        behind or 0,
        lag or 0,
        longest_lag(work, group) if lag else 0.0,
        group.subscription,
        group.subscription_from,
        group.created_at,
    )


def longest_lag(work: SqliteWork, group: ConsumerGroup) -> float:
    """The age of the oldest message in any partition that the group has not settled."""
    rows = work.execute(
        "SELECT pr.part_id FROM progress AS pr CROSS JOIN partition AS part ON part.id = pr.part_id"
        " WHERE pr.group_id = ?1 AND (part.last_seq > pr.claimed"
        " OR EXISTS (SELECT 1 FROM delivery AS d WHERE d.group_id = ?1 AND d.part_id = pr.part_id))",
        (group.id,),
    ).fetchall()
    return max((lag_seconds(work, progress_of(work, group.id, part_id)) for (part_id,) in rows), default=0.0)


LAG: Final = f"""
SELECT count(*), sum(n > 0), sum(n) FROM (
    SELECT part.last_seq - pr.claimed - ({NOTHING_AFTER})
        + (SELECT count(*) FROM delivery AS d WHERE d.group_id = pr.group_id AND d.part_id = part.id) AS n
    FROM progress AS pr CROSS JOIN partition AS part ON part.id = pr.part_id WHERE pr.group_id = ?)
"""  # noqa: S608 - of constants
