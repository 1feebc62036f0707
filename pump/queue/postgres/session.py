"""A connection in the hand of one call: a blocking caller's, which never suspends, or an awaiting caller's.

What is asked of the database is written once, as coroutines over a session. A blocking caller runs them to their end
with `finished`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

import psycopg
from psycopg.pq import Format
from psycopg.rows import tuple_row

from pump.clock import Clock, Signal

T = TypeVar("T")

Connection: TypeAlias = psycopg.Connection[Any]
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]
Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Session(Protocol):
    """A connection as the queue uses it, whatever its owner has made of its rows and cursors."""

    @property
    def connection(self) -> psycopg.BaseConnection[Any]:
        """The connection itself, to look at."""

    @classmethod
    async def connect(cls, address: Mapping[str, Any], prepare_threshold: int | None) -> Self:
        """A new connection, which commits every statement by itself."""

    @staticmethod
    async def wait(clock: Clock, signal: Signal, timeout: float) -> bool:
        """Until the signal is set (True) or the time is over (False)."""

    @staticmethod
    async def aside(act: Callable[[], None]) -> None:
        """Do what blocks, and stop nobody but the caller."""

    async def rows(self, statement: bytes, values: Values | None = None) -> list[Row]:
        """All that a statement answers."""

    async def act(self, statement: bytes, values: Values | None = None, *, prepare: bool | None = None) -> int:
        """Carry out a statement; how many rows it changed."""

    def together(self) -> AbstractAsyncContextManager[object]:
        """Several statements as one transaction."""

    async def close(self) -> None:
        """Close the connection, at once and without asking the server."""


class BlockingSession:
    """One that never suspends."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Final = connection

    @classmethod
    async def connect(cls, address: Mapping[str, Any], prepare_threshold: int | None) -> Self:
        """A new connection, which commits every statement by itself."""
        return cls(psycopg.connect(**address, autocommit=True, prepare_threshold=prepare_threshold))

    @staticmethod
    async def wait(clock: Clock, signal: Signal, timeout: float) -> bool:
        """Until the signal is set (True) or the time is over (False)."""
        return clock.wait(signal, timeout)

    @staticmethod
    async def aside(act: Callable[[], None]) -> None:
        """Do it."""
        act()

    async def rows(self, statement: bytes, values: Values | None = None) -> list[Row]:
        """All that a statement answers."""
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        return cursor.execute(statement, values).fetchall()

    async def act(self, statement: bytes, values: Values | None = None, *, prepare: bool | None = None) -> int:
        """Carry out a statement; how many rows it changed."""
        return psycopg.Cursor(self.connection).execute(statement, values, prepare=prepare).rowcount

    def together(self) -> AbstractAsyncContextManager[object]:
        """Several statements as one transaction."""
        return _Unawaited(self.connection.transaction())

    async def close(self) -> None:
        """Close the connection, at once and without asking the server."""
        self.connection.close()


class AwaitingSession:
    """One that suspends while the server works, or the network."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection: Final = connection

    @classmethod
    async def connect(cls, address: Mapping[str, Any], prepare_threshold: int | None) -> Self:
        """A new connection, which commits every statement by itself."""
        connection = await psycopg.AsyncConnection.connect(
            **address, autocommit=True, prepare_threshold=prepare_threshold
        )
        return cls(connection)

    @staticmethod
    async def wait(clock: Clock, signal: Signal, timeout: float) -> bool:
        """Until the signal is set (True) or the time is over (False)."""
        return await clock.wait_async(signal, timeout)

    @staticmethod
    async def aside(act: Callable[[], None]) -> None:
        """Do what blocks, on a thread of its own."""
        await asyncio.to_thread(act)

    async def rows(self, statement: bytes, values: Values | None = None) -> list[Row]:
        """All that a statement answers."""
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        await cursor.execute(statement, values)
        return await cursor.fetchall()

    async def act(self, statement: bytes, values: Values | None = None, *, prepare: bool | None = None) -> int:
        """Carry out a statement; how many rows it changed."""
        cursor = await psycopg.AsyncCursor(self.connection).execute(statement, values, prepare=prepare)
        return cursor.rowcount

    def together(self) -> AbstractAsyncContextManager[object]:
        """Several statements as one transaction."""
        return self.connection.transaction()

    async def close(self) -> None:
        """Close the connection, at once and without asking the server."""
        await self.connection.close()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine over blocking sessions returns. It must not suspend: nobody would wake it."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call has awaited something other than a blocking session")


class Finishing(Generic[T]):
    """A context over blocking sessions, for a blocking caller."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context: Final = context

    def __enter__(self) -> T:
        return finished(self._context.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return finished(self._context.__aexit__(kind, error, trace))


class _Unawaited:
    """A blocking context, for coroutines."""

    def __init__(self, context: AbstractContextManager[object]) -> None:
        self._context: Final = context

    async def __aenter__(self) -> object:
        return self._context.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)
