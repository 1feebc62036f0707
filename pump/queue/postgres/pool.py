"""Connections to the database: so many at most, each for one call at a time, the one used last first.

Whoever finds none free stands in line for a bounded time. There is no thread and no schedule of retries behind it: a
connection is made by the call that needs it, so the first call after an outage succeeds. A call that is cancelled,
wherever it is, leaves its place to the next. Callers may come from any thread, and from any loop.
"""

import select
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from pump.clock import Signal
from pump.queue.errors import QueueUnavailable
from pump.queue.forks import gate
from pump.queue.postgres.errors import UNAVAILABLE
from pump.queue.postgres.session import Session

AnySession = TypeVar("AnySession", bound=Session)


class Pool(Generic[AnySession]):
    """Lends sessions of one colour."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AnySession]],
        wait: Callable[[Signal, float], Awaitable[bool]],
        *,
        size: int,
        wait_seconds: float,
    ) -> None:
        self._connect: Final = connect
        self._wait: Final = wait
        self._size: Final = size
        self._wait_seconds: Final = wait_seconds
        self._closed = False
        self._inherited: Final[list[list[AnySession]]] = []
        self._begin()
        gate.know(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()  # never held while something is awaited
        self._idle: list[AnySession] = []
        self._waiters: deque[Signal] = deque()
        self._lent = 0

    def before_fork(self) -> None:
        """The parent goes on with its connections."""

    def in_child(self) -> None:
        """Have none of the parent's connections, and do not close them either: that would end them for the parent."""
        self._inherited.append(self._idle)
        self._begin()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AnySession]:
        """A connection that works, as far as can be seen without asking it."""
        session = await self._take()
        try:
            yield session
        except BaseException as error:
            if not isinstance(error, Exception):
                # Broken off. What ends its statement at the server may come late, and must not hit another call's.
                await session.close()
            raise
        finally:
            await self._release(session)

    async def close(self) -> None:
        """Close what is idle now, and the others as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            waiters = list(self._waiters)
            self._waiters.clear()
        for waiter in waiters:
            waiter.set()
        for session in idle:
            await session.close()

    async def _take(self) -> AnySession:
        await self._reserve()
        try:
            while session := self._from_idle():
                if is_quiet(session.connection):
                    return session
                await session.close()
            return await self._connect()
        except BaseException:
            await self._release(None)
            raise

    async def _reserve(self) -> None:
        """Have the right to one connection, once there is one to be had; first come, first served."""
        with self._lock:
            self._must_be_open()
            if self._lent < self._size:
                self._lent += 1
                return
            waiter = Signal()
            self._waiters.append(waiter)
        served = False
        try:
            served = await self._wait(waiter, self._wait_seconds)
        finally:
            if not served:
                await self._stop_waiting(waiter)
        if not served:
            raise QueueUnavailable(f"{UNAVAILABLE}: none was free within {self._wait_seconds:g} s")
        self._must_be_open()

    def _must_be_open(self) -> None:
        if self._closed:
            raise QueueUnavailable(f"{UNAVAILABLE}: the engine is closed")

    async def _stop_waiting(self, waiter: Signal) -> None:
        with self._lock:
            is_in_line = waiter in self._waiters
            if is_in_line:
                self._waiters.remove(waiter)
        if not is_in_line:  # it was served too late to make use of it
            await self._release(None)

    def _from_idle(self) -> AnySession | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    async def _release(self, session: AnySession | None) -> None:
        """Hand a place on to whoever is first in line, or give it back; the connection stays, if it is of use."""
        is_clean = session is not None and has_ended(session.connection)
        with self._lock:
            keep = is_clean and not self._closed
            if session is not None and keep:
                self._idle.append(session)
            waiter = self._waiters.popleft() if self._waiters else None
            if waiter is None:
                self._lent -= 1
        if waiter is not None:
            waiter.set()
        if session is not None and not keep:
            await session.close()


def is_quiet(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether an idle connection has nothing to say; what the server says unasked is that it is over."""
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLIN)
    return not watch.poll(0)


def has_ended(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether a call has ended well enough for another to use its connection."""
    return not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE
