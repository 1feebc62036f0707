"""Tells whoever listens, in this process and in others, that there may be something in a queue.

What was committed is announced after its commit, from a connection of its own and at most every few milliseconds: an
announcement inside a transaction takes a lock of the whole database over its commit. One that is lost costs the time
until its listener looks by itself.
"""

import itertools
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
from pump.queue.forks import gate
from pump.queue.postgres.session import Connection

MERGE_SECONDS: Final = 0.005
LOOK_SECONDS: Final = 10.0
"""How often a connection is asked whether it still is one."""
PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts to connect; the last one goes on."""

log: Final = logging.getLogger("pump.queue")


class Bell:
    """Rings here and elsewhere; starts a thread only for what is asked of it."""

    def __init__(
        self, connect: Callable[[], Connection], listen: Callable[[], Connection], channel: str, clock: Clock
    ) -> None:
        self._rings: Final[dict[str, dict[int, Callable[[], None]]]] = {}
        self._keys: Final = itertools.count()
        self._new_announcer: Final = partial(Announcer, connect, channel, clock)
        self._new_ear: Final = partial(Ear, listen, channel, clock, self._heard, self.ring_all)
        self._begin()
        gate.know(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._announcer = self._new_announcer()
        self._ear = self._new_ear()

    def before_fork(self) -> None:
        """The parent goes on with its threads."""

    def in_child(self) -> None:
        """Those threads are not here; others start when they are needed."""
        self._begin()

    def listen(self, queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Ring for this queue until what is returned is called."""
        key = next(self._keys)
        with self._lock:
            self._rings.setdefault(queue, {})[key] = ring
        self._ear.start()

        def forget() -> None:
            with self._lock:
                rings = self._rings.get(queue, {})
                rings.pop(key, None)
                if not rings:
                    self._rings.pop(queue, None)

        return forget

    def ring(self, queues: Iterable[str]) -> None:
        """Ring in this process at once, in all others soon."""
        for queue in queues:
            self._announcer.announce(queue)
            self._ring(queue)

    def ring_here(self, queues: Iterable[str]) -> None:
        """Ring in this process alone."""
        for queue in queues:
            self._ring(queue)

    def ring_all(self) -> None:
        """Ring in this process for every queue: something may have been missed."""
        with self._lock:
            queues = list(self._rings)
        for queue in queues:
            self._ring(queue)

    def close(self) -> None:
        """End the threads; what is to be announced still is, if the database answers."""
        self._announcer.close()
        self._ear.close()

    def _heard(self, queue: str, backend: int) -> None:
        if backend != self._announcer.backend:  # or it rang here already
            self._ring(queue)

    def _ring(self, queue: str) -> None:
        with self._lock:
            rings = list(self._rings.get(queue, {}).values())
        for ring in rings:
            try:
                ring()
            except Exception:
                log.exception("a listener of queue %s failed; it looks by itself later", queue)


class Announcer:
    """Announces queues to other processes."""

    def __init__(self, connect: Callable[[], Connection], channel: str, clock: Clock) -> None:
        self.backend = 0
        self._connect: Final = connect
        self._channel: Final = channel
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._due: set[str] = set()
        self._work: Final = Signal()
        self._stop: Final = Signal()
        self._thread: threading.Thread | None = None

    def announce(self, queue: str) -> None:
        """Soon."""
        with self._lock:
            if queue in self._due:
                return
            self._due.add(queue)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="pump-queue-announcer", daemon=True)
                self._thread.start()
        self._work.set()

    def close(self) -> None:
        """Announce what is due, then end."""
        self._stop.set()
        self._work.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        attempt = 0
        while True:
            try:
                with self._connect() as connection:
                    attempt, self.backend = 0, connection.info.backend_pid
                    self._serve(connection)
                    return
            except (psycopg.Error, PumpError, OSError):
                # What was due is lost with the connection: listeners look by themselves.
                if self._clock.wait(self._stop, PAUSES[min(attempt, len(PAUSES) - 1)]):
                    return
                attempt += 1

    def _serve(self, connection: Connection) -> None:
        while True:
            self._clock.wait(self._work, None)
            self._work.clear()
            with self._lock:
                due, self._due = sorted(self._due), set()
            if due:
                connection.execute("select pg_notify(%s, q) from unnest(%s::text[]) q", (self._channel, due))
            if self._stop.is_set():
                return
            self._clock.wait(self._stop, MERGE_SECONDS)


class Ear:
    """Hears what other processes announce."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        clock: Clock,
        heard: Callable[[str, int], None],
        missed: Callable[[], None],
    ) -> None:
        self._connect: Final = connect
        self._channel: Final = channel
        self._clock: Final = clock
        self._heard: Final = heard
        self._missed: Final = missed
        self._lock: Final = threading.Lock()
        self._stop: Final = Signal()
        self._thread: threading.Thread | None = None
        self._wake = -1

    def start(self) -> None:
        """Begin, if it has not begun."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="pump-queue-ear", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End."""
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
            except (psycopg.Error, PumpError, OSError) as error:
                log.info("queue announcements are not heard (%s); connecting again", type(error).__name__)
                self._clock.wait(self._stop, PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    def _serve(self, connection: Connection) -> None:
        watch = select.poll()
        watch.register(connection.fileno(), select.POLLIN)
        watch.register(self._wake, select.POLLIN)
        while not self._stop.is_set():
            if not watch.poll(LOOK_SECONDS * 1000):
                connection.execute("select 1")
            for notice in connection.notifies(timeout=0):
                self._heard(notice.payload, notice.pid)
