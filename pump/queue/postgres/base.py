"""What the blocking and the awaiting engine on PostgreSQL share: all but their calls' colour.

A call is a coroutine over a session. The awaiting engine awaits it, the blocking one has it `finished`.
"""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pump.clock import Clock, SystemClock
from pump.errors import ConfigurationError
from pump.queue.errors import BadRequest, Conflict, QueueUnavailable
from pump.queue.limits import check_steps
from pump.queue.postgres.errors import AGAIN, STALE, ours
from pump.queue.postgres.migrations import checked_schema, migrate
from pump.queue.postgres.notifier import Bell
from pump.queue.postgres.pool import Pool
from pump.queue.postgres.push import ids_for
from pump.queue.postgres.session import BlockingSession, Connection, Session, finished
from pump.queue.postgres.transaction import Undone, transact
from pump.queue.postgres.vacuum import Broom
from pump.queue.postgres.warnings import Holders
from pump.queue.postgres.work import Book, Work
from pump.queue.sealing import Sealing
from pump.queue.vocabulary import Committed, Push, Step

T = TypeVar("T")
AnySession = TypeVar("AnySession", bound=Session)
Act = Callable[[Work], Coroutine[Any, Any, T]]

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


class PostgresBase:
    """An engine but for its calls; `clock_offset` seconds are added to the database's time, for tests."""

    _sessions: ClassVar[type[Session]]

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
        """Behind a pooler that shares sessions, `prepare_threshold` is None and `listen_url` leads past it.

        A call waits at most `pool_wait` seconds for one of `pool_size` connections.
        """
        self.clock_offset = clock_offset
        self._schema: Final = checked_schema(schema)
        address = checked_address(url)
        listen_address = checked_address(listen_url) if listen_url else address
        self._lenient: Final = lenient
        self._keys: Final = keys
        self._statement_timeout: Final = statement_timeout
        self._prepare_threshold: Final = prepare_threshold
        clock = clock or SystemClock()
        self._book: Final = Book()
        self._holders: Final = Holders()
        self._broom: Final = Broom()
        self._pool: Final = Pool(
            partial(self._connected, self._sessions, address),
            partial(self._sessions.wait, clock),
            size=pool_size,
            wait_seconds=pool_wait,
        )
        self._bell: Final = Bell(
            partial(self._connection, address), partial(self._connection, listen_address), self._schema, clock
        )
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        """Look for the database, in a colour that can before its first call."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(schema={self._schema!r})"

    async def _open(self) -> None:
        """Bring the schema up to date. QueueUnavailable where there is no database."""
        with translated():
            async with self._pool.session() as session:
                await migrate(session, self._schema)
        self._is_open = True

    async def _close(self) -> None:
        """Let go of every connection and thread."""
        try:
            await self._sessions.aside(self._bell.close)
        finally:
            await self._pool.close()

    async def _call(self, act: Act[T]) -> T:
        """Do it in a transaction, again where that was undone for another's sake, then wake whom it concerns."""
        if not self._is_open:
            await self._open()
        with translated():
            for tries_left in reversed(range(TRIES)):
                try:
                    work, result = await self._attempt(act)
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

    async def _attempt(self, act: Act[T]) -> tuple[Work, T]:
        async with self._pool.session() as session:
            work = self._work(session)
            return work, await act(work)

    async def _healthy(self) -> bool:
        try:
            await self._call(lambda work: work.rows("select 1"))
        except QueueUnavailable:
            return False
        return True

    async def _transact(self, steps: Sequence[Step], leases: frozenset[str]) -> Committed:
        ids = ids_for(pushes(steps))
        try:
            return await self._call(lambda work: transact(work, steps, leases, ids))
        except Undone as undone:
            return Committed(success=False, results=(), error=str(undone))

    @asynccontextmanager
    async def _transaction_on(self, session: Session, leases: frozenset[str]) -> AsyncIterator[list[Step]]:
        """Steps and the caller's own statements as one transaction on the caller's connection."""
        if not self._is_open:
            await self._open()
        steps: list[Step] = []
        work = self._work(session)
        async with session.together():
            yield steps
            check_steps(steps)
            with translated():
                await self._carry_out(work, steps, leases)
        self._bell.ring_here(work.rung)

    async def _carry_out(self, work: Work, steps: Sequence[Step], leases: frozenset[str]) -> None:
        try:
            await transact(work, steps, leases, ids_for(pushes(steps)))
            if work.woke_somebody:
                # In the transaction of somebody else, who knows when it ends? The database does, and tells then.
                await work.rows(NOTIFY, self._schema, sorted(work.rung))
        except Undone as undone:
            raise Conflict(str(undone)) from None
        except psycopg.Error as error:
            if error.sqlstate == STALE:
                self._book.forget()
                raise QueueUnavailable("the queue has changed meanwhile: try again") from None
            raise

    def _work(self, session: Session) -> Work:
        return Work(session, self._schema, self.clock_offset, self._keys, self._book, lenient=self._lenient)

    async def _connected(self, sessions: type[AnySession], address: Mapping[str, Any]) -> AnySession:
        session = await sessions.connect(address, self._prepare_threshold)
        try:
            await session.rows(SESSION, (str(round(self._statement_timeout * 1000)),))
        except BaseException:
            await session.close()
            raise
        return session

    def _connection(self, address: Mapping[str, Any]) -> Connection:
        """A connection for a thread of the bell, which blocks in either colour."""
        return finished(self._connected(BlockingSession, address)).connection


SESSION: Final = (
    b"select set_config('statement_timeout', %s, false),"
    b" set_config('default_transaction_isolation', 'read committed', false)"
)
NOTIFY: Final = "select pg_notify(%s::text, q) from unnest(%s::text[]) q"


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
    except (OverflowError, UnicodeEncodeError):
        raise BadRequest("that is a number or a text which no database holds") from None
