"""What operators do to single messages, and to all that a group has pending. Each act is logged."""

import logging
from typing import Final

from pump.queue.limits import checked_text, is_text
from pump.queue.sqlite.dead_letters import (
    BY_OPERATOR,
    Cause,
    Position,
    insert_dead,
    insert_dead_ahead,
    position_of,
)
from pump.queue.sqlite.gaps import forget_passed, nothing_after, skip_passed, vacate
from pump.queue.sqlite.groups import groups_or_default
from pump.queue.sqlite.progress import Progress, after_removal, is_leased, progress_of, update_ready
from pump.queue.sqlite.work import Partition, Queue, SqliteWork

AT_ONCE: Final = 1000
"""Messages in one transaction at most, so that nobody waits long for the file."""

log: Final = logging.getLogger("pump.queue")


def remove_message(work: SqliteWork, partition_uid: str, transaction_id: str) -> bool:
    """Remove a message for all groups."""
    partition = work.partition_by_uid(partition_uid)
    position = partition and position_of(work, partition.id, transaction_id)
    if partition is None or position is None:
        return False
    work.execute("DELETE FROM scheduled WHERE part_id = ? AND transaction_id = ?", (partition.id, transaction_id))
    work.execute("DELETE FROM passed WHERE message_id = ?", (position.message_id,))
    if position.seq is not None:
        remove(work, partition, position.seq)
    log.info("message %s of partition %s was deleted", transaction_id, partition_uid)
    return True


def remove(work: SqliteWork, partition: Partition, seq: int) -> None:
    """Take one message out of its place; a lease of which nothing is left ends."""
    work.execute("DELETE FROM message WHERE part_id = ? AND seq = ?", (partition.id, seq))
    vacate(work, partition.id, (seq,))
    queue = work.queue_of(partition.queue_id)
    for group in work.groups_of(queue.id):
        where = (group.id, partition.id)
        work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (*where, seq))
        after_removal(work, queue, progress_of(work, *where))


def give_up_message(work: SqliteWork, partition_uid: str, transaction_id: str, name: str | None, error: str) -> int:
    """Make a dead letter of a message for one group, or for each that has not settled it; returns for how many."""
    if not all(map(is_text, (partition_uid, transaction_id, name or ""))):
        return 0
    partition = work.partition_by_uid(partition_uid)
    position = partition and position_of(work, partition.id, transaction_id)
    if partition is None or position is None:
        return 0
    queue = work.queue_of(partition.queue_id)
    groups = work.groups_of(queue.id) if name else groups_or_default(work, queue)
    rows = [progress_of(work, group.id, partition.id) for group in groups if name in {None, group.name}]
    cause = Cause(BY_OPERATOR, checked_text(error) or "")
    count = sum(give_up_for(work, queue, progress, position, cause) for progress in rows)
    if count:
        log.info("message %s of partition %s was given up for %d groups", transaction_id, partition_uid, count)
    return count


def give_up_for(work: SqliteWork, queue: Queue, progress: Progress, position: Position, cause: Cause) -> bool:
    """The same for one group; whether it had not settled the message. A consumer that has it leased loses it."""
    if position.seq is None or position.seq > progress.claimed:
        done = insert_dead_ahead(work, progress.group_id, progress.part_id, position, cause)
        progress = skip(work, progress)
    else:
        done = give_up_delivered(work, progress, position.seq, cause)
    if done:
        after_removal(work, queue, progress)
    return done


def skip(work: SqliteWork, progress: Progress) -> Progress:
    """Move the group's claim past the messages after it that the group has settled."""
    key = (progress.group_id, progress.part_id)
    claimed = skip_passed(work, *key, progress.claimed, work.partition_of(progress.part_id).last_seq)
    work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *key))
    return progress._replace(claimed=claimed)


def give_up_delivered(work: SqliteWork, progress: Progress, seq: int, cause: Cause) -> bool:
    """A dead letter of a message that was handed out; False if it is settled."""
    row = work.execute(DELIVERED, (progress.group_id, progress.part_id, seq)).fetchone()
    if row is None:
        return False
    error, *counts = row
    insert_dead(
        work, progress.group_id, progress.part_id, seq, Cause(cause.reason, cause.error or error or "", *counts)
    )
    return True


DELIVERED: Final = (
    "SELECT error, retries, crashes, deliveries FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
)


# -- all that is pending


def purge_scheduled(
    work: SqliteWork, name: str, group_name: str, after: tuple[float, int, str]
) -> tuple[int, tuple[float, int, str]] | None:
    """Settle the next scheduled messages for the group: how many, and after which to go on; None if none is left."""
    queue = work.required_queue(name)
    group = work.required_group(queue, group_name)
    rows = work.execute(SCHEDULED, (queue.id, *after, AT_ONCE)).fetchall()
    if not rows:
        return None
    done = work.executemany(
        "INSERT OR IGNORE INTO passed (message_id, group_id, part_id, seq, dead) VALUES (?, ?, ?, NULL, 0)",
        [(message_id, group.id, part_id) for _, part_id, _, message_id in rows],
    ).rowcount
    return done, rows[-1][:3]


SCHEDULED: Final = (
    "SELECT due_at, part_id, transaction_id, id FROM scheduled"
    " WHERE queue_id = ? AND (due_at, part_id, transaction_id) > (?, ?, ?)"
    " ORDER BY due_at, part_id, transaction_id LIMIT ?"
)


def purge(work: SqliteWork, name: str, group_name: str, after: int) -> tuple[int, int] | None:
    """Complete what is pending in the next partition: all that is new, and a bounded number of redeliveries.

    Returns how many messages that were, and after which partition to go on; None if none is left.
    """
    queue = work.required_queue(name)
    group = work.required_group(queue, group_name)
    row = work.execute(NEXT_PARTITION, (queue.id, after)).fetchone()
    if row is None:
        return None
    partition = work.partition_of(row[0])
    progress = progress_of(work, group.id, partition.id)
    leased = is_leased(work, queue, progress)
    again: int = work.execute(
        PURGE_DELIVERIES,
        (group.id, partition.id, progress.lease_id if leased else "", work.now, queue.ordered, AT_ONCE),
    ).rowcount
    new = partition.last_seq - progress.claimed - nothing_after(work, group.id, partition.id, progress.claimed)
    forget_passed(work, group.id, partition.id, partition.last_seq)
    work.execute(COUNT, (new + again, partition.last_seq, work.now, group.id, partition.id))
    if not leased:
        work.execute(
            "UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE group_id = ? AND part_id = ?",
            (group.id, partition.id),
        )
        update_ready(work, queue, progress._replace(claimed=partition.last_seq))
    return new + again, partition.id - 1 if again == AT_ONCE else partition.id


NEXT_PARTITION: Final = "SELECT id FROM partition WHERE queue_id = ? AND id > ? ORDER BY id LIMIT 1"
COUNT: Final = (
    "UPDATE progress SET total = total + ?, claimed = ?, last_consumed_at = ? WHERE group_id = ? AND part_id = ?"
)
PURGE_DELIVERIES: Final = """
DELETE FROM delivery WHERE group_id = ?1 AND part_id = ?2 AND seq IN (
    SELECT seq FROM delivery WHERE group_id = ?1 AND part_id = ?2
    AND (lease_id IS NULL OR CASE WHEN ?5 THEN lease_id <> ?3 ELSE visible_at <= ?4 END) ORDER BY seq LIMIT ?6)
"""
