"""The engine's connections: a bounded number, each for one call at a time; the most recently used is lent first.

A caller that finds no free connection waits in line for a bounded time. There is no background thread and no retry
schedule: the call that needs a connection makes it, so the first call after an outage succeeds.
"""

import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from psycopg.errors import ReadOnlySqlTransaction
from psycopg.pq import TransactionStatus

from pump.clock import Clock, Signal
from pump.queue.causes import CLOSED, NO_CONNECTION_FREE
from pump.queue.errors import QueueUnavailable
from pump.queue.forks import fork_gate
from pump.queue.postgres.connection import Connection
from pump.queue.postgres.errors import UNAVAILABLE


class Pool:
    """Lends connections. For use from any thread."""

    def __init__(self, connect: Callable[[], Connection], clock: Clock, *, size: int, wait_seconds: float) -> None:
        self._connect: Final = connect
        self._clock: Final = clock
        self._size: Final = size
        self._wait_seconds: Final = wait_seconds
        self._closed = False
        self._inherited: Final[list[list[Connection]]] = []
        self._begin()
        fork_gate.register(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._waiters: deque[Signal] = deque()
        self._lent = 0

    def before_fork(self) -> None:
        """The parent keeps its connections."""

    def in_child(self) -> None:
        """Use none of the parent's connections, and do not close them: that would close them for the parent too."""
        self._inherited.append(self._idle)
        self._begin()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection that works, as far as can be known without asking the server."""
        connection = self._take()
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, ReadOnlySqlTransaction):
                # After a failover, the address may lead to the new primary; connections from before do not.
                connection.close()
                self._close_idle()
            elif not isinstance(error, Exception):
                # Interrupted: the cancel request may reach the server late, and must not hit another call's statement.
                connection.close()
            raise
        finally:
            self._release(connection)

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        with self._lock:
            self._closed = True
            waiters = list(self._waiters)
            self._waiters.clear()
        for waiter in waiters:
            waiter.set()
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> Connection:
        self._reserve()
        try:
            while connection := self._from_idle():
                if is_quiet(connection):
                    return connection
                connection.close()
            return self._connect()
        except BaseException:
            self._release(None)
            raise

    def _reserve(self) -> None:
        """Wait for the right to use one connection; first come, first served."""
        with self._lock:
            self._must_be_open()
            if self._lent < self._size:
                self._lent += 1
                return
            waiter = Signal()
            self._waiters.append(waiter)
        served = False
        try:
            served = self._clock.wait(waiter, self._wait_seconds)
        finally:
            if not served:
                self._stop_waiting(waiter)
        if not served:
            raise QueueUnavailable(f"{UNAVAILABLE}: none was free within {self._wait_seconds:g} s", NO_CONNECTION_FREE)
        self._must_be_open()

    def _must_be_open(self) -> None:
        if self._closed:
            raise QueueUnavailable(f"{UNAVAILABLE}: the engine is closed", CLOSED)

    def _stop_waiting(self, waiter: Signal) -> None:
        with self._lock:
            is_in_line = waiter in self._waiters
            if is_in_line:
                self._waiters.remove(waiter)
        if not is_in_line:  # it was served after its wait had ended
            self._release(None)

    def _from_idle(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _release(self, connection: Connection | None) -> None:
        """Pass the right to a connection to the first caller in line, if any; keep the connection if it is reusable."""
        idle = TransactionStatus.IDLE  # the state in which another call can use it
        reusable = connection is not None and connection.info.transaction_status is idle
        with self._lock:
            keep = reusable and not self._closed
            if connection is not None and keep:
                self._idle.append(connection)
            waiter = self._waiters.popleft() if self._waiters else None
            if waiter is None:
                self._lent -= 1
        if waiter is not None:
            waiter.set()
        if connection is not None and not keep:
            connection.close()


def is_quiet(connection: Connection) -> bool:
    """Whether an idle connection has nothing to read: a server sends something unasked only when it ends."""
    if connection.closed:
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLIN)
    return not watch.poll(0)
