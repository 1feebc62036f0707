"""The queue in a SQLite file: for one machine, any number of threads and processes.

Every call is one transaction that begins by becoming the file's only writer, so that nothing here has to think of
others; what the rules are is in the files beside this one, each with its noun.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from pump.clock import Clock, SystemClock
from pump.queue.errors import Conflict, QueueUnavailable
from pump.queue.limits import (
    check_filter,
    check_name,
    check_pushes,
    check_seconds,
    check_start,
    check_steps,
    check_trace,
    check_want,
)
from pump.queue.options import QueueOptions
from pump.queue.sealing import Sealing
from pump.queue.sqlite import dead_letters as dead
from pump.queue.sqlite import intervene, operators
from pump.queue.sqlite.connection import Connections, on_connection, outages, undone_together
from pump.queue.sqlite.glance import glance
from pump.queue.sqlite.infos import group_infos, infos
from pump.queue.sqlite.pop import pop
from pump.queue.sqlite.push import push
from pump.queue.sqlite.settle import extend, settle
from pump.queue.sqlite.stored import message, stored
from pump.queue.sqlite.traces import add_trace, trace_names, traces
from pump.queue.sqlite.transaction import Undone, transact
from pump.queue.sqlite.upkeep import maintain, mend
from pump.queue.sqlite.warnings import LARGE_LOG_BYTES, log_too_large, too_old
from pump.queue.sqlite.watch import Watch
from pump.queue.sqlite.work import Work
from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    Filter,
    GroupInfo,
    Push,
    Pushed,
    QueueInfo,
    Settled,
    Settlement,
    Step,
    Stored,
    Taken,
    Trace,
    Want,
)

log: Final = logging.getLogger("pump.queue")

T = TypeVar("T")

PUT_BACK_SECONDS: Final = 1.0
"""A clock that shows so much less than before was put back."""


class SqliteEngine:
    """Keeps every promise of `Engine`; `clock_offset` seconds are added to the time, for tests."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock_offset: float = 0.0,
        lenient: bool = False,
        keys: Sealing | None = None,
        synchronous: str = "FULL",
        clock: Clock | None = None,
    ) -> None:
        """`synchronous` NORMAL is faster, and may lose the last commits when the power fails, never otherwise."""
        self.clock_offset = clock_offset
        self._lenient: Final = lenient
        self._keys: Final = keys
        clock = clock or SystemClock()
        self._connections: Final = Connections(path, clock, synchronous=synchronous)
        self._latest = math.inf
        self._watch: Final = Watch(self._connections, self.now, clock)

    def now(self) -> float:
        """The time that everything here happens at."""
        return time.time() + self.clock_offset

    def close(self) -> None:
        """Let go of every connection and thread; leases stay until they end."""
        self._watch.close()
        self._connections.close()

    def healthy(self) -> bool:
        """Whether the file can be read just now."""
        try:
            self._read(lambda work: work.execute("SELECT 1").fetchone())
        except QueueUnavailable:
            return False
        return True

    def warnings(self, *, large_log: int = LARGE_LOG_BYTES) -> Sequence[str]:
        """What should be seen to before it does harm, such as a log of changes of more bytes than that."""
        return [*too_old(sqlite3.sqlite_version_info), *log_too_large(self._connections.path, large_log)]

    # -- what producers and consumers do

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        """Store each, creating its queue and partition where needed; answers in the order of the items."""
        check_pushes(items)
        return self._write(lambda work: push(work, items)) if items else []

    def pop(self, want: Want) -> Taken:
        """Lease what is ready; a look that finds nothing writes nothing."""
        check_want(want)
        self._mend_after_the_clock_was_put_back()
        return self._read(lambda work: glance(work, want)) or self._write(lambda work: pop(work, want))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Carry out each as it says; answers in order."""
        check_steps(settlements)
        return self._write(lambda work: settle(work, settlements)) if settlements else []

    def extend(self, lease_id: str, seconds: float | None = None) -> Extended:
        """Let a lease end no earlier than that from now; None is its queue's lease time."""
        if seconds is not None:
            check_seconds("seconds", seconds)
        return self._write(lambda work: extend(work, lease_id, seconds))

    def transaction(self, steps: Sequence[Step], leases: frozenset[str] = frozenset()) -> Committed:
        """All steps or none. A settlement without a lease id is covered by the live lease among `leases`."""
        check_steps(steps)
        try:
            return self._write(lambda work: transact(work, steps, leases))
        except Undone as undone:
            return Committed(success=False, results=(), error=str(undone))

    @contextmanager
    def transaction_on(
        self, connection: sqlite3.Connection, leases: frozenset[str] = frozenset()
    ) -> Iterator[list[Step]]:
        """Steps and the caller's own statements as one transaction on the caller's connection to the same file.

        What is put into the list is carried out at the end of the block, which then commits, unless the connection was
        in a transaction before. Nobody else writes meanwhile. A step that is refused raises Conflict, and
        QueueUnavailable means: all of it again. A process that forks closes such a connection before, as the engine
        does with its own: with it the child could not keep what it writes.
        """
        steps: list[Step] = []
        with on_connection(connection, self._connections.path) as commits:
            yield steps
            check_steps(steps)
            work = self._work(connection)
            with outages(self._connections.path), undone_together(connection):
                try:
                    transact(work, steps, leases)
                except Undone as undone:
                    raise Conflict(str(undone)) from None
        if commits:
            self._watch.ring(work.rung)

    def listen(self, queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring`, from any thread, when something may have become ready in the queue, by any process."""
        return self._watch.listen(check_name("Queue", queue), ring)

    # -- what operators do

    def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Replace all options of a queue, creating it where needed; a mode may not change while leases are open."""
        check_name("Queue", queue)

        def act(work: Work) -> QueueInfo:
            operators.configure(work, queue, options, namespace, task)
            return infos(work, queue)[0]

        return self._write(act)

    def options(self, queue: str) -> QueueOptions | None:
        """The options of a queue; None if there is none."""
        return self._read(lambda work: operators.known_options(work, queue))

    def subscribe(self, queue: str, group: str, start: float | str = "all") -> None:
        """Make the group known, beginning there; a group that exists keeps its place."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        check_start(start)
        self._write(lambda work: operators.subscribe_group(work, queue, group, start))

    def queues(self, name: str | None = None) -> Sequence[QueueInfo]:
        """All queues without their partitions, or the one of that name with all of them."""
        return self._read(lambda work: infos(work, name))

    def delete_queue(self, queue: str) -> bool:
        """Remove a queue and all it holds but its dead letters; False if there was none."""
        return self._write(lambda work: operators.delete_queue(work, queue))

    def clear(self, queue: str, partition: str | None = None) -> int:
        """Remove every message of a queue or of one partition; says how many."""
        return self._write(lambda work: operators.clear(work, queue, partition))

    def groups(self, name: str | None = None) -> Sequence[GroupInfo]:
        """All groups of all queues, or those of that name."""
        return self._read(lambda work: group_infos(work, name))

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Forget a group's progress, in one queue or all; named again it begins anew."""
        return self._write(lambda work: operators.delete_group(work, group, queue))

    def seek(self, group: str, queue: str, to: float | None, partition: str | None = None) -> int:
        """Move a group to the first message at or after a time, None to the end, and end its leases."""
        return self._write(lambda work: operators.seek(work, group, queue, to, partition))

    def purge(self, queue: str, group: str) -> int:
        """Complete for a group all that nobody has leased, due or not; says how many messages that were."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        number, due, part_id = 0, (-math.inf, 0, ""), 0
        while waiting := self._write(lambda work: intervene.purge_scheduled(work, queue, group, due)):  # noqa: B023 - called at once
            number, due = number + waiting[0], waiting[1]
        while placed := self._write(lambda work: intervene.purge(work, queue, group, part_id)):  # noqa: B023 - called at once
            number, part_id = number + placed[0], placed[1]
        log.info("group %s of queue %s: %d messages were purged", group, queue, number)
        return number

    def stored(self, which: Filter) -> Sequence[Stored]:
        """Messages, newest first, without their payloads."""
        check_filter(which)
        return self._read(lambda work: stored(work, which))

    def message(self, partition_id: str, transaction_id: str) -> Stored | None:
        """One message, with its payload."""
        return self._read(lambda work: message(work, partition_id, transaction_id))

    def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Remove a message for all groups; False if there was none."""
        return self._write(lambda work: operators.delete_message(work, partition_id, transaction_id))

    def dead_letters(self, which: Filter) -> tuple[Sequence[DeadLetter], int]:
        """A page of dead letters, newest first, and how many there are in all."""
        check_filter(which)
        return self._read(lambda work: dead.dead_letters(work, which))

    def redrive(self, dead_letter_ids: Sequence[str]) -> list[Pushed | None]:
        """Push each again as `reprocess-<transaction id>`, once; None where there is none or it was done before."""
        return self._write(lambda work: dead.redrive(work, dead_letter_ids)) if dead_letter_ids else []

    def retry(self, partition_id: str, transaction_id: str) -> int:
        """Make a dead message pending again in its place, for every group that gave it up; says for how many."""
        return self._write(lambda work: dead.retry(work, partition_id, transaction_id))

    def bury(self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str = "") -> int:
        """Make a dead letter of a message, for the group or for each that has not settled it; says for how many."""
        return self._write(lambda work: intervene.give_up(work, partition_id, transaction_id, group, error))

    def add_trace(self, trace: Trace) -> str:
        """Note something about a message; returns the note's id."""
        check_trace(trace)
        return self._write(lambda work: add_trace(work, trace))

    def traces(
        self,
        *,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Sequence[Trace]:
        """Notes about one message, or under one name, oldest first."""
        return self._read(lambda work: traces(work, partition_id, transaction_id, name, limit=limit, offset=offset))

    def trace_names(self) -> Sequence[str]:
        """All names that notes were filed under."""
        return self._read(trace_names)

    def maintain(self) -> float:
        """Give due messages their place, apply maximum waiting times and retention."""
        return self._write(maintain)

    # -- how

    def _mend_after_the_clock_was_put_back(self) -> None:
        """Also once at the start, since that may have happened before."""
        now = self.now()
        if now < self._latest - PUT_BACK_SECONDS:
            self._write(mend)
        self._latest = now

    def _write(self, act: Callable[[Work], T]) -> T:
        """Do it in one transaction, then wake whom it concerns."""
        self._watch.ensure()
        with self._connections.writing() as connection:
            work = self._work(connection)
            result = act(work)
        self._watch.ring(work.rung)
        return result

    def _read(self, act: Callable[[Work], T]) -> T:
        """Do it on one view of the file."""
        with self._connections.looking() as connection:
            return act(self._work(connection))

    def _work(self, connection: sqlite3.Connection) -> Work:
        return Work(connection, self.now(), self._keys, lenient=self._lenient)
