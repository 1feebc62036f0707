"""One transaction on a SQLite file while it runs: its time, its cached lookups, the queues that it changed."""

import json
import sqlite3
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pump.queue.errors import NotFound
from pump.queue.ids import mint
from pump.queue.limits import LONGEST_LEASE_SECONDS
from pump.queue.options import QueueOptions
from pump.queue.sealing import MissingKeys, Sealing
from pump.queue.sqlite.room import Room
from pump.queue.work import Work


class Queue(NamedTuple):
    """A queue as it is while the transaction runs."""

    id: int
    uid: str
    name: str
    mode: bool | None
    """Whether it is ordered; None while nobody has consumed from it."""
    ordered: bool
    """The mode, or the default mode if it is not decided yet."""
    options: QueueOptions


class Partition(NamedTuple):
    """A partition at the moment it was looked up."""

    id: int
    uid: str
    queue_id: int
    name: str
    last_seq: int
    last_at: float
    created_at: float


class ConsumerGroup(NamedTuple):
    """A consumer group of one queue."""

    id: int
    queue_id: int
    name: str
    subscription: str
    subscription_from: float | None
    created_at: float


class SqliteWork(Work):
    """State that the operations of one transaction share."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float,
        sealing: Sealing | None,
        missing: MissingKeys,
        room: Room,
        *,
        lenient: bool,
    ) -> None:
        super().__init__(sealing, missing, lenient=lenient)
        self._room: Final = room
        self.execute: Final = connection.execute
        self.executemany: Final = connection.executemany
        self.now: Final = now
        self._queues: Final[dict[int, Queue]] = {}
        self._queue_ids: Final[dict[str, int]] = {}

    def together(self) -> AbstractContextManager[object]:
        """Does nothing: every call is one transaction already."""
        return nullcontext()

    def ping(self) -> object:
        """Ask the database for an answer."""
        return self.exists("SELECT 1")

    def probe(self) -> object:
        """Write the first page of the file unchanged: this needs space in the log of changes, and a disk that works."""
        self.must_have_room(0)
        return self.execute(f"PRAGMA user_version = {self.number('PRAGMA user_version')}")

    def must_have_room(self, size: int) -> None:
        """Refuse a push of this size, if the disk would have too little room left to settle and remove messages."""
        self._room.must_be_left(
            size, lambda: self.number("PRAGMA freelist_count") * self.number("PRAGMA page_size")
        )  # fmt: skip

    def exists(self, statement: str, *values: object) -> bool:
        """Whether a statement finds a row."""
        return self.execute(statement, values).fetchone() is not None

    def number(self, statement: str, *values: object) -> int:
        """The one number that a statement returns."""
        row: tuple[int] = self.execute(statement, values).fetchone()
        return row[0]

    # -- queues

    def queue(self, name: str) -> Queue | None:
        """The queue of that name."""
        queue_id = self._queue_ids.get(name)
        if queue_id is None:
            return self._remember(self.execute(QUEUE + "WHERE name = ?", (name,)).fetchone())
        return self._queues[queue_id]

    def required_queue(self, name: str) -> Queue:
        """The queue of that name, or NotFound."""
        queue = self.queue(name)
        if queue is None:
            raise NotFound(f"there is no queue {name!r}")
        return queue

    def queue_of(self, queue_id: int) -> Queue:
        """The queue of that id, which exists."""
        if queue_id not in self._queues:
            self._remember(self.execute(QUEUE + "WHERE id = ?", (queue_id,)).fetchone())
        return self._queues[queue_id]

    def make_queue(self, name: str, mode: bool | None, options: QueueOptions) -> Queue:  # noqa: FBT001 - three values
        """Make a queue; its namespace and task are the parts of its name until `configure` changes them."""
        namespace, _, task = name.partition(".")
        self.execute(
            "INSERT INTO queue (uid, name, namespace, task, ordered, options, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (mint(), name, namespace, task, mode, options_as_text(options), self.now),
        )
        return self.required_queue(name)

    def set_mode(self, queue: Queue, ordered: bool) -> Queue:  # noqa: FBT001 - the column
        """Store the queue's mode; returns the changed queue."""
        self.execute("UPDATE queue SET ordered = ? WHERE id = ?", (ordered, queue.id))
        changed = queue._replace(mode=ordered, ordered=ordered, options=replace(queue.options, ordered=ordered))
        self._queues[queue.id] = changed
        return changed

    def forget_queue(self, queue: Queue) -> None:
        """Forget a cached queue that has changed: it is read again at its next use."""
        del self._queues[queue.id], self._queue_ids[queue.name]

    def _remember(self, row: tuple[int, str, str, int | None, str] | None) -> Queue | None:
        if row is None:
            return None
        mode = None if row[3] is None else bool(row[3])
        ordered = mode is not False
        queue = Queue(row[0], row[1], row[2], mode, ordered, options_from_text(row[4], ordered=ordered))
        self._queues[queue.id] = queue
        self._queue_ids[queue.name] = queue.id
        return queue

    # -- partitions and groups

    def partition(self, queue_id: int, name: str) -> Partition | None:
        """The partition of that name."""
        row = self.execute(PARTITION + "WHERE queue_id = ? AND name = ?", (queue_id, name)).fetchone()
        return row and Partition(*row)

    def partition_by_uid(self, uid: str) -> Partition | None:
        """The partition that callers know by that id."""
        row = self.execute(PARTITION + "WHERE uid = ?", (uid,)).fetchone()
        return row and Partition(*row)

    def partition_of(self, part_id: int) -> Partition:
        """The partition of that id, which exists."""
        return Partition(*self.execute(PARTITION + "WHERE id = ?", (part_id,)).fetchone())

    def partitions(self, queue_id: int) -> list[Partition]:
        """All partitions of a queue, oldest first."""
        return [Partition(*row) for row in self.execute(PARTITION + "WHERE queue_id = ? ORDER BY id", (queue_id,))]

    def group(self, queue_id: int, name: str) -> ConsumerGroup | None:
        """The group of that name in a queue."""
        row = self.execute(GROUP + "WHERE queue_id = ? AND name = ?", (queue_id, name)).fetchone()
        return row and ConsumerGroup(*row)

    def required_group(self, queue: Queue, name: str) -> ConsumerGroup:
        """The group of that name in a queue, or NotFound."""
        group = self.group(queue.id, name)
        if group is None:
            raise NotFound(f"queue {queue.name!r} has no group {name!r}")
        return group

    def groups_of(self, queue_id: int) -> list[ConsumerGroup]:
        """All groups of a queue, oldest first."""
        return [ConsumerGroup(*row) for row in self.execute(GROUP + "WHERE queue_id = ? ORDER BY id", (queue_id,))]

    # -- the rest

    def lease_lives(self, until: float | None) -> bool:
        """Whether a lease with that end is live. If the end is too far off, the clock was put back since: not live."""
        return until is not None and self.now < until <= self.now + LONGEST_LEASE_SECONDS

    def readable(self, payload: bytes, partition_uid: str, transaction_id: str, *, sealed: bool) -> bytes | None:
        """The payload as it was pushed; None if it cannot be opened here: operators are then warned."""
        return self.opened(payload, partition_uid, transaction_id, sealed=sealed)

    def key_check(self, key_id: str) -> bytes | None:
        """The check value of the key with that id; None if there is none yet."""
        row = self.execute("SELECT sealed FROM key_check WHERE id = ?", (key_id,)).fetchone()
        return row and bytes(row[0])

    def add_key_check(self, key_id: str, value: bytes) -> None:
        """Store the check value of a key, unless one is stored."""
        self.execute("INSERT OR IGNORE INTO key_check (id, sealed) VALUES (?, ?)", (key_id, value))


QUEUE: Final = "SELECT id, uid, name, ordered, options FROM queue "
PARTITION: Final = "SELECT id, uid, queue_id, name, last_seq, last_at, created_at FROM partition "
GROUP: Final = "SELECT id, queue_id, name, subscription, subscription_from, created_at FROM consumer_group "


@lru_cache(maxsize=1024)
def options_from_text(text: str, *, ordered: bool) -> QueueOptions:
    """Options from their stored form; a field that an older version did not store has its default."""
    known = {name: value for name, value in json.loads(text).items() if name in DEFAULTS}
    return QueueOptions(**{**known, "ordered": ordered})


def options_as_text(options: QueueOptions) -> str:
    """Options for the database."""
    return json.dumps(asdict(options))


DEFAULTS: Final[dict[str, Any]] = asdict(QueueOptions())
