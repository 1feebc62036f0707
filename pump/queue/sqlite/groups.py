"""Consumer groups, and the place where a group starts in each partition."""

from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import DEFAULT_GROUP


def make_group(work: SqliteWork, queue: Queue, name: str, start: float | str) -> ConsumerGroup:
    """Make a group of a queue, with its progress in every partition."""
    kind, since = (start, None) if isinstance(start, str) else ("timestamp", start)
    work.execute(
        "INSERT INTO consumer_group (queue_id, name, subscription, subscription_from, created_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (queue.id, name, kind, since, work.now),
    )
    group = work.required_group(queue, name)
    for partition in work.partitions(queue.id):
        claimed = last_before_start(work, partition, start)
        ready = min(work.now, partition.last_at) if claimed < partition.last_seq else None
        work.execute(
            "INSERT INTO progress (group_id, part_id, claimed, ready_at) VALUES (?, ?, ?, ?)",
            (group.id, partition.id, claimed, ready),
        )
    return group


def groups_or_default(work: SqliteWork, queue: Queue) -> list[ConsumerGroup]:
    """The groups of a queue; if it has none, make the default group, so that dead letters have an owner."""
    return work.groups_of(queue.id) or [make_group(work, queue, DEFAULT_GROUP, "all")]


def last_before_start(work: SqliteWork, partition: Partition, start: float | str) -> int:
    """The last place in a partition before a group's start."""
    if start == "new":
        return partition.last_seq
    if start == "all":
        first = work.execute("SELECT min(seq) FROM message WHERE part_id = ?", (partition.id,)).fetchone()[0]
        return partition.last_seq if first is None else first - 1
    return last_before(work, partition, float(start))


def last_before(work: SqliteWork, partition: Partition, moment: float) -> int:
    """The last place whose message is older than a moment; binary search, since times rise with places."""
    low = last_before_start(work, partition, "all")
    high = partition.last_seq
    while low < high:
        row = work.execute(
            "SELECT seq, at FROM message WHERE part_id = ? AND seq > ? ORDER BY seq LIMIT 1",
            (partition.id, (low + high) // 2),
        ).fetchone()
        if row is None or row[0] > high or row[1] >= moment:
            high = (low + high) // 2
        else:
            low = row[0]
    return low
