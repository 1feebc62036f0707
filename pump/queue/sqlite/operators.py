"""What operators do to queues and groups. Only they take messages out, or move a group; each such act is logged."""

import logging
from dataclasses import replace
from typing import Final

from pump.queue.errors import BadRequest, Conflict, NotFound
from pump.queue.options import QueueOptions
from pump.queue.sqlite.dead_letters import place_of
from pump.queue.sqlite.gaps import vacate
from pump.queue.sqlite.pop import last_before, subscribe
from pump.queue.sqlite.progress import Progress, has_open, is_held, progress_of, ready_again, release
from pump.queue.sqlite.work import NO_KEY, Group, Partition, Queue, Work, written_options

log: Final = logging.getLogger("pump.queue")


def configure(work: Work, name: str, options: QueueOptions, namespace: str | None, task: str | None) -> None:
    """Replace all options of a queue, creating it where needed."""
    if options.encryption and work.sealing is None:
        raise BadRequest(NO_KEY)
    queue = work.queue(name) or work.make_queue(name, options.ordered, options)
    if queue.mode is not None and queue.mode != options.ordered:
        change_mode(work, queue, ordered=options.ordered)
    work.execute(
        "UPDATE queue SET ordered = ?, options = ?, namespace = coalesce(?, namespace), task = coalesce(?, task)"
        " WHERE id = ?",
        (options.ordered, written_options(options), namespace, task, queue.id),
    )
    work.forget_queue(queue)
    look_again(work, queue._replace(mode=options.ordered, options=options))


def look_again(work: Work, queue: Queue) -> None:
    """Say anew when each partition is ready, which delays of the queue may have changed."""
    for group in work.groups(queue.id):
        for partition in work.partitions(queue.id):
            progress = progress_of(work, group.id, partition.id)
            if progress.ready_at is not None and not is_held(work, queue, progress):
                ready_again(work, queue, progress)


def change_mode(work: Work, queue: Queue, *, ordered: bool) -> None:
    """Lease partitions from now on, or messages; only while nobody has either."""
    live = work.execute(LIVE, (queue.id, work.now)).fetchone()
    if live is not None:
        raise Conflict(f"queue {queue.name!r} has open leases: its mode cannot be changed now")
    for group in work.groups(queue.id):
        work.execute(
            "UPDATE delivery SET visible_at = ? WHERE group_id = ? AND visible_at IS NULL", (work.now, group.id)
        )
        work.execute("UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE group_id = ?", (group.id,))
    log.info("queue %s is now %s", queue.name, "ordered" if ordered else "not ordered")


LIVE: Final = """
SELECT 1 FROM consumer_group AS g WHERE g.queue_id = ?1 AND (
    EXISTS (SELECT 1 FROM progress AS p WHERE p.group_id = g.id AND p.lease_until > ?2)
    OR EXISTS (SELECT 1 FROM delivery AS d WHERE d.group_id = g.id AND d.lease_id IS NOT NULL AND d.visible_at > ?2))
"""


def known_options(work: Work, name: str) -> QueueOptions | None:
    """The options of a queue."""
    queue = work.queue(name)
    return queue and replace(queue.options, ordered=queue.ordered)


def subscribe_group(work: Work, name: str, group: str, start: float | str) -> None:
    """Make the group known; one that exists keeps its place."""
    queue = work.queue(name) or work.make_queue(name, None, QueueOptions())
    if work.group(queue.id, group) is None:
        subscribe(work, queue, group, start)
        work.rung.add(name)


def delete_queue(work: Work, name: str) -> bool:
    """Remove a queue and all it holds but its dead letters."""
    queue = work.queue(name)
    if queue is None:
        return False
    for partition in work.partitions(queue.id):
        for table in ("message", "gap", "scheduled", "progress"):
            work.execute(f"DELETE FROM {table} WHERE part_id = ?", (partition.id,))  # noqa: S608 - four words
    for group in work.groups(queue.id):
        forget_group(work, group)
    work.execute("DELETE FROM partition WHERE queue_id = ?", (queue.id,))
    work.execute("DELETE FROM queue WHERE id = ?", (queue.id,))
    work.forget_queue(queue)
    log.info("queue %s was deleted with all it held", name)
    return True


def forget_group(work: Work, group: Group) -> None:
    """Remove all that a group knows."""
    for table in ("delivery", "progress", "lease", "passed"):
        work.execute(f"DELETE FROM {table} WHERE group_id = ?", (group.id,))  # noqa: S608 - four words
    work.execute("DELETE FROM consumer_group WHERE id = ?", (group.id,))


