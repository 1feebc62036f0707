"""The queue in a SQLite file: for one machine, any number of threads and processes.

Every call that writes is one transaction, which first becomes the file's only writer: no code here has to consider
other writers. The rules are in the other files of this folder, one subject a file.
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
from pump.queue.engine import Engine
from pump.queue.errors import Conflict
from pump.queue.ids import ids_for
from pump.queue.limits import check_steps
from pump.queue.sealing import MissingKeys, Sealing
from pump.queue.sqlite import messages
from pump.queue.sqlite.connection import Connections, on_connection, our_errors, savepoint
from pump.queue.sqlite.dead_letters import count_dead_letters, list_dead_letters, redrive_letters, retry_message
from pump.queue.sqlite.infos import count_messages, list_groups, list_queues
from pump.queue.sqlite.operators import (
    clear_queue,
    configure_queue,
    options_of,
    remove_group,
    remove_queue,
    seek_group,
    subscribe_group,
)
from pump.queue.sqlite.pop import empty_result, pop_messages
from pump.queue.sqlite.push import push_messages
from pump.queue.sqlite.settle import extend_lease, settle_messages
from pump.queue.sqlite.stored import find_message, list_stored
from pump.queue.sqlite.traces import insert_trace, list_trace_names, list_traces
from pump.queue.sqlite.upkeep import maintain_queues, repair
from pump.queue.sqlite.warnings import LARGE_LOG_BYTES, log_too_large
from pump.queue.sqlite.watch import Watch
from pump.queue.sqlite.work import SqliteWork
from pump.queue.vocabulary import PopRequest, PopResult, Step
from pump.queue.work import StepRefused, check_keys, pushes_of, transact

log: Final = logging.getLogger("pump.queue")

T = TypeVar("T")

CLOCK_STEP_SECONDS: Final = 1.0
"""If the clock goes back by more than this, it was put back."""


class SqliteOperations(SqliteWork):
    """All operations of one transaction on a SQLite file."""

    push = push_messages
    pop = pop_messages
    settle = settle_messages
    extend = extend_lease
    configure = configure_queue
    options = options_of
    subscribe = subscribe_group
    queues = list_queues
    numbers = count_messages
    delete_queue = remove_queue
    clear = clear_queue
    groups = list_groups
    delete_group = remove_group
    seek = seek_group
    stored = list_stored
    message = find_message
    delete_message = messages.remove_message
    dead_letters = list_dead_letters
    dead_letter_counts = count_dead_letters
    redrive = redrive_letters
    retry = retry_message
    give_up = messages.give_up_message
    add_trace = insert_trace
    traces = list_traces
    trace_names = list_trace_names
    maintain = maintain_queues


class SqliteEngine(Engine):
    """`Engine` on a SQLite file."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock_offset: float = 0.0,
        lenient: bool = False,
        keys: Sealing | None = None,
        synchronous: str = "FULL",
        beside_others: bool = True,
        create: bool = True,
        reserve: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """With `synchronous` NORMAL, writes are faster, but a power failure (nothing else) may lose the last commits.

        A file with tables of other programs is accepted, unless `beside_others` is false. Without `create`, the file
        must exist and hold a queue of this version. With `reserve`, a few megabytes are kept beside the file, and given
        up if others fill the disk, so that messages can still be settled and removed.
        """
        self.clock_offset = clock_offset
        self._lenient: Final = lenient
        self._keys = keys
        self._missing: Final = MissingKeys()
        clock = clock or SystemClock()
        self._connections: Final = Connections(
            path, clock, synchronous=synchronous, beside_others=beside_others, create=create, reserve=reserve
        )
        self._latest = math.inf
        self._watch: Final = Watch(self._connections, self.now, clock)
        if keys is not None:
            with self._closed_by_errors(), self._connections.writing() as connection:
                check_keys(self._work(connection), keys)

    def now(self) -> float:
        """The clock that every call uses."""
        return time.time() + self.clock_offset

    def close(self) -> None:
        """Close every connection and end the thread; leases stay until they expire."""
        self._watch.close()
        self._connections.close()

    def use_keys(self, keys: Sealing) -> None:
        """Use these keys from now on."""
        self._write(lambda work: check_keys(work, keys))
        self._keys = keys

    def warnings(self, *, large_log: int = LARGE_LOG_BYTES) -> Sequence[str]:
        """What an operator should repair before it does harm, such as a log of changes above `large_log` bytes."""
        return [*log_too_large(self._connections.path, large_log), *self._missing.warnings()]

    @contextmanager
    def transaction_on(
        self, connection: sqlite3.Connection, leases: frozenset[str] = frozenset()
    ) -> Iterator[list[Step]]:
        """Carry out steps and the caller's own statements as one transaction, on the caller's connection to the file.

        Steps appended to the list are carried out at the end of the block. Then the block commits, unless the
        connection was in a transaction before. Nobody else can write meanwhile. A refused step raises Conflict;
        QueueUnavailable means that the whole block may be tried again. From now on this connection makes no
        checkpoints: the engine makes them. A process that forks must close the connection before the fork, as the
        engine closes its own: otherwise the child could lose what it writes.
        """
        steps: list[Step] = []
        with on_connection(connection, self._connections.path) as commits:
            yield steps
            check_steps(steps)
            work = self._work(connection)
            with our_errors(self._connections.path), savepoint(connection):
                try:
                    transact(work, steps, leases, ids_for(pushes_of(steps)))
                except StepRefused as refused:
                    raise Conflict(str(refused)) from None
        if commits:
            self._watch.notify(work.changed)

    def _pop(self, request: PopRequest) -> PopResult:
        """First look without writing: a pop that finds nothing writes nothing."""
        self._repair_after_the_clock_was_put_back()
        return self._read(lambda work: empty_result(work, request)) or self._write(lambda work: work.pop(request))

    def _purge(self, queue: str, group: str) -> int:
        count, due, part_id = 0, (-math.inf, 0, ""), 0
        while scheduled := self._write(lambda work: messages.purge_scheduled(work, queue, group, due)):  # noqa: B023 - called at once
            count, due = count + scheduled[0], scheduled[1]
        while placed := self._write(lambda work: messages.purge(work, queue, group, part_id)):  # noqa: B023 - called at once
            count, part_id = count + placed[0], placed[1]
        if count:
            log.info("group %s of queue %s: %d messages were purged", group, queue, count)
        return count

    def _listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        return self._watch.listen(queue, on_ready)

    def _repair_after_the_clock_was_put_back(self) -> None:
        """Also runs at the first call, as the clock may have been put back before."""
        now = self.now()
        if now < self._latest - CLOCK_STEP_SECONDS:
            self._write(repair)
        self._latest = now

    def _write(self, act: Callable[[SqliteOperations], T]) -> T:
        """Run the function in one transaction, then notify the listeners."""
        self._watch.ensure()
        with self._connections.writing() as connection:
            work = self._work(connection)
            result = act(work)
        self._watch.notify(work.changed)
        return result

    def _read(self, act: Callable[[SqliteOperations], T]) -> T:
        """Run the function on one unchanging state of the file."""
        with self._connections.snapshot() as connection:
            return act(self._work(connection))

    def _work(self, connection: sqlite3.Connection) -> SqliteOperations:
        return SqliteOperations(
            connection, self.now(), self._keys, self._missing, self._connections.room, lenient=self._lenient
        )

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Close everything if the engine cannot be made."""
        try:
            yield
        except BaseException:
            self.close()
            raise
