"""Stored messages as operators see them, each with its state for every group."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from pump.queue.sqlite.progress import Progress, is_leased, progress_of
from pump.queue.sqlite.work import ConsumerGroup, Partition, Queue, SqliteWork
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State, Stored

PAGE: Final = 100


class GroupView(NamedTuple):
    """One message as one group sees it."""

    state: State
    retries: int = 0
    error: str | None = None
    lease_until: float | None = None


class PartitionView:
    """One partition and the progress of every group in it."""

    def __init__(self, work: SqliteWork, queue: Queue, partition: Partition, groups: Sequence[ConsumerGroup]) -> None:
        self._work = work
        self._queue = queue
        self._partition = partition
        self._progress = {group.name: progress_of(work, group.id, partition.id) for group in groups}

    def rows(self, since: float | None, until: float | None) -> Iterator[tuple[Any, ...]]:
        """Its messages within those times, newest first: the scheduled ones, then the others."""
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
        """A row, with its state for every group."""
        seq, at, message_id, transaction_id, trace_id, producer = row
        views = {name: self._seen_by(progress, message_id, seq) for name, progress in self._progress.items()}
        failed = [view for view in views.values() if view.error is not None]
        return Stored(
            message_id,
            transaction_id,
            self._partition.uid,
            self._partition.name,
            self._queue.name,
            payload,
            at,
            seq,
            trace_id,
            producer,
            {name: view.state for name, view in views.items()} or {DEFAULT_GROUP: State.PENDING},
            max((view.retries for view in views.values()), default=0),
            failed[0].error if failed else None,
            max((view.lease_until for view in views.values() if view.lease_until is not None), default=None),
        )

    def _seen_by(self, progress: Progress, message_id: str, seq: int | None) -> GroupView:
        """A message as a group sees it."""
        if seq is None or seq > progress.claimed:
            return self._ahead(progress, message_id)
        where = (progress.group_id, progress.part_id, seq)
        delivery = self._work.execute(DELIVERY, where).fetchone()
        if delivery is not None:
            return self._delivered(progress, *delivery)
        dead = self._work.execute(DEAD, where).fetchone()
        return GroupView(State.COMPLETED) if dead is None else GroupView(State.DEAD, *dead)

    def _ahead(self, progress: Progress, message_id: str) -> GroupView:
        """A message that the group was not given yet."""
        passed = self._work.execute(PASSED, (message_id, progress.group_id)).fetchone()
        if passed is None:
            return GroupView(State.PENDING)
        return GroupView(State.DEAD, 0, passed[1]) if passed[0] else GroupView(State.COMPLETED)

    def _delivered(
        self, progress: Progress, lease_id: str | None, visible_at: float | None, retries: int, error: str | None
    ) -> GroupView:
        """A message that was handed out and is not settled."""
        until = visible_at
        if self._queue.ordered:
            live = is_leased(self._work, self._queue, progress) and lease_id == progress.lease_id
            until = progress.lease_until if live else None
        if lease_id is not None and self._work.lease_lives(until):
            return GroupView(State.LEASED, retries, error, until)
        return GroupView(State.PENDING, retries, error)


PLACED: Final = (
    "SELECT seq, at, id, transaction_id, trace_id, producer FROM message"
    " WHERE part_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
SCHEDULED: Final = (
    "SELECT NULL, at, id, transaction_id, trace_id, producer FROM scheduled WHERE part_id = ? ORDER BY at DESC, id DESC"
)
DELIVERY: Final = (
    "SELECT lease_id, visible_at, retries, error FROM delivery WHERE group_id = ? AND part_id = ? AND seq = ?"
)
PASSED: Final = (
    "SELECT p.dead, d.error FROM passed AS p LEFT JOIN dead AS d ON d.message_id = p.message_id"
    " AND d.group_id = p.group_id WHERE p.message_id = ? AND p.group_id = ?"
)
DEAD: Final = "SELECT retries, error FROM dead WHERE group_id = ? AND part_id = ? AND seq = ?"


def list_stored(work: SqliteWork, which: Filter) -> list[Stored]:
    """Messages, newest first, without their payloads."""
    found = (each for each in newest_first(work, which) if is_wanted(each, which))
    return list(islice(found, which.offset, which.offset + which.limit))


def newest_first(work: SqliteWork, which: Filter) -> Iterator[Stored]:
    """All messages of the queues and partitions that the filter names."""
    views = views_of(work, which)
    rows = [zip(repeat(view), view.rows(which.since, which.until), strict=False) for view in views]
    for view, row in heapq.merge(*rows, key=lambda each: each[1][1], reverse=True):
        yield view.stored(row)


def views_of(work: SqliteWork, which: Filter) -> Iterator[PartitionView]:
    """The partitions that the filter names."""
    names = [which.queue] if which.queue else [name for (name,) in work.execute("SELECT name FROM queue ORDER BY name")]
    for queue in filter(None, map(work.queue, names)):
        groups = [group for group in work.groups_of(queue.id) if which.group in {None, group.name}]
        for partition in work.partitions(queue.id):
            if which.partition in {None, partition.name}:
                yield PartitionView(work, queue, partition, groups)


def is_wanted(each: Stored, which: Filter) -> bool:
    """Whether the message is in the state that the filter names, for any group that it names."""
    return which.state is None or which.state in each.states.values()


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
