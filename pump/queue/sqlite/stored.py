"""Stored messages as operators see them, each with its state for every group."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State, Stored

PAGE: Final = 100


class GroupView(NamedTuple):
    """One message as one group sees it."""

    state: State
    retries: int
    error: str | None
    lease_until: float | None


class PartitionView:
    """One partition, and the groups for which states are shown."""

    def __init__(self, work: SqliteWork, queue: Queue, partition: Partition, groups: Sequence[ConsumerGroup]) -> None:
        self._work = work
        self._queue = queue
        self._partition = partition
        self._groups = groups

    def rows(self, since: float | None, until: float | None) -> Iterator[tuple[Any, ...]]:
        """The partition's messages within the filter's times, newest first: scheduled messages, then the others."""
        scheduled = self._work.execute(SCHEDULED, (self._partition.id,)).fetchall()
        first = float("-inf") if since is None else since
        last = float("inf") if until is None else until
        yield from (row for row in scheduled if first <= row[1] <= last)
        before: int = self._partition.last_seq + 1
        while page := self._work.execute(PLACED, (self._partition.id, before, PAGE)).fetchall():
            before = page[-1][0]
            yield from (row for row in page if first <= row[1] <= last)
            if page[-1][1] < first:
                return

    def stored(self, row: tuple[Any, ...], payload: bytes | None = None) -> Stored:
        """A row as a stored message, with its state for every group."""
        seq, at, message_id, transaction_id, trace_id, producer = row
        views = {group.name: self._seen_by(group, message_id, seq) for group in self._groups}
        failed = [view for view in views.values() if view.error is not None]
        return Stored(
            message_id, transaction_id, self._partition.uid, self._partition.name, self._queue.name, payload, at, seq,
            trace_id, producer,
            {name: view.state for name, view in views.items()} or {DEFAULT_GROUP: State.PENDING},
            max((view.retries for view in views.values()), default=0),
            failed[0].error if failed else None,
            max((view.lease_until for view in views.values() if view.lease_until is not None), default=None),
        )  # fmt: skip

    def _seen_by(self, group: ConsumerGroup, message_id: str, seq: int | None) -> GroupView:
        """The message as one group sees it."""
        values = (message_id, seq, self._queue.ordered, group.id, self._partition.id)
        name, until, retries, error = self._work.execute(SEEN, values).fetchone()
        state = State(name)
        if state is State.LEASED and not self._work.lease_lives(until):
            state, until = State.PENDING, None
        return GroupView(state, retries, error, until)


PLACED: Final = (
    "SELECT seq, at, id, transaction_id, trace_id, producer FROM message"
    " WHERE part_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
SCHEDULED: Final = (
    "SELECT NULL, at, id, transaction_id, trace_id, producer FROM scheduled WHERE part_id = ? ORDER BY at DESC, id DESC"
)
SEEN: Final = """
SELECT CASE WHEN d.seq IS NOT NULL THEN 'processing'
        WHEN ?2 > pr.claimed OR ?2 IS NULL
            THEN CASE passed.dead WHEN 1 THEN 'dead_letter' WHEN 0 THEN 'completed' ELSE 'pending' END
        WHEN dead.seq IS NOT NULL THEN 'dead_letter' ELSE 'completed' END AS state,
    CASE WHEN NOT ?3 AND d.lease_id IS NOT NULL THEN d.visible_at WHEN d.lease_id = pr.lease_id THEN pr.lease_until END,
    iif(d.seq IS NULL, iif(passed.dead OR dead.seq IS NOT NULL, dead.retries, 0), d.retries),
    iif(d.seq IS NULL, iif(passed.dead OR dead.seq IS NOT NULL, dead.error, NULL), d.error)
FROM progress AS pr
LEFT JOIN delivery AS d ON d.group_id = pr.group_id AND d.part_id = pr.part_id AND d.seq = ?2
LEFT JOIN passed ON passed.message_id = ?1 AND passed.group_id = pr.group_id
LEFT JOIN dead ON dead.message_id = ?1 AND dead.group_id = pr.group_id
WHERE pr.group_id = ?4 AND pr.part_id = ?5
"""
"""One message for one group: its state ("processing" is right only until the lease ends), retries and error."""


def list_stored(work: SqliteWork, which: Filter) -> list[Stored]:
    """Messages, newest first, without their payloads."""
    rows = [zip(repeat(view), view.rows(which.since, which.until), strict=False) for view in views_of(work, which)]
    newest_first = heapq.merge(*rows, key=lambda each: each[1][1], reverse=True)
    found = (view.stored(row) for view, row in newest_first)
    wanted = (each for each in found if which.state in {None, *each.states.values()})
    return list(islice(wanted, which.offset, which.offset + which.limit))


def views_of(work: SqliteWork, which: Filter) -> Iterator[PartitionView]:
    """The partitions that the filter names."""
    names = [which.queue] if which.queue else [name for (name,) in work.execute("SELECT name FROM queue ORDER BY name")]
    for queue in filter(None, map(work.queue, names)):
        groups = [group for group in work.groups_of(queue.id) if which.group in {None, group.name}]
        for partition in work.partitions(queue.id):
            if which.partition in {None, partition.name}:
                yield PartitionView(work, queue, partition, groups)


def find_message(work: SqliteWork, partition_uid: str, transaction_id: str) -> Stored | None:
    """One message, with its payload."""
    partition = work.partition_by_uid(partition_uid)
    if partition is None:
        return None
    row = work.execute(ONE, (partition.id, transaction_id)).fetchone()
    if row is None:
        return None
    queue = work.queue_of(partition.queue_id)
    view = PartitionView(work, queue, partition, work.groups_of(queue.id))
    return view.stored(row[:-2], work.opened(row[-1], partition_uid, transaction_id, sealed=row[-2]))


ONE: Final = """
SELECT seq, at, id, transaction_id, trace_id, producer, sealed, payload FROM message
WHERE part_id = ?1 AND transaction_id = ?2
UNION ALL SELECT NULL, at, id, transaction_id, trace_id, producer, sealed, payload FROM scheduled
WHERE part_id = ?1 AND transaction_id = ?2
"""
