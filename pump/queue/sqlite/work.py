"""One transaction on a SQLite file while it runs: the moment it happens at, what it looked up, whom to wake."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pump.queue.errors import Conflict
from pump.queue.ids import mint
from pump.queue.limits import LONGEST_LEASE_SECONDS
from pump.queue.options import QueueOptions
from pump.queue.sealing import Sealing

NO_KEY: Final = "the queue is encrypted, and there is no key"


class Queue(NamedTuple):
    """A queue as it is while the transaction runs."""

    id: int
    uid: str
    name: str
    mode: bool | None
    """Whether it is ordered; None while nobody has consumed from it."""
    options: QueueOptions

    @property
    def ordered(self) -> bool:
        """What it is, or would become by itself."""
        return self.mode is not False


class Partition(NamedTuple):
    """A partition at the moment it was looked up."""

    id: int
    uid: str
    queue_id: int
    name: str
    last_seq: int
    last_at: float
    created_at: float


class Group(NamedTuple):
    """A consumer group of one queue."""

    id: int
    queue_id: int
    name: str
    subscription: str
    subscription_from: float | None
    created_at: float


class Work:
    """What every statement of one transaction shares."""

    def __init__(self, connection: sqlite3.Connection, now: float, sealing: Sealing | None, *, lenient: bool) -> None:
        self.execute: Final = connection.execute
        self.executemany: Final = connection.executemany
        self.now: Final = now
        self.sealing: Final = sealing
        self.lenient: Final = lenient
        self.rung: Final[set[str]] = set()
        """Queues where something may have become ready."""
        self._queues: Final[dict[int, Queue]] = {}
        self._numbers: Final[dict[str, int]] = {}

    # -- queues

    def queue(self, name: str) -> Queue | None:
        """The queue of that name."""
        number = self._numbers.get(name)
        if number is None:
            return self._found(self.execute(QUEUE + "WHERE name = ?", (name,)).fetchone())
        return self._queues[number]

    def queue_of(self, queue_id: int) -> Queue:
        """The queue of that number, which exists."""
        if queue_id not in self._queues:
            self._found(self.execute(QUEUE + "WHERE id = ?", (queue_id,)).fetchone())
        return self._queues[queue_id]

    def make_queue(self, name: str, mode: bool | None, options: QueueOptions) -> Queue:  # noqa: FBT001 - three values
        """A new queue; its namespace and task are the parts of its name, until somebody says otherwise."""
        namespace, _, task = name.partition(".")
        self.execute(
            "INSERT INTO queue (uid, name, namespace, task, ordered, options, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (mint(), name, namespace, task, mode, written_options(options), self.now),
        )
        made = self.queue(name)
        assert made is not None  # noqa: S101 - it was inserted in the line above
        return made

    def set_mode(self, queue: Queue, ordered: bool) -> Queue:  # noqa: FBT001 - the column
        """The queue, from now on in that mode."""
        self.execute("UPDATE queue SET ordered = ? WHERE id = ?", (ordered, queue.id))
        changed = queue._replace(mode=ordered, options=replace(queue.options, ordered=ordered))
        self._queues[queue.id] = changed
        return changed

    def forget_queue(self, queue: Queue) -> None:
        """Look it up again when it is asked for: its options have changed."""
        del self._queues[queue.id], self._numbers[queue.name]

    def _found(self, row: tuple[int, str, str, int | None, str] | None) -> Queue | None:
        if row is None:
            return None
        mode = None if row[3] is None else bool(row[3])
        queue = Queue(row[0], row[1], row[2], mode, read_options(row[4], ordered=mode is not False))
        self._queues[queue.id] = queue
        self._numbers[queue.name] = queue.id
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
        """The partition of that number, which exists."""
        return Partition(*self.execute(PARTITION + "WHERE id = ?", (part_id,)).fetchone())

    def partitions(self, queue_id: int) -> list[Partition]:
        """All partitions of a queue, oldest first."""
        return [Partition(*row) for row in self.execute(PARTITION + "WHERE queue_id = ? ORDER BY id", (queue_id,))]

    def group(self, queue_id: int, name: str) -> Group | None:
        """The group of that name in a queue."""
        row = self.execute(GROUP + "WHERE queue_id = ? AND name = ?", (queue_id, name)).fetchone()
        return row and Group(*row)

    def groups(self, queue_id: int) -> list[Group]:
        """All groups of a queue, oldest first."""
        return [Group(*row) for row in self.execute(GROUP + "WHERE queue_id = ? ORDER BY id", (queue_id,))]

    # -- the rest

    def lease_lives(self, until: float | None) -> bool:
        """Whether a lease that ends then is one still; an end too far off was set before the clock was put back."""
        return until is not None and self.now < until <= self.now + LONGEST_LEASE_SECONDS

    def opened(self, sealed: int, payload: bytes, partition_uid: str, transaction_id: str) -> bytes | None:
        """The payload as it was pushed; None where it cannot be read here."""
        if not sealed:
            return payload
        return None if self.sealing is None else self.sealing.open(payload, partition_uid, transaction_id)

    def readable(self, sealed: int, payload: bytes, partition_uid: str, transaction_id: str) -> bytes:
        """The same, or Conflict: nobody is handed what he cannot read, and nothing is counted for it."""
        found = self.opened(sealed, payload, partition_uid, transaction_id)
        if found is None:
            raise Conflict(f"message {transaction_id} is encrypted with a key that is not here")
        return found


QUEUE: Final = "SELECT id, uid, name, ordered, options FROM queue "
PARTITION: Final = "SELECT id, uid, queue_id, name, last_seq, last_at, created_at FROM partition "
GROUP: Final = "SELECT id, queue_id, name, subscription, subscription_from, created_at FROM consumer_group "


@lru_cache(maxsize=1024)
def read_options(text: str, *, ordered: bool) -> QueueOptions:
    """Options as they are stored; a field that an older version did not know has its default."""
    known = {name: value for name, value in json.loads(text).items() if name in DEFAULTS}
    return QueueOptions(**{**known, "ordered": ordered})


def written_options(options: QueueOptions) -> str:
    """Options for the database."""
    return json.dumps(asdict(options))


DEFAULTS: Final[dict[str, Any]] = asdict(QueueOptions())


def marks(values: Iterable[object]) -> str:
    """Question marks for an IN."""
    return ", ".join("?" for _ in values)
