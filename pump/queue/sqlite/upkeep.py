"""Work that becomes due with time: placing scheduled messages, ending the longest waits, removing old messages.

Before a message is removed that a group has not settled, it becomes a dead letter of that group.
"""

from typing import Final

from pump.queue.limits import LONGEST_LEASE_SECONDS, LOOKED_AT_A_SECOND
from pump.queue.sqlite.dead_letters import MAX_WAIT, RETENTION, Cause, insert_dead
from pump.queue.sqlite.gaps import forget_gaps, forget_passed, vacate
from pump.queue.sqlite.groups import groups_or_default, last_before
from pump.queue.sqlite.infos import cursor
from pump.queue.sqlite.progress import PENDING, Progress, is_leased, pending_in, progress_of, update_ready
from pump.queue.sqlite.push import number_due
from pump.queue.sqlite.work import Partition, Queue, SqliteWork

AT_ONCE: Final = 1000
"""The most messages of a partition in one call, so that nobody waits long for the file."""
IDLE_SECONDS: Final = 60.0
KEEP_LEASES_SECONDS: Final = 3600.0


def maintain_queues(work: SqliteWork, rest: float) -> float:
    """Do the work that is due; returns the seconds until there is more. `rest` is for `sweep`."""
    names = [name for (name,) in work.execute("SELECT name FROM queue")]
    more = [maintain_queue(work, queue, rest) for queue in map(work.queue, names) if queue is not None]
    work.execute("DELETE FROM lease WHERE until < ?", (work.now - KEEP_LEASES_SECONDS,))
    repair(work)
    if any(more):
        return 0.0
    due = work.execute("SELECT min(due_at) FROM scheduled").fetchone()[0]
    return IDLE_SECONDS if due is None else max(0.0, min(IDLE_SECONDS, due - work.now))


def maintain_queue(work: SqliteWork, queue: Queue, rest: float) -> bool:
    """Do the work that is due in one queue; returns whether there may be more now."""
    more = [number_due(work, queue)]
    options = queue.options
    keeps = options.retention_enabled
    retention, completed = (options.retention, options.completed_retention) if keeps else (0.0, 0.0)
    for seconds, cause in (
        (options.max_wait_time, Cause(MAX_WAIT, "nobody settled it in time")),
        (retention, Cause(RETENTION, "it was kept as long as the queue keeps messages")),
    ):
        if seconds:
            more.append(give_up_older(work, queue, seconds, cause))
    if kept := [seconds for seconds in (retention, completed) if seconds]:
        more += [sweep(work, queue, each, min(kept), rest) for each in work.partitions(queue.id)]
    return any(more)


def give_up_older(work: SqliteWork, queue: Queue, seconds: float, cause: Cause) -> bool:
    """Make dead letters of messages that have been pending for longer than that; returns whether there may be more."""
    more = False
    groups = groups_or_default(work, queue)
    for partition in work.partitions(queue.id):
        last = last_before(work, partition, work.now - seconds)
        for group in groups:
            more |= give_up_to(work, queue, progress_of(work, group.id, partition.id), last, cause)
    return more


def give_up_to(work: SqliteWork, queue: Queue, progress: Progress, last: int, cause: Cause) -> bool:
    """Make dead letters of a group's pending, not leased, messages up to a place; returns whether there may be more."""
    where = progress.key
    again = work.execute(PENDING_AGAIN, (*pending_in(work, queue, progress), AT_ONCE, last)).fetchall()
    new = work.execute(NEW, (progress.part_id, progress.claimed, last, AT_ONCE, progress.group_id)).fetchall()
    for seq, *counts in again:
        insert_dead(work, *where, seq, Cause(cause.reason, cause.error, *counts))
    for seq, passed in new:
        if not passed:
            insert_dead(work, *where, seq, cause)
    if not again and not new:
        return False
    claimed = new[-1][0] if new else progress.claimed
    work.execute("UPDATE progress SET claimed = ? WHERE group_id = ? AND part_id = ?", (claimed, *where))
    forget_passed(work, *where, claimed)
    if not is_leased(work, queue, progress):
        update_ready(work, queue, progress._replace(claimed=claimed))
    return AT_ONCE in {len(again), len(new)}


