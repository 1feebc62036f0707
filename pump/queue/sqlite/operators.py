"""Operators' actions on queues and groups. Each action is logged."""

import logging
from dataclasses import replace
from typing import Final

from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.options import QueueOptions
from pump.queue.sqlite.groups import last_before, make_group
from pump.queue.sqlite.progress import Progress, is_leased, progress_of, release, update_ready
from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork, options_as_text
from pump.queue.work import NO_KEY

log: Final = logging.getLogger("pump.queue")


def configure_queue(
    work: SqliteWork, name: str, options: QueueOptions, namespace: str | None, task: str | None
) -> None:
    """Replace all options of a queue, creating it where needed."""
    if options.encryption and work.sealing is None:
        raise BadRequest(NO_KEY)
    queue = work.queue(name) or work.make_queue(name, options.ordered, options)
    if queue.mode is not None and queue.mode != options.ordered:
        change_mode(work, queue, ordered=options.ordered)
    work.execute(
        "UPDATE queue SET ordered = ?, options = ?, namespace = coalesce(?, namespace), task = coalesce(?, task)"
        " WHERE id = ?",
        (options.ordered, options_as_text(options), namespace, task, queue.id),
    )
    work.forget_queue(queue)
    queue = queue._replace(mode=options.ordered, ordered=options.ordered, options=options)
    for group in work.groups_of(queue.id):  # the delays may have changed, and with them when something is ready
        for partition in work.partitions(queue.id):
            progress = progress_of(work, group.id, partition.id)
            if progress.ready_at is not None and not is_leased(work, queue, progress):
                update_ready(work, queue, progress)


def change_mode(work: SqliteWork, queue: Queue, *, ordered: bool) -> None:
    """Change between ordered and unordered, leases of partitions or of messages; Conflict while a lease is live."""
    if work.exists(LIVE, queue.id, work.now):
        raise Conflict(f"queue {queue.name!r} has open leases: its mode cannot be changed now")
    groups = "group_id IN (SELECT id FROM consumer_group WHERE queue_id = ?)"
    work.execute(f"UPDATE delivery SET visible_at = ? WHERE visible_at IS NULL AND {groups}", (work.now, queue.id))  # noqa: S608 - of a constant
    work.execute(f"UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE {groups}", (queue.id,))  # noqa: S608 - the same
    log.info("queue %s is now %s", queue.name, "ordered" if ordered else "not ordered")


LIVE: Final = """
SELECT 1 FROM consumer_group AS g WHERE g.queue_id = ?1 AND (
    EXISTS (SELECT 1 FROM progress AS p WHERE p.group_id = g.id AND p.lease_until > ?2)
    OR EXISTS (SELECT 1 FROM delivery AS d WHERE d.group_id = g.id AND d.lease_id IS NOT NULL AND d.visible_at > ?2))
"""


def options_of(work: SqliteWork, name: str) -> QueueOptions | None:
    """The options of a queue."""
    queue = work.queue(name)
    return queue and replace(queue.options, ordered=queue.ordered)


def subscribe_group(work: SqliteWork, name: str, group: str, start: float | str) -> None:
    """Create the group; one that exists keeps its progress."""
    queue = work.queue(name) or work.make_queue(name, None, QueueOptions())
    if work.group(queue.id, group) is None:
        make_group(work, queue, group, start)
        work.changed.add(name)


def remove_queue(work: SqliteWork, name: str) -> bool:
    """Remove a queue and everything in it except its dead letters."""
    queue = work.queue(name)
    if queue is None:
        return False
    for partition in work.partitions(queue.id):
        for table in ("message", "gap", "scheduled", "progress"):
            work.execute(f"DELETE FROM {table} WHERE part_id = ?", (partition.id,))  # noqa: S608 - four words
    for group in work.groups_of(queue.id):
        _remove(work, group)
    work.execute("DELETE FROM partition WHERE queue_id = ?", (queue.id,))
    work.execute("DELETE FROM queue WHERE id = ?", (queue.id,))
    work.forget_queue(queue)
    log.info("queue %s was deleted with all it held", name)
    return True


def _remove(work: SqliteWork, group: ConsumerGroup) -> None:
    for table in ("delivery", "progress", "lease", "passed"):
        work.execute(f"DELETE FROM {table} WHERE group_id = ?", (group.id,))  # noqa: S608 - four words
    work.execute("DELETE FROM consumer_group WHERE id = ?", (group.id,))


def remove_group(work: SqliteWork, name: str, queue_name: str | None) -> bool:
    """Delete a group's progress, in one queue or in all."""
    rows = work.execute(
        "SELECT q.name FROM consumer_group AS g CROSS JOIN queue AS q ON q.id = g.queue_id"
        " WHERE g.name = ?1 AND (?2 IS NULL OR q.name = ?2)",
        (name, queue_name),
    ).fetchall()
    for (deleted_from,) in rows:
        _remove(work, work.required_group(work.required_queue(deleted_from), name))
        log.info("group %s of queue %s was deleted", name, deleted_from)
    return bool(rows)


def clear_queue(work: SqliteWork, name: str, partition_name: str | None) -> int:
    """Remove every message of a queue or of one partition."""
    queue = work.required_queue(name)
    count = sum(clear_partition(work, queue, partition) for partition in chosen(work, queue, partition_name))
    if count:
        log.info("queue %s, partition %s: %d messages were removed", name, partition_name or "any", count)
    return count


def clear_partition(work: SqliteWork, queue: Queue, partition: Partition) -> int:
    """Remove every message of a partition; every group is then at its end."""
    count = work.execute("DELETE FROM message WHERE part_id = ?", (partition.id,)).rowcount
    count += work.execute("DELETE FROM scheduled WHERE part_id = ?", (partition.id,)).rowcount
    work.execute("DELETE FROM gap WHERE part_id = ?", (partition.id,))
    for group in work.groups_of(queue.id):
        _move_to(work, queue, progress_of(work, group.id, partition.id), partition.last_seq)
    return int(count)


def seek_group(
    work: SqliteWork, group_name: str, queue_name: str, moment: float | None, partition_name: str | None
) -> int:
    """Move a group to the first message at or after a time, or to the end; its leases end."""
    queue = work.required_queue(queue_name)
    group = work.required_group(queue, group_name)
    partitions = chosen(work, queue, partition_name)
    for partition in partitions:
        claimed = partition.last_seq if moment is None else last_before(work, partition, moment)
        _move_to(work, queue, progress_of(work, group.id, partition.id), claimed)
    log.info("group %s of queue %s was moved to %s", group_name, queue_name, "the end" if moment is None else moment)
    return len(partitions)


def _move_to(work: SqliteWork, queue: Queue, progress: Progress, claimed: int) -> None:
    """Move the claim: every message up to it is settled, every later one is new, but dead letters stay dead letters."""
    work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ?", progress.key)
    work.execute("DELETE FROM passed WHERE group_id = ? AND part_id = ?", progress.key)
    work.execute("UPDATE dead SET seq = NULL WHERE group_id = ? AND part_id = ? AND seq > ?", (*progress.key, claimed))
    work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *progress.key))
    release(work, queue, progress._replace(claimed=claimed))


def chosen(work: SqliteWork, queue: Queue, name: str | None) -> list[Partition]:
    """The named partition of a queue, or all of its partitions; NotFound if the name is unknown."""
    if name is None:
        return work.partitions(queue.id)
    partition = work.partition(queue.id, name)
    if partition is None:
        raise NotFound(f"queue {queue.name!r} has no partition {name!r}")
    return [partition]
