"""Notifies listeners, in this process and in others, that something may have become ready in a queue.

A notification is sent after the commit, from a connection of its own and at most every few milliseconds: NOTIFY inside
a transaction takes a database-wide lock during its commit. A lost notification costs the time until the listener looks
by itself.
"""

import logging
import os
import select
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import psycopg

from pump.clock import Clock, Signal
from pump.errors import PumpError
from pump.queue.forks import fork_gate
from pump.queue.listeners import Listeners
from pump.queue.postgres.connection import Connection

MERGE_SECONDS: Final = 0.005
PING_SECONDS: Final = 10.0
"""How often a connection that only listens is checked."""
PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to connect; the last one repeats."""

log: Final = logging.getLogger("pump.queue")


class Notifier:
    """Sends and receives notifications with two threads, which start when they are first needed."""

    def __init__(
        self, connect: Callable[[], Connection], listen: Callable[[], Connection], channel: str, clock: Clock
    ) -> None:
        self._listeners: Final = Listeners()
        self._new_sender: Final = partial(NotifySender, connect, channel, clock)
        self._new_listener: Final = partial(NotifyListener, listen, channel, clock, self._received, self._notify_all)
        self._begin()
        fork_gate.register(self)

    def _begin(self) -> None:
        self._sender = self._new_sender()
        self._listener = self._new_listener()

    def before_fork(self) -> None:
        """The parent keeps its threads."""

    def in_child(self) -> None:
        """Forget the parent's threads, which do not exist here; new ones start when they are needed."""
        self._listeners.in_child()
        self._begin()

    def listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        """Call `on_ready` for this queue until the returned function is called."""
        end = self._listeners.add(queue, on_ready)
        self._listener.start()
        return end

    def notify(self, queues: Iterable[str]) -> None:
        """Notify the listeners in this process at once, and those in other processes soon."""
        for queue in queues:
            self._sender.send(queue)
            self._listeners.notify((queue,))

    def notify_here(self, queues: Iterable[str]) -> None:
        """Notify the listeners in this process only."""
        self._listeners.notify(queues)

    def reconnect(self) -> None:
        """Make the connections anew: the address may lead to another server by now."""
        self._sender.reconnect()
        self._listener.reconnect()

    def close(self) -> None:
        """End the threads; pending notifications are still sent, if the database answers."""
        self._sender.close()
        self._listener.close()

    def _notify_all(self) -> None:
        """Notifications may have been missed: notify the listeners of every queue."""
        self._listeners.notify(self._listeners.queues())

    def _received(self, queue: str, backend: int) -> None:
        if backend != self._sender.backend:  # else this process sent it, and called its listeners then
            self._listeners.notify((queue,))


class NotifySender:
    """Sends notifications to other processes."""

    def __init__(self, connect: Callable[[], Connection], channel: str, clock: Clock) -> None:
        self.backend = 0
        self._connect: Final = connect
        self._channel: Final = channel
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._pending: set[str] = set()
        self._awake: Final = Signal()
        self._again: Final = Signal()
        self._stop: Final = Signal()
        self._thread: threading.Thread | None = None

    def reconnect(self) -> None:
        """Make the connection anew, at the next notification."""
        self._again.set()

    def send(self, queue: str) -> None:
        """Send a notification soon."""
        with self._lock:
            if queue in self._pending:
                return
            self._pending.add(queue)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="pump-queue-notify", daemon=True)
                self._thread.start()
        self._awake.set()

    def close(self) -> None:
        """Send what is pending, then end."""
        self._stop.set()
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        attempt = 0
        while True:
            try:
                with self._connect() as connection:
                    attempt, self.backend = 0, connection.info.backend_pid
                    self._again.clear()
                    self._serve(connection)
                if self._stop.is_set():
                    return
            except (psycopg.Error, PumpError, OSError):
                # Pending notifications are lost with the connection: listeners also look by themselves.
                if self._clock.wait(self._stop, PAUSES[min(attempt, len(PAUSES) - 1)]):
                    return
                attempt += 1

    def _serve(self, connection: Connection) -> None:
        """Send until `close` or `reconnect`."""
        while True:
            self._clock.wait(self._awake, None)
            if self._again.is_set():
                return
            self._awake.clear()
            with self._lock:
                pending, self._pending = sorted(self._pending), set()
            if pending:
                connection.execute("select pg_notify(%s, q) from unnest(%s::text[]) q", (self._channel, pending))
            if self._stop.is_set():
                return
            self._clock.wait(self._stop, MERGE_SECONDS)


class NotifyListener:
    """Receives the notifications of other processes."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        clock: Clock,
        received: Callable[[str, int], None],
        missed: Callable[[], None],
    ) -> None:
        self._connect: Final = connect
        self._channel: Final = channel
        self._clock: Final = clock
        self._received: Final = received
        self._missed: Final = missed
        self._lock: Final = threading.Lock()
        self._stop: Final = Signal()
        self._again: Final = Signal()
        self._thread: threading.Thread | None = None
        self._wake = -1

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="pump-queue-listen", daemon=True)
                self._thread.start()

    def reconnect(self) -> None:
        """Make the connection anew."""
        with self._lock:
            if self._thread is not None and not self._stop.is_set():
                self._again.set()
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            thread = None if self._stop.is_set() else self._thread
            self._stop.set()
        if thread is None:
            return
        os.eventfd_write(self._wake, 1)
        if thread is not threading.current_thread():
            thread.join()
            os.close(self._wake)

    def _run(self) -> None:
        attempt = 0
        while not self._stop.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f'listen "{self._channel}"'.encode())
                    attempt = 0
                    self._missed()
                    self._serve(connection)
                self._clock.wait(self._stop, PAUSES[0])  # before it connects again, if it was told to
            except (psycopg.Error, PumpError, OSError) as error:
                log.info("queue notifications are not received (%s); connecting again", type(error).__name__)
                self._clock.wait(self._stop, PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    def _serve(self, connection: Connection) -> None:
        """Receive until `close` or `reconnect`."""
        watch = select.poll()
        watch.register(connection.fileno(), select.POLLIN)
        watch.register(self._wake, select.POLLIN)
        while not self._stop.is_set():
            ready = dict(watch.poll(PING_SECONDS * 1000))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._again.is_set():
                self._again.clear()
                return
            if not ready:
                connection.execute("select 1")
            for notice in connection.notifies(timeout=0):
                self._received(notice.payload, notice.pid)