def delete_group(work: Work, name: str, queue_name: str | None) -> bool:
    """Forget a group's progress, in one queue or all."""
    if queue_name is None:
        rows = work.execute("SELECT queue_id FROM consumer_group WHERE name = ?", (name,)).fetchall()
        found = [work.group(queue_id, name) for (queue_id,) in rows]
    else:
        queue = work.queue(queue_name)
        found = [queue and work.group(queue.id, name)]
    groups = [group for group in found if group is not None]
    for group in groups:
        forget_group(work, group)
        log.info("group %s of queue %s was deleted", name, work.queue_of(group.queue_id).name)
    return bool(groups)


def clear(work: Work, name: str, partition_name: str | None) -> int:
    """Remove every message of a queue or of one partition."""
    queue = required_queue(work, name)
    count = sum(clear_partition(work, queue, partition) for partition in chosen(work, queue, partition_name))
    log.info("queue %s, partition %s: %d messages were removed", name, partition_name or "any", count)
    return count


def clear_partition(work: Work, queue: Queue, partition: Partition) -> int:
    """Remove every message of a partition; every group is then at its end."""
    count = work.execute("DELETE FROM message WHERE part_id = ?", (partition.id,)).rowcount
    count += work.execute("DELETE FROM scheduled WHERE part_id = ?", (partition.id,)).rowcount
    work.execute("DELETE FROM gap WHERE part_id = ?", (partition.id,))
    for group in work.groups(queue.id):
        for table in ("delivery", "passed"):
            where = (group.id, partition.id)
            work.execute(f"DELETE FROM {table} WHERE group_id = ? AND part_id = ?", where)  # noqa: S608 - two words
    work.execute(
        "UPDATE progress SET claimed = ?, lease_id = NULL, lease_until = NULL, ready_at = NULL WHERE part_id = ?",
        (partition.last_seq, partition.id),
    )
    return int(count)


def seek(work: Work, group_name: str, queue_name: str, moment: float | None, partition_name: str | None) -> int:
    """Move a group to the first message at or after a time, or to the end; its leases end."""
    queue = required_queue(work, queue_name)
    group = work.group(queue.id, group_name)
    if group is None:
        raise NotFound(f"queue {queue_name!r} has no group {group_name!r}")
    partitions = chosen(work, queue, partition_name)
    for partition in partitions:
        claimed = partition.last_seq if moment is None else last_before(work, partition, moment)
        place_at(work, queue, progress_of(work, group.id, partition.id), claimed)
    log.info("group %s of queue %s was moved to %s", group_name, queue_name, "the end" if moment is None else moment)
    return len(partitions)


def place_at(work: Work, queue: Queue, progress: Progress, claimed: int) -> None:
    """All up to there is done with, all beyond is new; dead letters beyond stay, for what they are."""
    where = (progress.group_id, progress.part_id)
    work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ?", where)
    work.execute("DELETE FROM passed WHERE group_id = ? AND part_id = ?", where)
    work.execute("UPDATE dead SET seq = NULL WHERE group_id = ? AND part_id = ? AND seq > ?", (*where, claimed))
    work.execute(
        "UPDATE progress SET claimed = ?, lease_id = NULL, lease_until = NULL WHERE group_id = ? AND part_id = ?",
        (claimed, *where),
    )
    ready_again(work, queue, progress._replace(claimed=claimed))


def delete_message(work: Work, partition_uid: str, transaction_id: str) -> bool:
    """Remove a message for all groups."""
    partition = work.partition_by_uid(partition_uid)
    if partition is None:
        return False
    values = (partition.id, transaction_id)
    place = place_of(work, partition.id, transaction_id)
    if place is None:
        return False
    work.execute("DELETE FROM scheduled WHERE part_id = ? AND transaction_id = ?", values)
    work.execute("DELETE FROM passed WHERE message_id = ?", (place.message_id,))
    if place.seq is not None:
        remove(work, partition, place.seq)
    log.info("message %s of partition %s was deleted", transaction_id, partition_uid)
    return True


def remove(work: Work, partition: Partition, seq: int) -> None:
    """Take one message out of its place; the lease that it was the last of ends."""
    work.execute("DELETE FROM message WHERE part_id = ? AND seq = ?", (partition.id, seq))
    vacate(work, partition.id, (seq,))
    queue = work.queue_of(partition.queue_id)
    for group in work.groups(queue.id):
        where = (group.id, partition.id)
        work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (*where, seq))
        progress = progress_of(work, *where)
        if not is_held(work, queue, progress):
            ready_again(work, queue, progress)
        elif not has_open(work, progress):
            release(work, queue, progress)


def required_queue(work: Work, name: str) -> Queue:
    """The queue, or NotFound."""
    queue = work.queue(name)
    if queue is None:
        raise NotFound(f"there is no queue {name!r}")
    return queue


def chosen(work: Work, queue: Queue, name: str | None) -> list[Partition]:
    """One partition of a queue or all, or NotFound."""
    if name is None:
        return work.partitions(queue.id)
    partition = work.partition(queue.id, name)
    if partition is None:
        raise NotFound(f"queue {queue.name!r} has no partition {name!r}")
    return [partition]
