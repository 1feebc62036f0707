"""The queue in PostgreSQL: for any number of processes and machines.

Most calls are one statement: the rules are functions in the database (the numbered files in `sql`), and the files
beside this one call them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import psycopg

from pump.clock import Clock, SystemClock
from pump.errors import ConfigurationError
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict
from pump.queue.ids import ids_for
from pump.queue.limits import check_steps
from pump.queue.postgres import operators
from pump.queue.postgres.connection import Connection, checked_address, connect
from pump.queue.postgres.dead_letters import (
    count_dead_letters,
    give_up_message,
    list_dead_letters,
    redrive_letters,
    retry_message,
)
from pump.queue.postgres.errors import STALE, TRANSIENT, as_ours, is_about_connecting
from pump.queue.postgres.infos import count_messages, list_groups, list_queues
from pump.queue.postgres.migrations import checked_schema, migrate, must_exist
from pump.queue.postgres.notifier import Notifier
from pump.queue.postgres.pool import Pool
from pump.queue.postgres.pop import pop_messages
from pump.queue.postgres.push import push_messages
from pump.queue.postgres.settle import extend_lease, settle_messages
from pump.queue.postgres.stored import find_message, list_stored
from pump.queue.postgres.traces import insert_trace, list_trace_names, list_traces
from pump.queue.postgres.vacuum import Vacuum
from pump.queue.postgres.warnings import OLD_SECONDS, SnapshotHolders
from pump.queue.postgres.work import LookupCache, PostgresWork
from pump.queue.sealing import MissingKeys, Sealing
from pump.queue.vocabulary import Step
from pump.queue.work import StepRefused, check_keys, pushes_of, transact

T = TypeVar("T")

TRIES: Final = 6
"""How often to try a call that the database rolled back in favour of another, or that used out-of-date lookups."""

log: Final = logging.getLogger("pump.queue")


class PostgresOperations(PostgresWork):
    """All operations of one call on PostgreSQL."""

    push = push_messages
    pop = pop_messages
    settle = settle_messages
    extend = extend_lease
    configure = operators.configure_queue
    options = operators.options_of
    subscribe = operators.subscribe_group
    queues = list_queues
    numbers = count_messages
    delete_queue = operators.remove_queue
    clear = operators.clear_queue
    groups = list_groups
    delete_group = operators.remove_group
    seek = operators.seek_group
    stored = list_stored
    message = find_message
    delete_message = operators.remove_message
    dead_letters = list_dead_letters
    dead_letter_counts = count_dead_letters
    redrive = redrive_letters
    retry = retry_message
    give_up = give_up_message
    add_trace = insert_trace
    traces = list_traces
    trace_names = list_trace_names
    maintain = operators.maintain_queues


class PostgresEngine(Engine):
    """`Engine` on PostgreSQL. Making one brings the schema up to date; QueueUnavailable if there is no database."""

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
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Behind a pooler that shares sessions, set `prepare_threshold` to None and `listen_url` to bypass the pooler.

        Without `create`, the schema must hold a queue already. A call waits at most `pool_wait` seconds for one of
        `pool_size` connections.
        """
        self.clock_offset = clock_offset
        self._schema: Final = checked_schema(schema)
        address = checked_address(url)
        listen_address = checked_address(listen_url, "listen_url") if listen_url else address
        if pool_size < 1:
            raise ConfigurationError(f"pool_size has to be at least 1, not {pool_size}")
        self._lenient: Final = lenient
        self._keys = keys
        self._missing: Final = MissingKeys()
        clock = clock or SystemClock()
        self._cache: Final = LookupCache()
        self._holders: Final = SnapshotHolders()
        self._vacuum: Final = Vacuum()
        new = partial(connect, prepare_threshold=prepare_threshold, statement_timeout=statement_timeout)
        self._pool: Final = Pool(partial(new, address), clock, size=pool_size, wait_seconds=pool_wait)
        self._notifier: Final = Notifier(partial(new, address), partial(new, listen_address), self._schema, clock)
        try:
            with self._our_errors(), self._pool.connection() as connection:
                if not create:
                    must_exist(connection, self._schema)
                migrate(connection, self._schema)
                if keys is not None:
                    check_keys(self._work(connection), keys)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}(schema={self._schema!r})"

    def close(self) -> None:
        """Close every connection and end every thread; leases stay until they expire."""
        try:
            self._notifier.close()
        finally:
            self._pool.close()

    def use_keys(self, keys: Sealing) -> None:
        """Use these keys from now on."""
        self._write(lambda work: check_keys(work, keys))
        self._keys = keys

    def warnings(self, *, older_than: float = OLD_SECONDS) -> Sequence[str]:
        """What an operator should repair before it does harm, such as a snapshot older than `older_than` seconds."""
        return [*self._write(lambda work: self._holders.warnings(work, older_than)), *self._missing.warnings()]

    def maintain(self) -> float:
        """As `Engine.maintain`; then vacuum the small tables that need it."""
        seconds = super().maintain()
        self._write(self._vacuum.run)
        return seconds

    @contextmanager
    def transaction_on(self, connection: Connection, leases: frozenset[str] = frozenset()) -> Iterator[list[Step]]:
        """Carry out steps and the caller's own statements as one transaction, on the caller's connection.

        Steps appended to the list are carried out at the end of the block. Then the block commits, unless the
        connection was in a transaction before: that transaction goes on, and holds locks of partitions until its end,
        so these steps should come last in it. A refused step raises Conflict; QueueUnavailable means that the whole
        block may be tried again.
        """
        steps: list[Step] = []
        work = self._work(connection)
        with connection.transaction():
            yield steps
            check_steps(steps)
            try:
                with self._our_errors():
                    transact(work, steps, leases, ids_for(pushes_of(steps)))
                    if work.woke_somebody:
                        # Only the database knows when the caller's transaction commits: it then notifies others.
                        work.rows(NOTIFY, self._schema, sorted(work.changed))
            except StepRefused as refused:
                raise Conflict(str(refused)) from None
        self._notifier.notify_here(work.changed)

    def _write(self, act: Callable[[PostgresOperations], T]) -> T:
        """Run the function, again if the database rolled it back in favour of another; then notify the listeners."""
        with self._our_errors():
            tries_left = TRIES
            while True:
                try:
                    with self._pool.connection() as connection:
                        work = self._work(connection)
                        result = act(work)
                except psycopg.Error as error:
                    tries_left -= 1
                    if not tries_left or error.sqlstate not in {STALE, *TRANSIENT}:
                        raise
                    if error.sqlstate == STALE:
                        self._cache.clear()
                else:
                    self._cache.learn(work)
                    self._notifier.notify(work.changed)
                    return result

    def _read(self, act: Callable[[PostgresOperations], T]) -> T:
        return self._write(act)

    def _purge(self, queue: str, group: str) -> int:
        return self._write(lambda work: operators.purge(work, queue, group))

    def _listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        return self._notifier.listen(queue, on_ready)

    def _work(self, connection: Connection) -> PostgresOperations:
        return PostgresOperations(
            connection,
            self._schema,
            self.clock_offset,
            self._keys,
            self._cache,
            missing=self._missing,
            lenient=self._lenient,
        )

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        """Turn each error of the database into one of ours, which quotes no value, statement or address."""
        try:
            yield
        except psycopg.Error as error:
            log.debug("the database raised %s", type(error).__name__)
            if error.sqlstate == STALE:
                self._cache.clear()
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                self._notifier.reconnect()
            raise as_ours(error) from (error if is_about_connecting(error) else None)
        except (OverflowError, UnicodeEncodeError):
            raise BadRequest("a number or a text that the database cannot store") from None


NOTIFY: Final = "select pg_notify(%s::text, q) from unnest(%s::text[]) q"
