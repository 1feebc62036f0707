"""What comes with time: due messages get their places, the longest waits end, what is old enough goes.

Nothing goes that a group has not settled: it becomes that group's dead letter in the same transaction.
"""

from typing import Final

from pump.queue.limits import LONGEST_LEASE_SECONDS
from pump.queue.sqlite.dead_letters import RETENTION, WAITED, Fate, bury
from pump.queue.sqlite.gaps import forget_gaps, forget_passed, vacate
from pump.queue.sqlite.infos import cursor
from pump.queue.sqlite.pop import last_before, subscribe
from pump.queue.sqlite.progress import Progress, is_held, progress_of, ready_again
from pump.queue.sqlite.push import place_due
from pump.queue.sqlite.work import Group, Partition, Queue, Work
from pump.queue.vocabulary import DEFAULT_GROUP

AT_ONCE: Final = 1000
"""So many messages a call and partition, so that nobody waits long for the file."""
IDLE_SECONDS: Final = 60.0
FORGET_LEASES_SECONDS: Final = 3600.0


def maintain(work: Work) -> float:
    """Do what is to be done; returns the seconds until there is more."""
    names = [name for (name,) in work.execute("SELECT name FROM queue")]
    more = [keep(work, queue) for queue in map(work.queue, names) if queue is not None]
    work.execute("DELETE FROM lease WHERE until < ?", (work.now - FORGET_LEASES_SECONDS,))
    mend(work)
    if any(more):
        return 0.0
    due = work.execute("SELECT min(due_at) FROM scheduled").fetchone()[0]
    return IDLE_SECONDS if due is None else max(0.0, min(IDLE_SECONDS, due - work.now))


def keep(work: Work, queue: Queue) -> bool:
    """Do what is to be done in one queue; whether there is more at once."""
    more = [place_due(work, queue)]
    options = queue.options
    retention = options.retention if options.retention_enabled else 0.0
    completed = options.completed_retention if options.retention_enabled else 0.0
    if options.max_wait_time:
        more += [wait_no_longer(work, queue, *pair) for pair in pairs(work, queue)]
    if retention:
        more += [retire(work, queue, each) for each in work.partitions(queue.id)]
    if kept := [seconds for seconds in (retention, completed) if seconds]:
        more += [sweep(work, queue, each, min(kept)) for each in work.partitions(queue.id)]
    return any(more)


def pairs(work: Work, queue: Queue) -> list[tuple[Group, Partition]]:
    """All groups with all partitions."""
    return [(group, each) for group in somebody(work, queue) for each in work.partitions(queue.id)]


def somebody(work: Work, queue: Queue) -> list[Group]:
    """The groups; where there is none yet, the default one, so that what nobody took is somebody's dead letter."""
    return work.groups(queue.id) or [subscribe(work, queue, DEFAULT_GROUP, "all")]


def wait_no_longer(work: Work, queue: Queue, group: Group, partition: Partition) -> bool:
    """Make dead letters of what has been pending for too long; whoever has a message keeps it."""
    last = last_before(work, partition, work.now - queue.options.max_wait_time)
    progress = progress_of(work, group.id, partition.id)
    return give_up_to(work, queue, progress, last, Fate(WAITED, "nobody settled it in time"))


def give_up_to(work: Work, queue: Queue, progress: Progress, last: int, fate: Fate) -> bool:
    """Make dead letters of what a group has pending up to a place; whether there may be more."""
    held = is_held(work, queue, progress)
    where = (progress.group_id, progress.part_id)
    back = work.execute(
        PENDING_AGAIN, (*where, last, progress.lease_id if held else "", work.now, queue.ordered, AT_ONCE)
    ).fetchall()
    fresh = work.execute(FRESH, (progress.part_id, progress.claimed, last, AT_ONCE, progress.group_id)).fetchall()
    for seq, *counts in back:
        bury(work, *where, seq, fate._replace(retries=counts[0], crashes=counts[1], deliveries=counts[2]))
    for seq, passed in fresh:
        if not passed:
            bury(work, *where, seq, fate)
    if not back and not fresh:
        return False
    claimed = fresh[-1][0] if fresh else progress.claimed
    work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *where))
    forget_passed(work, *where, claimed)
    if not held:
        ready_again(work, queue, progress._replace(claimed=claimed))
    return AT_ONCE in {len(back), len(fresh)}


