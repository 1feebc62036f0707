"""The only thread of a SQLite engine: it notifies listeners when another process wrote, and makes the checkpoints.

Checkpoints are never automatic: one elected process makes them, and writes a change before each. See `checkpoint`.
"""

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.errors import QueueUnavailable
from pump.queue.forks import fork_gate
from pump.queue.listeners import Listeners
from pump.queue.sqlite.connection import Connections, FileConnection, is_busy, is_full

log: Final = logging.getLogger("pump.queue.sqlite")

LOOK_SECONDS: Final = 0.02
"""How often to check whether another process wrote."""
TICK_SECONDS: Final = 0.25
"""How often to check whether the log of changes (WAL) has grown too long."""
LONG_LOG_BYTES: Final = 4_000_000
CHECKPOINT_WAIT_MS: Final = 200
"""How long a checkpoint waits for readers; writers wait meanwhile."""

READY: Final = """
SELECT 1 FROM queue AS q CROSS JOIN consumer_group AS g ON g.queue_id = q.id
CROSS JOIN progress AS p ON p.group_id = g.id WHERE q.name = ? AND p.ready_at <= ? LIMIT 1
"""


class Watch:
    """Starts its thread when there is something to watch; each process has its own thread, also after a fork."""

    def __init__(self, connections: Connections, now: Callable[[], float], clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._now = now
        self._election = Election(connections.path)
        self._listeners = Listeners()
        self.notify: Final = self._listeners.notify
        """Calls the listeners of the given queues."""
        self._awake = Signal()
        self._ended = Signal()
        self._thread: threading.Thread | None = None
        self._pid = 0
        fork_gate.register(self)

    def before_fork(self) -> None:
        """Nothing to do: `Connections` closes the watch's connection too."""

    def in_child(self) -> None:
        """Replace locks: one that another thread of the parent held would stay locked."""
        self._listeners.in_child()
        closed = self._ended.is_set()
        self._awake, self._ended = Signal(), Signal()
        if closed:
            self._ended.set()

    def ensure(self) -> None:
        """Start the thread in this process, unless it is running."""
        if self._pid == os.getpid() or self._ended.is_set():
            return
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="pump-queue-sqlite", daemon=True)
        self._thread.start()

    def listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        """Call `on_ready` for that queue until the returned function is called."""
        end = self._listeners.add(queue, on_ready)
        self._awake.set()
        self.ensure()
        return end

    def close(self) -> None:
        """End the thread, and let another process make the checkpoints."""
        self._ended.set()
        self._awake.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        self._election.leave()

    def _run(self) -> None:
        """Look and tick until closed. A file that cannot be reached now is tried again later."""
        opened: FileConnection | None = None
        seen, ticked, well = 0, 0.0, True
        while not self._ended.is_set():
            try:
                with fork_gate.using():
                    if opened is not None and opened.lost_its_file():
                        opened.close()
                    if opened is None or opened.closed:
                        opened, seen = self._connections.open(), 0  # each connection counts versions by itself
                    with opened.in_use:
                        seen = self._look(opened.connection, seen)
                        if self._clock.monotonic() - ticked > TICK_SECONDS:
                            ticked = self._clock.monotonic()
                            self._tick(opened.connection)
                            well = True
            except (sqlite3.Error, OSError, QueueUnavailable) as error:
                if well:
                    log.warning("cannot watch %s just now: %s", self._connections.path, error)
                well = False
                if is_full(error):
                    self._connections.room.give_up()
                self._clock.wait(self._ended, TICK_SECONDS)
            self._pause()
        if opened is not None:
            with fork_gate.using():
                opened.close()

    def _pause(self) -> None:
        """Wait until the next look; without listeners, until the next tick."""
        self._awake.clear()
        if self._listeners:
            self._clock.wait(self._ended, LOOK_SECONDS)
        elif not self._ended.is_set():
            self._clock.wait(self._awake, TICK_SECONDS)

    def _look(self, connection: sqlite3.Connection, seen: int) -> int:
        """Notify the listeners of ready queues if another process wrote since; returns the version that was seen."""
        if not self._listeners:
            return 0
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != seen:
            queues = self._listeners.queues()
            self.notify([queue for queue in queues if connection.execute(READY, (queue, self._now())).fetchone()])
        return version

    def _tick(self, connection: sqlite3.Connection) -> None:
        """Make a checkpoint, if the log is long, or room is short, and this process is the elected one."""
        room = self._connections.room
        short = room.is_given_up()
        if room.log_bytes() > (0 if short else LONG_LOG_BYTES) and self._election.won():
            connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
            checkpoint(connection)
        if short:
            room.keep()


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Move the log of changes into the file. Readers or a long transaction can prevent it; it is tried again later.

    SQLite before 3.51.3 has a defect. If a checkpoint begins when the whole log was moved already, and a writer then
    starts the log again during the checkpoint, the new changes count as moved although they are not, and are lost.
    So this first writes a change. That change is not moved yet, and only the elected process, which is this one, makes
    checkpoints: no writer can start the log again before this checkpoint is done.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        return False  # another connection has been writing for too long
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return True


class Election:
    """Which process makes the checkpoints: the one that holds a lock on a file beside the database, until it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + "-checkpoint")
        self._file: int | None = None
        fork_gate.register(self)

    def won(self) -> bool:
        """Whether this process is elected; if not, it tries again to get the lock."""
        if self._file is None:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                return False
            self._file = file
        return True

    def leave(self) -> None:
        """Give up the lock, so that another process can take it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def before_fork(self) -> None:
        """The parent keeps the lock."""

    def in_child(self) -> None:
        """Close the file: a child shares its parent's lock, and would keep it after the parent has ended."""
        self.leave()
