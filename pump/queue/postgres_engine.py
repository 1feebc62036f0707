"""The queue in PostgreSQL: for any number of processes and machines.

Every call is one transaction, most of them one statement: the rules are functions in the schema (the numbered SQL files
beside this one), and what is here asks them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pump.clock import Clock, SystemClock
from pump.errors import ConfigurationError
from pump.queue import postgres_dead as dead
from pump.queue import postgres_operators as operators
from pump.queue.errors import Conflict, QueueUnavailable
from pump.queue.names import (
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
from pump.queue.postgres_bell import Bell
from pump.queue.postgres_errors import AGAIN, STALE, ours
from pump.queue.postgres_infos import group_infos, infos
from pump.queue.postgres_migrations import checked_schema, migrate
from pump.queue.postgres_pool import Connection, Pool
from pump.queue.postgres_pop import pop
from pump.queue.postgres_push import ids_for, push
from pump.queue.postgres_settle import extend, settle
from pump.queue.postgres_stored import message, stored
from pump.queue.postgres_traces import add_trace, trace_names, traces
from pump.queue.postgres_transaction import Undone, transact
from pump.queue.postgres_work import Book, Work
from pump.queue.sealing import Sealing
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

T = TypeVar("T")

TRIES: Final = 6
"""Of a call that the database undid for the sake of another, or that went by what is out of date."""

NETWORK: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "message-pump",
}
"""How soon a server that is gone is noticed, where the address does not say otherwise."""

log: Final = logging.getLogger("pump.queue")


class PostgresEngine:
    """Keeps every promise of `Engine`; `clock_offset` seconds are added to the database's time, for tests."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "message_pump",
        clock_offset: float = 0.0,
        lenient: bool = False,
        keys: Sealing | None = None,
        pool_size: int = 10,
        pool_wait: float = 5.0,
        statement_timeout: float = 30.0,
        prepare_threshold: int | None = 1,
        listen_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Bring the schema up to date. QueueUnavailable where there is no database.

        Behind a pooler that shares sessions, `prepare_threshold` is None and `listen_url` leads past it.
        """
        self.clock_offset = clock_offset
        self._schema: Final = checked_schema(schema)
        self._address: Final = checked_address(url)
        self._listen_address: Final = checked_address(listen_url) if listen_url else self._address
        self._lenient: Final = lenient
        self._keys: Final = keys
        self._statement_timeout: Final = statement_timeout
        self._prepare_threshold: Final = prepare_threshold
        clock = clock or SystemClock()
        self._book: Final = Book()
        self._pool: Final = Pool(self._connect, size=pool_size, wait_seconds=pool_wait, clock=clock)
        self._bell: Final = Bell(self._connect, self._connect_to_listen, self._schema, clock)
        try:
            with translated(), self._pool.connection() as connection:
                migrate(connection, self._schema)
        except BaseException:
            self._pool.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresEngine(schema={self._schema!r})"

    def close(self) -> None:
        """Let go of every connection and thread; leases stay until they end."""
        self._bell.close()
        self._pool.close()

    def healthy(self) -> bool:
        """Whether the database answers just now."""
        try:
            self._call(lambda work: work.rows("select 1"))
        except QueueUnavailable:
            return False
        return True

    # -- what producers and consumers do

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        """Store each, creating its queue and partition where needed; answers in the order of the items."""
        check_pushes(items)
        ids = ids_for(items)
        return self._call(lambda work: push(work, items, ids)) if items else []

    def pop(self, want: Want) -> Taken:
        """Lease what is ready; never waits."""
        check_want(want)
        return self._call(lambda work: pop(work, want))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Carry out each as it says; answers in order."""
        check_steps(settlements)
        return self._call(lambda work: settle(work, settlements)) if settlements else []

    def extend(self, lease_id: str, seconds: float | None = None) -> Extended:
        """Let a lease end no earlier than that from now; None is its queue's lease time."""
        if seconds is not None:
            check_seconds("seconds", seconds)
        return self._call(lambda work: extend(work, lease_id, seconds))

    def transaction(self, steps: Sequence[Step], leases: frozenset[str] = frozenset()) -> Committed:
        """All steps or none. A settlement without a lease id is covered by the live lease among `leases`."""
        check_steps(steps)
        ids = ids_for(pushes(steps))
        try:
            return self._call(lambda work: transact(work, steps, leases, ids))
        except Undone as undone:
            return Committed(success=False, results=(), error=str(undone))

    @contextmanager
    def transaction_on(self, connection: Connection, leases: frozenset[str] = frozenset()) -> Iterator[list[Step]]:
        """Steps and the caller's own statements as one transaction on the caller's connection.

        What is put into the list is carried out at the end of the block, which then commits, unless the connection was
        in a transaction before: it goes on, and the queue's statements should be its last. Locks of partitions are held
        no longer than that. A step that is refused raises Conflict, and QueueUnavailable means: all of it again.
        """
        steps: list[Step] = []
        work = self._work(connection)
        with connection.transaction():
            yield steps
            check_steps(steps)
            with translated():
                try:
                    transact(work, steps, leases, ids_for(pushes(steps)))
                    self._announce_within(connection, work)
                except Undone as undone:
                    raise Conflict(str(undone)) from None
                except psycopg.Error as error:
                    if error.sqlstate == STALE:
                        self._book.forget()
                        raise QueueUnavailable("the queue has changed meanwhile: try again") from None
                    raise
        self._bell.ring_here(work.rung)

    def listen(self, queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring`, from any thread, when something may have become ready in the queue, by any process."""
        return self._bell.listen(check_name("Queue", queue), ring)

    # -- what operators do

    def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Replace all options of a queue, creating it where needed; a mode may not change while leases are open."""
        check_name("Queue", queue)

        def act(work: Work) -> QueueInfo:
            operators.configure(work, queue, options, namespace, task)
            return infos(work, queue)[0]

        return self._call(act)

    def options(self, queue: str) -> QueueOptions | None:
        """The options of a queue; None if there is none."""
        check_name("Queue", queue)
        return self._call(lambda work: operators.known_options(work, queue))

    def subscribe(self, queue: str, group: str, start: float | str = "all") -> None:
        """Make the group known, beginning there; a group that exists keeps its place."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        check_start(start)
        self._call(lambda work: operators.subscribe(work, queue, group, start))

    def queues(self, name: str | None = None) -> Sequence[QueueInfo]:
        """All queues without their partitions, or the one of that name with all of them."""
        return self._call(lambda work: infos(work, name))

    def delete_queue(self, queue: str) -> bool:
        """Remove a queue and all it holds but its dead letters; False if there was none."""
        return self._call(lambda work: operators.delete_queue(work, queue))

    def clear(self, queue: str, partition: str | None = None) -> int:
        """Remove every message of a queue or of one partition; says how many."""
        return self._call(lambda work: operators.clear(work, queue, partition))

    def groups(self, name: str | None = None) -> Sequence[GroupInfo]:
        """All groups of all queues, or those of that name."""
        return self._call(lambda work: group_infos(work, name))

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Forget a group's progress, in one queue or all; named again it begins anew."""
        return self._call(lambda work: operators.delete_group(work, group, queue))

    def seek(self, group: str, queue: str, to: float | None, partition: str | None = None) -> int:
        """Move a group to the first message at or after a time, None to the end, and end its leases."""
        return self._call(lambda work: operators.seek(work, group, queue, to, partition))

    def stored(self, which: Filter) -> Sequence[Stored]:
        """Messages, newest first, without their payloads."""
        check_filter(which)
        return self._call(lambda work: stored(work, which))

    def message(self, partition_id: str, transaction_id: str) -> Stored | None:
        """One message, with its payload."""
        return self._call(lambda work: message(work, partition_id, transaction_id))

    def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Remove a message for all groups; False if there was none."""
        return self._call(lambda work: operators.delete_message(work, partition_id, transaction_id))

    def dead_letters(self, which: Filter) -> tuple[Sequence[DeadLetter], int]:
        """A page of dead letters, newest first, and how many there are in all."""
        check_filter(which)
        return self._call(lambda work: dead.dead_letters(work, which))

    def redrive(self, dead_letter_ids: Sequence[str]) -> list[Pushed | None]:
        """Push each again as `reprocess-<transaction id>`, once; None where there is none or it was done before."""
        return self._call(lambda work: dead.redrive(work, dead_letter_ids)) if dead_letter_ids else []

    def retry(self, partition_id: str, transaction_id: str) -> int:
        """Make a dead message pending again in its place, for every group that gave it up; says for how many."""
        return self._call(lambda work: dead.retry(work, partition_id, transaction_id))

    def add_trace(self, trace: Trace) -> str:
        """Note something about a message; returns the note's id."""
        check_trace(trace)
        return self._call(lambda work: add_trace(work, trace))

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
        return self._call(lambda work: traces(work, partition_id, transaction_id, name, limit=limit, offset=offset))

    def trace_names(self) -> Sequence[str]:
        """All names that notes were filed under."""
        return self._call(trace_names)

    def maintain(self) -> float:
        """Give due messages their place, apply maximum waiting times and retention."""
        return self._call(operators.maintain)

    # -- how

    def _call(self, act: Callable[[Work], T]) -> T:
        """Do it in a transaction, again where that was undone for another's sake, then wake whom it concerns."""
        with translated():
            for tries_left in reversed(range(TRIES)):
                try:
                    work, result = self._attempt(act)
                    break
                except psycopg.Error as error:
                    if not tries_left or not (error.sqlstate == STALE or error.sqlstate in AGAIN):
                        raise
                    if error.sqlstate == STALE:
                        self._book.forget()
            else:
                raise AssertionError("the last try returns or raises")
        self._book.learn(work)
        self._bell.ring(work.rung)
        return result

    def _attempt(self, act: Callable[[Work], T]) -> tuple[Work, T]:
        with self._pool.connection() as connection:
            work = self._work(connection)
            return work, act(work)

    def _work(self, connection: Connection) -> Work:
        return Work(connection, self._schema, self.clock_offset, self._keys, self._book, lenient=self._lenient)

    def _announce_within(self, connection: Connection, work: Work) -> None:
        """Within the transaction of somebody else, who knows when it ends? The database does, and tells then."""
        if work.woke_somebody:
            connection.execute("select pg_notify(%s, q) from unnest(%s::text[]) q", (self._schema, sorted(work.rung)))

    def _connect(self) -> Connection:
        return self._connected(self._address)

    def _connect_to_listen(self) -> Connection:
        return self._connected(self._listen_address)

    def _connected(self, address: dict[str, Any]) -> Connection:
        connection: Connection = psycopg.connect(**address, autocommit=True, prepare_threshold=self._prepare_threshold)
        try:
            connection.execute(SESSION, (str(round(self._statement_timeout * 1000)),))
        except BaseException:
            connection.close()
            raise
        return connection


SESSION: Final = (
    "select set_config('statement_timeout', %s, false),"
    " set_config('default_transaction_isolation', 'read committed', false)"
)


def pushes(steps: Sequence[Step]) -> list[Push]:
    """Those of the steps that are one."""
    return [step for step in steps if isinstance(step, Push)]


def checked_address(url: str) -> dict[str, Any]:
    """What a connection needs; ConfigurationError, without any of it, where it is no address."""
    try:
        return {**NETWORK, **conninfo_to_dict(url)}
    except psycopg.ProgrammingError:
        raise ConfigurationError("that is no address of a PostgreSQL database") from None


@contextmanager
def translated() -> Iterator[None]:
    """The database's errors as ours. Nothing that quotes a value or an address is kept."""
    try:
        yield
    except psycopg.Error as error:
        log.debug("the database raised %s", type(error).__name__)
        raise ours(error) from None
