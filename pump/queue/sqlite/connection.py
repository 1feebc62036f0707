"""The connections of one process to one SQLite file: one for each thread, none across a fork, one writer at a time.

A connection is closed only while no thread uses it: closing frees memory that a statement of another thread still
reads, and the process crashes.

Every write transaction starts with `BEGIN IMMEDIATE`: one that first reads and then writes fails at once if another
process wrote in between, and a time-out does not help.
"""

import contextlib
import logging
import os
import random
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pump.clock import Clock, Signal
from pump.errors import SetupError
from pump.queue.causes import CLOSED, GONE, OTHER, of_result
from pump.queue.errors import BadRequest, QueueUnavailable
from pump.queue.forks import fork_gate
from pump.queue.sqlite.room import Room
from pump.queue.sqlite.schema import must_be_queue, prepare, refuse_others

log: Final = logging.getLogger("pump.queue.sqlite")

BUSY_MS: Final = 10_000
RETRY_SECONDS: Final = (0.0002, 0.001)
"""Between attempts to become the writer: a random time from this range."""
NETWORK_FILE_SYSTEMS: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
})  # fmt: skip


class FileConnection:
    """One connection; closed with the thread that used it, or before a fork."""

    def __init__(self, path: Path, synchronous: str, *, create: bool) -> None:
        self.closed = False
        self.in_use = threading.RLock()
        """Locked by the thread that runs statements; `close` waits for this lock."""
        self._path = path
        if create:
            make_private(path)
        self.connection = sqlite3.connect(
            f"{path.as_uri()}?mode={'rwc' if create else 'rw'}", uri=True, timeout=BUSY_MS / 1000,
            isolation_level=None, check_same_thread=False, cached_statements=512,
        )  # fmt: skip
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {synchronous}",
            "wal_autocheckpoint = 0",  # one elected process makes checkpoints: see watch.py
            "mmap_size = 0",
            "secure_delete = OFF",
            "temp_store = MEMORY",
            "cache_size = -16000",
        ):
            self.connection.execute(f"PRAGMA {pragma}")
        self._file = file_at(path)

    def lost_its_file(self) -> bool:
        """Whether the file was removed or replaced: no other process would ever see what this connection writes."""
        return file_at(self._path) != self._file

    def close(self) -> None:
        """Close the file, once nobody uses the connection."""
        with self.in_use:
            self.closed = True
            self.connection.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never opened
            self.close()


class ProcessState:
    """State that belongs to one process: a child made by fork gets a new, empty one."""

    def __init__(self) -> None:
        self.writing = threading.Lock()
        """The threads of one process take turns to write with this lock, instead of polling the file."""
        self.of_thread = threading.local()
        self._listing = threading.Lock()
        self._connections: weakref.WeakSet[FileConnection] = weakref.WeakSet()

    def add(self, opened: FileConnection) -> None:
        """Remember a connection, to close it with the others."""
        with self._listing:
            self._connections.add(opened)

    def close(self) -> None:
        """Close every connection once no thread uses it; a thread that needs one afterwards opens a new one."""
        with self._listing:
            opened = list(self._connections)
        for each in opened:
            each.close()


class Connections:
    """Gives each thread its connection."""

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        synchronous: str = "FULL",
        beside_others: bool = True,
        create: bool = True,
        reserve: bool = False,
    ) -> None:
        self._clock = clock
        self.path = checked_path(path)
        self.room = Room(self.path, reserve=reserve)
        self._synchronous = synchronous.upper()
        if self._synchronous not in {"FULL", "NORMAL", "EXTRA"}:
            raise SetupError(f"synchronous is FULL, NORMAL or EXTRA, not {synchronous!r}")
        if not create:
            with our_errors(self.path):
                must_be_queue(self.path)
        if not beside_others:
            with our_errors(self.path):
                refuse_others(self.path)
        self._process = ProcessState()
        self.closed = False
        self._prepared = False
        fork_gate.register(self)
        with self.writing() as connection:
            prepare(connection, self.path)
        self._prepared = True

    def reading(self) -> FileConnection:
        """This thread's connection, opened if necessary; the caller holds its `in_use` while it runs statements."""
        if self.closed:
            raise self._closed()
        of_thread = self._process.of_thread
        opened: FileConnection | None = getattr(of_thread, "opened", None)
        if opened is not None and opened.lost_its_file():
            opened.close()
        if opened is None or opened.closed:
            opened = of_thread.opened = self.open()
        return opened

    def _closed(self) -> QueueUnavailable:
        return QueueUnavailable(f"{self.path} is closed", CLOSED)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end of the block, rolled back by any exception in it."""
        with fork_gate.using(), our_errors(self.path), self._process.writing:
            opened = self.reading()
            with opened.in_use:
                if opened.closed:
                    raise self._closed()
                connection = opened.connection
                begin(connection, self._clock)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException as error:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if is_full(error):
                        self.room.give_up()
                    raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A read transaction, which sees one unchanging state of the file; it makes no writer wait."""
        with fork_gate.using(), our_errors(self.path):
            opened = self.reading()
            with opened.in_use:
                if opened.closed:
                    raise self._closed()
                opened.connection.execute("BEGIN")
                try:
                    yield opened.connection
                finally:
                    opened.connection.execute("ROLLBACK")

    def open(self) -> FileConnection:
        """A new connection that belongs to no thread; the caller must have entered the fork gate."""
        with our_errors(self.path):
            if self._prepared and file_at(self.path) is None:
                raise QueueUnavailable(f"{self.path} is gone: put it back, or make a new engine for a new file", GONE)
            opened = FileConnection(self.path, self._synchronous, create=not self._prepared)
        self._process.add(opened)
        if self.closed:  # `close` ran meanwhile, and may not have closed this connection
            opened.close()
            raise self._closed()
        return opened

    def close(self) -> None:
        """Close all connections of this process, after the reads and the write that are running."""
        with fork_gate.using():
            self.closed = True
            self._process.close()

    def before_fork(self) -> None:
        """Close all connections; nobody uses them now."""
        self._process.close()

    def in_child(self) -> None:
        """Use none of the parent's connections and locks."""
        self._process = ProcessState()


