"""What operators do to single messages, and to all that a group has pending."""

import logging
from typing import Final

from pump.queue.errors import NotFound
from pump.queue.limits import checked_text, is_text
from pump.queue.sqlite.dead_letters import OPERATOR, Fate, Where, bury, bury_ahead, place_of
from pump.queue.sqlite.gaps import claim_beyond_passed, empty_beyond, forget_passed, passed_beyond
from pump.queue.sqlite.pop import subscribe
from pump.queue.sqlite.progress import Progress, has_open, is_held, progress_of, ready_again, release
from pump.queue.sqlite.work import Group, Partition, Queue, Work
from pump.queue.vocabulary import DEFAULT_GROUP

AT_ONCE: Final = 1000
"""So many messages a transaction, so that nobody waits long for the file."""

log: Final = logging.getLogger("pump.queue")


def give_up(work: Work, partition_uid: str, transaction_id: str, name: str | None, error: str) -> int:
    """Make a dead letter of a message for each group that has not settled it, or for one of them; for how many."""
    if not all(map(is_text, (partition_uid, transaction_id, name or ""))):
        return 0
    partition = work.partition_by_uid(partition_uid)
    where = partition and place_of(work, partition.id, transaction_id)
    if partition is None or where is None:
        return 0
    queue = work.queue_of(partition.queue_id)
    groups = work.groups(queue.id) or ([] if name else [subscribe(work, queue, DEFAULT_GROUP, "all")])
    places = [progress_of(work, group.id, partition.id) for group in groups if name in {None, group.name}]
    fate = Fate(OPERATOR, checked_text(error) or "")
    number = sum(give_up_for(work, queue, progress, where, fate) for progress in places)
    if number:
        log.info("message %s of partition %s was given up for %d groups", transaction_id, partition_uid, number)
    return number


def give_up_for(work: Work, queue: Queue, progress: Progress, where: Where, fate: Fate) -> bool:
    """The same for one group; whether it had not settled the message. Whoever has it, has it no more."""
    if where.seq is None or where.seq > progress.claimed:
        done = bury_ahead(work, progress.group_id, progress.part_id, where, fate)
        progress = pass_over(work, progress)
    else:
        done = bury_delivered(work, progress, where.seq, fate)
    if done and not is_held(work, queue, progress):
        ready_again(work, queue, progress)
    elif done and not has_open(work, progress):
        release(work, queue, progress)
    return done


def pass_over(work: Work, progress: Progress) -> Progress:
    """The group is beyond what it has passed, where nothing else is in between."""
    key = (progress.group_id, progress.part_id)
    claimed = claim_beyond_passed(work, *key, progress.claimed, work.partition_of(progress.part_id).last_seq)
    work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *key))
    return progress._replace(claimed=claimed)


def bury_delivered(work: Work, progress: Progress, seq: int, fate: Fate) -> bool:
    """A dead letter of a message that was handed out; False where it is settled."""
    row = work.execute(DELIVERED, (progress.group_id, progress.part_id, seq)).fetchone()
    if row is None:
        return False
    error, *counts = row
    told = fate if fate.error else fate._replace(error=error or "")
    bury(work, progress.group_id, progress.part_id, seq, Fate(told.reason, told.error, *counts))
    return True


DELIVERED: Final = (
    "SELECT error, retries, crashes, deliveries FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
)


# -- all that is pending


def known(work: Work, name: str, group_name: str) -> tuple[Queue, Group]:
    """The queue and the group, or NotFound."""
    queue = work.queue(name)
    if queue is None:
        raise NotFound(f"there is no queue {name!r}")
    group = work.group(queue.id, group_name)
    if group is None:
        raise NotFound(f"queue {name!r} has no group {group_name!r}")
    return queue, group


def purge_scheduled(
    work: Work, name: str, group_name: str, after: tuple[float, int, str]
) -> tuple[int, tuple[float, int, str]] | None:
    """Let the group be done with what has no place yet, the next so many after one; where it came to, if anywhere."""
    queue, group = known(work, name, group_name)
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


def purge(work: Work, name: str, group_name: str, after: int) -> tuple[int, int] | None:
    """Complete what is pending in the next partition: at once what nobody had, and so many of what comes back.

    How many that were, and after which partition to go on; None where there is none left.
    """
    queue, group = known(work, name, group_name)
    row = work.execute(NEXT_PARTITION, (queue.id, after)).fetchone()
    if row is None:
        return None
    partition = work.partition_of(row[0])
    progress = progress_of(work, group.id, partition.id)
    back = purge_returned(work, queue, progress)
    done = purge_fresh(work, partition, progress) + back
    work.execute(COUNT, (done, partition.last_seq, work.now, group.id, partition.id))
    if not is_held(work, queue, progress):
        work.execute(
            "UPDATE progress SET lease_id = NULL, lease_until = NULL WHERE group_id = ? AND part_id = ?",
            (group.id, partition.id),
        )
        ready_again(work, queue, progress._replace(claimed=partition.last_seq))
    return done, partition.id - 1 if back == AT_ONCE else partition.id


def purge_fresh(work: Work, partition: Partition, progress: Progress) -> int:
    """How many nobody of the group has had, which it is beyond now."""
    where = (progress.group_id, progress.part_id)
    gone = empty_beyond(work, partition.id, progress.claimed) + passed_beyond(work, *where, progress.claimed)
    forget_passed(work, *where, partition.last_seq)
    return partition.last_seq - progress.claimed - gone


def purge_returned(work: Work, queue: Queue, progress: Progress) -> int:
    """Complete some of what was handed out and is pending again; how many."""
    held = is_held(work, queue, progress)
    found: int = work.execute(
        PURGE,
        (progress.group_id, progress.part_id, progress.lease_id if held else "", work.now, queue.ordered, AT_ONCE),
    ).rowcount
    return found


NEXT_PARTITION: Final = "SELECT id FROM partition WHERE queue_id = ? AND id > ? ORDER BY id LIMIT 1"
COUNT: Final = (
    "UPDATE progress SET total = total + ?, claimed = ?, last_consumed_at = ? WHERE group_id = ? AND part_id = ?"
)
PURGE: Final = """
DELETE FROM delivery WHERE group_id = ?1 AND part_id = ?2 AND seq IN (
    SELECT seq FROM delivery WHERE group_id = ?1 AND part_id = ?2
    AND (lease_id IS NULL OR CASE WHEN ?5 THEN lease_id <> ?3 ELSE visible_at <= ?4 END) ORDER BY seq LIMIT ?6)
"""
