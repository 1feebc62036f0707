"""The one thread of a SQLite engine: it rings when another process wrote, and checkpoints where it was elected to.

Checkpoints are never automatic, and only one process makes them, keeping writers out for that moment: two connections
that write and checkpoint at once are what can corrupt a file under SQLite before 3.51.3.
"""

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.errors import QueueUnavailable
from pump.queue.forks import gate
from pump.queue.sqlite.connection import Connections, Link

log: Final = logging.getLogger("pump.queue.sqlite")

LOOK_SECONDS: Final = 0.02
"""How often to ask whether another process wrote."""
TICK_SECONDS: Final = 0.25
"""How often to see whether the log of changes has grown too long."""
LONG_LOG_BYTES: Final = 4_000_000
PATIENCE_MS: Final = 200
"""How long a checkpoint waits for readers; writers wait meanwhile."""

READY: Final = """
SELECT 1 FROM queue AS q CROSS JOIN consumer_group AS g ON g.queue_id = q.id
CROSS JOIN progress AS p ON p.group_id = g.id WHERE q.name = ? AND p.ready_at <= ? LIMIT 1
"""


class Watch:
    """Starts its thread when there is something to watch; one a process, also after a fork."""

    def __init__(self, connections: Connections, now: Callable[[], float], clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._now = now
        self._election = Election(connections.path)
        self._bells: dict[str, set[Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._awake = Signal()
        self._ended = Signal()
        self._thread: threading.Thread | None = None
        self._pid = 0
        gate.know(self)

    def before_fork(self) -> None:
        """Its connection is one of those that are closed."""

    def in_child(self) -> None:
        """A lock that another thread of the parent had just then would stay locked."""
        self._lock, self._awake, self._ended = threading.Lock(), Signal(), copy_of(self._ended)

    def ensure(self) -> None:
        """See to it that the thread runs in this process."""
        if self._pid == os.getpid() or self._ended.is_set():
            return
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="pump-queue-sqlite", daemon=True)
        self._thread.start()

    def listen(self, queue: str, bell: Callable[[], None]) -> Callable[[], None]:
        """Ring that bell for that queue until the answer is called."""
        with self._lock:
            self._bells.setdefault(queue, set()).add(bell)
        self._awake.set()
        self.ensure()

        def end() -> None:
            with self._lock:
                self._bells.get(queue, set()).discard(bell)
                if not self._bells.get(queue, True):
                    del self._bells[queue]

        return end

    def ring(self, queues: Iterable[str]) -> None:
        """Ring for all who listen to those queues; a bell that fails is left to its owner's own look."""
        if not self._bells:
            return
        with self._lock:
            bells = [bell for queue in queues for bell in self._bells.get(queue, ())]
        for bell in bells:
            try:
                bell()
            except Exception:
                log.exception("a listener of the queue failed; it will look by itself")

    def close(self) -> None:
        """End the thread and the office of who checkpoints."""
        self._ended.set()
        self._awake.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        self._election.leave()

    def _run(self) -> None:
        """Look and tick until closed. A file that cannot be reached just now is looked at again later."""
        link: Link | None = None
        seen, ticked = 0, 0.0
        while not self._ended.is_set():
            try:
                with gate.using():
                    if link is not None and link.is_astray():
                        link.close()
                    link = self._connections.new_link() if link is None or link.closed else link
                    seen = self._look(link.connection, seen)
                    if self._clock.monotonic() - ticked > TICK_SECONDS:
                        ticked = self._clock.monotonic()
                        self._tick(link.connection)
            except (sqlite3.Error, OSError, QueueUnavailable) as error:
                log.warning("cannot watch %s just now: %s", self._connections.path, error)
                self._clock.wait(self._ended, TICK_SECONDS)
            self._pause()
        if link is not None:
            with gate.using():
                link.close()

    def _pause(self) -> None:
        """Until the next look; without listeners there is only the tick."""
        self._awake.clear()
        if self._bells:
            self._clock.wait(self._ended, LOOK_SECONDS)
        elif not self._ended.is_set():
            self._clock.wait(self._awake, TICK_SECONDS)

    def _look(self, connection: sqlite3.Connection, seen: int) -> int:
        """Ring for what is ready, if somebody wrote since; tells how far it has seen."""
        if not self._bells:
            return 0
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != seen:
            with self._lock:
                queues = list(self._bells)
            self.ring([queue for queue in queues if connection.execute(READY, (queue, self._now())).fetchone()])
        return version

    def _tick(self, connection: sqlite3.Connection) -> None:
        """Checkpoint, if the log is long and nobody else was elected."""
        log_file = self._connections.path.with_name(self._connections.path.name + "-wal")
        with contextlib.suppress(FileNotFoundError):
            if log_file.stat().st_size > LONG_LOG_BYTES and self._election.won():
                checkpoint(connection)


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Move all changes from the log into the file; False where readers did not let it."""
    connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
    busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    return not busy


class Election:
    """Which process makes the checkpoints: whoever holds a lock on a file beside the database, until it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + "-checkpoint")
        self._file: int | None = None
        gate.know(self)

    def won(self) -> bool:
        """Whether it is this process; asks again where another one was."""
        if self._file is None:
            self._file = locked(self.path)
        return self._file is not None

    def leave(self) -> None:
        """Let another process have it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def before_fork(self) -> None:
        """The office stays with the parent."""

    def in_child(self) -> None:
        """A child shares its parent's lock on the file, and would keep it when the parent is gone."""
        self.leave()


def locked(path: Path) -> int | None:
    """The file, locked, or None where another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def copy_of(signal: Signal) -> Signal:
    """Another one in the same state."""
    made = Signal()
    if signal.is_set():
        made.set()
    return made