@contextlib.contextmanager
def on_connection(connection: sqlite3.Connection, path: Path) -> Iterator[bool]:
    """A transaction on a caller's own connection to that file; yields whether it commits at the end of the block."""
    files = [Path(file).resolve() for _, name, file in connection.execute("PRAGMA database_list") if name == "main"]
    if files != [path]:
        raise SetupError(f"that connection is not one to {path}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # only the elected process may make them: watch.py
    commits = not connection.in_transaction
    if commits:
        with our_errors(path):
            connection.execute("BEGIN IMMEDIATE")
    try:
        yield commits
        if commits:
            with our_errors(path):
                connection.execute("COMMIT")
    except BaseException:
        if commits and connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """If the block raises, only the block is rolled back, not what the same transaction did before it."""
    connection.execute("SAVEPOINT message_pump")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO message_pump")
        raise
    finally:
        connection.execute("RELEASE message_pump")


def begin(connection: sqlite3.Connection, clock: Clock) -> None:
    """Become the only writer of the file; waits for other writers for a bounded time.

    SQLite's own wait sleeps up to 100 ms between attempts, so a process that writes without a pause would block others.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        until = clock.monotonic() + BUSY_MS / 1000
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or clock.monotonic() > until:
                    raise
            clock.wait(Signal(), random.uniform(*RETRY_SECONDS))  # noqa: S311 - it keeps no secret
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether the error means that another connection is writing now."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_full(error: BaseException) -> bool:
    """Whether the error means that the disk has no room."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


@contextlib.contextmanager
def our_errors(path: Path) -> Iterator[None]:
    """Turn each error of SQLite into one of ours; the call that failed has changed nothing."""
    try:
        yield
    except (OverflowError, UnicodeEncodeError):
        raise BadRequest("a number or a text that the database cannot store") from None
    except sqlite3.Error as error:
        cause = of_result(getattr(error, "sqlite_errorcode", 0))
        why = "" if cause is OTHER else f": {cause.words}"
        raise QueueUnavailable(f"database connection unavailable: {path.name}{why} ({error})", cause) from error


def file_at(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - the other spelling takes twice as long, and this is done for each call
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def make_private(path: Path) -> None:
    """Make the file if it is missing, for its owner only; SQLite gives the same mode to its other files."""
    with contextlib.suppress(OSError):  # the file exists, or SQLite will say why it cannot be made
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def checked_path(path: str | Path) -> Path:
    """The file's absolute path; SetupError if processes could not share the file, or it would not be kept."""
    if str(path) in {"", ":memory:"} or str(path).startswith("file:"):
        raise SetupError("the queue needs a file: in memory each connection would have a queue of its own")
    whole = Path(path).expanduser().resolve()
    if not whole.parent.is_dir():
        raise SetupError(f"there is no directory {whole.parent}")
    kind = file_system_of(whole.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise SetupError(f"{whole} is on a network file system ({kind}), where SQLite's locks do not hold")
    return whole


def file_system_of(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system that a directory is on; "" if the system does not say."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    kinds = {Path(unescaped(mount)): kind for _, mount, kind, *_ in map(str.split, lines)}
    return next((kinds[above] for above in (directory, *directory.parents) if above in kinds), "")


def unescaped(mount: str) -> str:
    """A mount point as a path: the system writes its spaces in octal."""
    return mount.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