FRESH: Final = """
SELECT m.seq, EXISTS (SELECT 1 FROM passed AS x WHERE x.group_id = ?5 AND x.part_id = ?1 AND x.seq = m.seq)
FROM message AS m WHERE m.part_id = ?1 AND m.seq > ?2 AND m.seq <= ?3 ORDER BY m.seq LIMIT ?4
"""
PENDING_AGAIN: Final = """
SELECT seq, retries, crashes, deliveries FROM delivery WHERE group_id = ?1 AND part_id = ?2 AND seq <= ?3
AND (lease_id IS NULL OR CASE WHEN ?6 THEN lease_id <> ?4 ELSE visible_at <= ?5 END) ORDER BY seq LIMIT ?7
"""


def retire(work: Work, queue: Queue, partition: Partition) -> bool:
    """What is too old and pending for a group becomes that group's dead letter; nothing that is leased."""
    last = last_before(work, partition, work.now - queue.options.retention)
    fate = Fate(RETENTION, "it was kept as long as the queue keeps messages")
    places = [progress_of(work, group.id, partition.id) for group in somebody(work, queue)]
    more = [give_up_to(work, queue, place, last, fate) for place in places]
    return any(more)


def sweep(work: Work, queue: Queue, partition: Partition, kept_seconds: float) -> bool:
    """Remove what all groups are done with, and is old enough; whether there may be more.

    First what is settled without a break, from the beginning. Then what is settled beyond the first message that is
    not: that look goes on where the last one stopped, and once it came to the end it rests for a minute. So each call
    sees at most twice AT_ONCE messages, and what stays is seen once a minute, however much of it there is.
    """
    places = [progress_of(work, group.id, partition.id) for group in work.groups(queue.id)]
    if not places:
        return False
    claimed = min(place.claimed for place in places)
    settled = min(cursor(work, place) for place in places)
    last = last_before(work, partition, work.now - kept_seconds)
    more = len(remove_settled(work, partition, 0, min(last, settled))) == AT_ONCE
    if not more and min(last, claimed) > settled:
        more = sweep_beyond(work, partition, settled, min(last, claimed))
    forget_gaps(work, partition.id, claimed)
    return more


def sweep_beyond(work: Work, partition: Partition, settled: int, last: int) -> bool:
    """The second look; whether it is to go on at once."""
    swept, swept_at = work.execute("SELECT swept, swept_at FROM partition WHERE id = ?", (partition.id,)).fetchone()
    if not swept and work.now - IDLE_SECONDS <= swept_at <= work.now:
        return False
    seen = remove_settled(work, partition, max(swept, settled), last)
    more = len(seen) == AT_ONCE
    work.execute(
        "UPDATE partition SET swept = ?, swept_at = ? WHERE id = ?",
        (seen[-1] if more else 0, swept_at if more else work.now, partition.id),
    )
    return more


def remove_settled(work: Work, partition: Partition, after: int, last: int) -> list[int]:
    """Look at the next messages between two places, which all groups have claimed; remove what no group has open."""
    seen = [
        seq
        for (seq,) in work.execute(
            "SELECT seq FROM message WHERE part_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (partition.id, after, last, AT_ONCE),
        )
    ]
    if seen:
        still_open = {seq for (seq,) in work.execute(STILL_OPEN, (partition.id, seen[0], seen[-1]))}
        gone = [seq for seq in seen if seq not in still_open]
        work.executemany("DELETE FROM message WHERE part_id = ? AND seq = ?", [(partition.id, seq) for seq in gone])
        vacate(work, partition.id, gone)
    return seen


STILL_OPEN: Final = """
SELECT d.seq FROM progress AS p INDEXED BY progress_by_partition CROSS JOIN delivery AS d
ON d.group_id = p.group_id AND d.part_id = p.part_id WHERE p.part_id = ?1 AND d.seq >= ?2 AND d.seq <= ?3
"""


def mend(work: Work) -> None:
    """Make up for a clock that was put back: what was ready is ready still, and no lease lasts longer than any may."""
    latest = work.now + LONGEST_LEASE_SECONDS
    work.execute(
        "UPDATE delivery SET visible_at = ?1 WHERE lease_id IS NOT NULL AND visible_at > ?2", (work.now, latest)
    )
    ahead = work.execute("SELECT group_id, part_id FROM progress WHERE ready_at > ?", (work.now,)).fetchall()
    for group_id, part_id in ahead:
        queue = work.queue_of(work.partition_of(part_id).queue_id)
        progress = progress_of(work, group_id, part_id)
        if not is_held(work, queue, progress):
            ready_again(work, queue, progress)
