"""Connections to the database: so many at most, each for one call at a time, the one used last first.

Whoever finds none free waits a bounded time. There is no thread and no schedule of retries behind it: a connection is
made by the call that needs it, so the first call after an outage succeeds.
"""

import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from pump.clock import Clock, Signal
from pump.queue.errors import QueueUnavailable
from pump.queue.postgres_errors import UNAVAILABLE

Connection = psycopg.Connection[Any]


class Pool:
    """Lends connections."""

    def __init__(self, connect: Callable[[], Connection], *, size: int, wait_seconds: float, clock: Clock) -> None:
        self._connect: Final = connect
        self._size: Final = size
        self._wait_seconds: Final = wait_seconds
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._idle: Final[list[Connection]] = []
        self._waiters: Final[deque[Signal]] = deque()
        self._lent = 0
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection that works, as far as can be seen without asking it."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Close what is idle now, and the others as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle[:] = list(self._idle), []
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.set()
        for connection in idle:
            connection.close()

    def _take(self) -> Connection:
        self._reserve()
        while connection := self._from_idle():
            if is_quiet(connection):
                return connection
            connection.close()
        try:
            return self._connect()
        except BaseException:
            self._release(None)
            raise

    def _reserve(self) -> None:
        """Have the right to one connection, once there is one to be had."""
        deadline = self._clock.monotonic() + self._wait_seconds
        while True:
            with self._lock:
                if self._closed:
                    raise QueueUnavailable(f"{UNAVAILABLE}: the engine is closed")
                if self._lent < self._size:
                    self._lent += 1
                    return
                waiter = Signal()
                self._waiters.append(waiter)
            if not self._clock.wait(waiter, max(0.0, deadline - self._clock.monotonic())):
                self._stop_waiting(waiter)
                raise QueueUnavailable(f"{UNAVAILABLE}: none was free within {self._wait_seconds:g} s")

    def _stop_waiting(self, waiter: Signal) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return
            following = self._waiters.popleft() if self._waiters else None
        if following is not None:  # it was woken too late to make use of it
            following.set()

    def _from_idle(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection) -> None:
        self._release(connection if is_clean(connection) else None)

    def _release(self, connection: Connection | None) -> None:
        """One fewer is lent; the connection is kept, if there is one and the pool is open."""
        with self._lock:
            self._lent -= 1
            keep = connection is not None and not self._closed
            if connection is not None and keep:
                self._idle.append(connection)
            waiter = self._waiters.popleft() if self._waiters else None
        if waiter is not None:
            waiter.set()
        if connection is not None and not keep:
            connection.close()


def is_quiet(connection: Connection) -> bool:
    """Whether an idle connection has nothing to say; what the server says unasked is that it is over."""
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLIN)
    return not watch.poll(0)


def is_clean(connection: Connection) -> bool:
    """Whether another call may use the connection; closes it where it may not."""
    if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
        return True
    connection.close()
    return False
