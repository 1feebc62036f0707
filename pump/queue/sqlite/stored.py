"""Stored messages as operators see them, each with the state that it is in for every group."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from pump.queue.sqlite.progress import Progress, is_held, progress_of
from pump.queue.sqlite.work import Group, Partition, Queue, Work
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State, Stored

PAGE: Final = 100


class Standing(NamedTuple):
    """What one group knows of one message."""

    state: State
    retries: int = 0
    error: str | None = None
    lease_until: float | None = None


class View:
    """One partition and where every group is in it."""

    def __init__(self, work: Work, queue: Queue, partition: Partition, groups: Sequence[Group]) -> None:
        self._work = work
        self._queue = queue
        self._partition = partition
        self._progress = {group.name: progress_of(work, group.id, partition.id) for group in groups}

    def rows(self, since: float | None, until: float | None) -> Iterator[tuple[Any, ...]]:
        """Its messages within those times, newest first: those without a place, then the others."""
        waiting = self._work.execute(WAITING, (self._partition.id,)).fetchall()
        first = float("-inf") if since is None else since
        last = float("inf") if until is None else until
        yield from (row for row in waiting if first <= row[1] <= last)
        before: int = self._partition.last_seq + 1
        while page := self._work.execute(PLACED, (self._partition.id, before, PAGE)).fetchall():
            before = page[-1][0]
            yield from (row for row in page if first <= row[1] <= last)
            if page[-1][1] < first:
                return

    def stored(self, row: tuple[Any, ...], payload: bytes | None = None) -> Stored:
        """A row with all that the groups know of it."""
        seq, at, message_id, transaction_id, trace_id, producer = row
        standings = {name: self._standing(progress, message_id, seq) for name, progress in self._progress.items()}
        known = [standing for standing in standings.values() if standing.error is not None]
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
            {name: standing.state for name, standing in standings.items()} or {DEFAULT_GROUP: State.PENDING},
            max((standing.retries for standing in standings.values()), default=0),
            known[0].error if known else None,
            max((each.lease_until for each in standings.values() if each.lease_until is not None), default=None),
        )

    def _standing(self, progress: Progress, message_id: str, seq: int | None) -> Standing:
        """The state of a message for a group, read off."""
        if seq is None or seq > progress.claimed:
            return self._beyond(progress, message_id)
        where = (progress.group_id, progress.part_id, seq)
        delivery = self._work.execute(DELIVERY, where).fetchone()
        if delivery is not None:
            return self._delivered(progress, *delivery)
        dead = self._work.execute(DEAD, where).fetchone()
        return Standing(State.COMPLETED) if dead is None else Standing(State.DEAD, *dead)

    def _beyond(self, progress: Progress, message_id: str) -> Standing:
        """The state of a message that the group has not come to."""
        passed = self._work.execute(PASSED, (message_id, progress.group_id)).fetchone()
        if passed is None:
            return Standing(State.PENDING)
        return Standing(State.DEAD, 0, passed[1]) if passed[0] else Standing(State.COMPLETED)

    def _delivered(
        self, progress: Progress, lease_id: str | None, visible_at: float | None, retries: int, error: str | None
    ) -> Standing:
        """The state of a message that was handed out and is not settled."""
        until = visible_at
        if self._queue.ordered:
            held = is_held(self._work, self._queue, progress) and lease_id == progress.lease_id
            until = progress.lease_until if held else None
        if lease_id is not None and self._work.lease_lives(until):
            return Standing(State.LEASED, retries, error, until)
        return Standing(State.PENDING, retries, error)


PLACED: Final = (
    "SELECT seq, at, id, transaction_id, trace_id, producer FROM message"
    " WHERE part_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
WAITING: Final = (
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


def stored(work: Work, which: Filter) -> list[Stored]:
    """Messages, newest first, without their payloads."""
    found = (each for each in newest_first(work, which) if is_wanted(each, which))
    return list(islice(found, which.offset, which.offset + which.limit))


def newest_first(work: Work, which: Filter) -> Iterator[Stored]:
    """All messages of the queues and partitions asked for."""
    views = views_of(work, which)
    lines = [zip(repeat(view), view.rows(which.since, which.until), strict=False) for view in views]
    for view, row in heapq.merge(*lines, key=lambda each: each[1][1], reverse=True):
        yield view.stored(row)


def views_of(work: Work, which: Filter) -> Iterator[View]:
    """The partitions asked for."""
    names = [which.queue] if which.queue else [name for (name,) in work.execute("SELECT name FROM queue ORDER BY name")]
    for queue in filter(None, map(work.queue, names)):
        groups = [group for group in work.groups(queue.id) if which.group in {None, group.name}]
        for partition in work.partitions(queue.id):
            if which.partition in {None, partition.name}:
                yield View(work, queue, partition, groups)


def is_wanted(each: Stored, which: Filter) -> bool:
    """Whether some group asked for has the message in the state asked for."""
    return which.state is None or which.state in each.states.values()


def message(work: Work, partition_uid: str, transaction_id: str) -> Stored | None:
    """One message, with its payload."""
    partition = work.partition_by_uid(partition_uid)
    if partition is None:
        return None
    row = work.execute(ONE, (partition.id, transaction_id)).fetchone()
    if row is None:
        return None
    queue = work.queue_of(partition.queue_id)
    view = View(work, queue, partition, work.groups(queue.id))
    return view.stored(row[:-2], work.opened(row[-2], row[-1], partition_uid, transaction_id))


ONE: Final = """
SELECT seq, at, id, transaction_id, trace_id, producer, sealed, payload FROM message
WHERE part_id = ?1 AND transaction_id = ?2
UNION ALL SELECT NULL, at, id, transaction_id, trace_id, producer, sealed, payload FROM scheduled
WHERE part_id = ?1 AND transaction_id = ?2
"""