NEW: Final = """
SELECT m.seq, EXISTS (SELECT 1 FROM passed AS x WHERE x.group_id = ?5 AND x.part_id = ?1 AND x.seq = m.seq)
FROM message AS m WHERE m.part_id = ?1 AND m.seq > ?2 AND m.seq <= ?3 ORDER BY m.seq LIMIT ?4
"""
PENDING_AGAIN: Final = f"""
SELECT seq, retries, crashes, deliveries FROM delivery WHERE group_id = ?1 AND part_id = ?2 AND seq <= ?7
AND {PENDING} ORDER BY seq LIMIT ?6
"""  # noqa: S608 - of a constant


def sweep(work: SqliteWork, queue: Queue, partition: Partition, kept_seconds: float, rest: float) -> bool:
    """Remove messages that all groups have settled and that are old enough; returns whether there may be more.

    First it removes settled messages from the beginning up to the first unsettled one. Then it looks at those after it:
    this second look continues where the last call stopped, and rests for `rest` seconds once it has reached the end, or
    longer if it had many messages to look at. So each call looks at no more than twice AT_ONCE messages, and those that
    stay cost little.
    """
    rows = [progress_of(work, group.id, partition.id) for group in work.groups_of(queue.id)]
    if not rows:
        return False
    claimed = min(row.claimed for row in rows)
    settled = min(cursor(work, row) for row in rows)
    last = last_before(work, partition, work.now - kept_seconds)
    more = len(remove_settled(work, partition, 0, min(last, settled))) == AT_ONCE
    if not more and min(last, claimed) > settled:
        more = sweep_after(work, partition, settled, min(last, claimed), rest)
    forget_gaps(work, partition.id, claimed)
    return more


def sweep_after(work: SqliteWork, partition: Partition, settled: int, last: int, rest: float) -> bool:
    """The second look of `sweep`; returns whether it should continue at once."""
    rest = max(rest, (last - settled) / LOOKED_AT_A_SECOND)
    swept, swept_at = work.execute("SELECT swept, swept_at FROM partition WHERE id = ?", (partition.id,)).fetchone()
    if not swept and work.now - rest < swept_at <= work.now:
        return False
    seen = remove_settled(work, partition, max(swept, settled), last)
    more = len(seen) == AT_ONCE
    work.execute(
        "UPDATE partition SET swept = ?, swept_at = ? WHERE id = ?",
        (seen[-1] if more else 0, swept_at if more else work.now, partition.id),
    )
    return more


def remove_settled(work: SqliteWork, partition: Partition, after: int, last: int) -> list[int]:
    """Look at the next messages between two places, which all groups have claimed; remove those that all settled."""
    rows = work.execute(
        "SELECT seq FROM message WHERE part_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
        (partition.id, after, last, AT_ONCE),
    )
    seen = [seq for (seq,) in rows]
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


def repair(work: SqliteWork) -> None:
    """Correct times after the clock was put back: what was ready stays ready, and no lease outlasts the longest one."""
    latest = work.now + LONGEST_LEASE_SECONDS
    work.execute(
        "UPDATE delivery SET visible_at = ?1 WHERE lease_id IS NOT NULL AND visible_at > ?2", (work.now, latest)
    )
    ahead = work.execute("SELECT group_id, part_id FROM progress WHERE ready_at > ?", (work.now,)).fetchall()
    for group_id, part_id in ahead:
        queue = work.queue_of(work.partition_of(part_id).queue_id)
        progress = progress_of(work, group_id, part_id)
        if not is_leased(work, queue, progress):
            update_ready(work, queue, progress)
