"""Operators' actions on single messages, and on all pending messages of a group. Each action is logged."""

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
from pump.queue.sqlite.gaps import NEW_IN, forget_passed, skip_passed, vacate
from pump.queue.sqlite.groups import groups_or_default
from pump.queue.sqlite.progress import PENDING, Progress, after_removal, is_leased, pending_in, progress_of, release
from pump.queue.sqlite.work import SqliteWork

AT_ONCE: Final = 1000
"""The most messages in one transaction, so that nobody waits long for the file."""

log: Final = logging.getLogger("pump.queue")


def remove_message(work: SqliteWork, partition_uid: str, transaction_id: str) -> bool:
    """Remove a message for all groups."""
    position = position_of(work, partition_uid, transaction_id)
    if position is None:
        return False
    queue, partition, message_id, seq = position
    work.execute("DELETE FROM scheduled WHERE part_id = ? AND transaction_id = ?", (partition.id, transaction_id))
    work.execute("DELETE FROM passed WHERE message_id = ?", (message_id,))
    if seq is not None:
        work.execute("DELETE FROM message WHERE part_id = ? AND seq = ?", (partition.id, seq))
        vacate(work, partition.id, (seq,))
        for group in work.groups_of(queue.id):
            where = (group.id, partition.id)
            work.execute("DELETE FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?", (*where, seq))
            after_removal(work, queue, progress_of(work, *where))
    log.info("message %s of partition %s was deleted", transaction_id, partition_uid)
    return True


def give_up_message(work: SqliteWork, partition_uid: str, transaction_id: str, name: str | None, error: str) -> int:
    """Make a message a dead letter for one group, or for each that has not settled it; returns how many groups."""
    position = position_of(work, partition_uid, transaction_id) if is_text(name or "") else None
    if position is None:
        return 0
    queue = position.queue
    groups = work.groups_of(queue.id) if name else groups_or_default(work, queue)
    rows = [progress_of(work, group.id, position.partition.id) for group in groups if name in {None, group.name}]
    cause = Cause(BY_OPERATOR, checked_text(error) or "")
    count = sum(_give_up_for(work, progress, position, cause) for progress in rows)
    if count:
        log.info("message %s of partition %s was given up for %d groups", transaction_id, partition_uid, count)
    return count


def _give_up_for(work: SqliteWork, progress: Progress, position: Position, cause: Cause) -> bool:
    """The same for one group; False if it had settled the message before. A consumer that has it leased loses it."""
    queue, partition, _, seq = position
    if seq is None or seq > progress.claimed:
        done = insert_dead_ahead(work, progress.group_id, position, cause)
        claimed = skip_passed(work, *progress.key, progress.claimed, partition.last_seq)
        work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *progress.key))
        progress = progress._replace(claimed=claimed)
    else:
        row = work.execute(DELIVERED, (*progress.key, seq)).fetchone()
        done = row is not None
        if done:
            error, *counts = row
            insert_dead(work, *progress.key, seq, Cause(cause.reason, cause.error or error or "", *counts))
    if done:
        after_removal(work, queue, progress)
    return done


DELIVERED: Final = (
    "SELECT error, retries, crashes, deliveries FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
)


# -- all that is pending


def purge_scheduled(
    work: SqliteWork, name: str, group_name: str, after: tuple[float, int, str]
) -> tuple[int, tuple[float, int, str]] | None:
    """Settle the next scheduled messages for the group; returns how many, and where to go on; None if none is left."""
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
    """Complete pending messages of the next partition: all new messages, and a bounded number of redeliveries.

    Returns the number of messages, and the partition after which to go on; None if no partition is left.
    """
    queue = work.required_queue(name)
    group = work.required_group(queue, group_name)
    row = work.execute(NEXT_PARTITION, (queue.id, after)).fetchone()
    if row is None:
        return None
    partition = work.partition_of(row[0])
    progress = progress_of(work, group.id, partition.id)
    again: int = work.execute(PURGE_DELIVERIES, (*pending_in(work, queue, progress), AT_ONCE)).rowcount
    new = work.number(NEW_IN, *progress.key)
    forget_passed(work, *progress.key, partition.last_seq)
    work.execute(COUNT, (new + again, partition.last_seq, work.now, *progress.key))
    if not is_leased(work, queue, progress):  # a lease that has expired ends; its messages still count their crash
        release(work, queue, progress._replace(claimed=partition.last_seq, lease_id=None))
    return new + again, partition.id - 1 if again == AT_ONCE else partition.id


NEXT_PARTITION: Final = "SELECT id FROM partition WHERE queue_id = ? AND id > ? ORDER BY id LIMIT 1"
COUNT: Final = (
    "UPDATE progress SET total = total + ?, claimed = ?, last_consumed_at = ? WHERE group_id = ? AND part_id = ?"
)
PURGE_DELIVERIES: Final = f"""
DELETE FROM delivery WHERE group_id = ?1 AND part_id = ?2 AND seq IN (
    SELECT seq FROM delivery WHERE group_id = ?1 AND part_id = ?2
    AND {PENDING} ORDER BY seq LIMIT ?6)
"""  # noqa: S608 - of a constant
