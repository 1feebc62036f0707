"""The queue in PostgreSQL: for any number of processes and machines.

Every call is one transaction, most of them one statement: the rules are functions in the schema (the numbered SQL files
beside this one), and what is here asks them. `postgres_async_engine` is the same, awaiting.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from pump.queue.limits import (
    check_filter,
    check_name,
    check_pushes,
    check_seconds,
    check_start,
    check_steps,
    check_trace,
    check_want,
)
from pump.queue.options import QueueOptions
from pump.queue.postgres import dead_letters as dead
from pump.queue.postgres import operators
from pump.queue.postgres.base import PostgresBase
from pump.queue.postgres.infos import group_infos, infos
from pump.queue.postgres.pop import pop
from pump.queue.postgres.push import ids_for, push
from pump.queue.postgres.session import BlockingSession, Connection, Finishing, Session, finished
from pump.queue.postgres.settle import extend, settle
from pump.queue.postgres.stored import message, stored
from pump.queue.postgres.traces import add_trace, trace_names, traces
from pump.queue.postgres.warnings import OLD_SECONDS
from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    Filter,
    GroupInfo,
    Push,
    Pushed,
    QueueInfo,
    Settled,
    Settlement,
    Step,
    Stored,
    Taken,
    Trace,
    Want,
)


class PostgresEngine(PostgresBase):
    """Keeps every promise of `Engine`, from the moment it is made: QueueUnavailable where there is no database."""

    _sessions: ClassVar[type[Session]] = BlockingSession

    def _begin(self) -> None:
        try:
            finished(self._open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of every connection and thread; leases stay until they end."""
        finished(self._close())

    def healthy(self) -> bool:
        """Whether the database answers just now."""
        return finished(self._healthy())

    def warnings(self, *, older_than: float = OLD_SECONDS) -> Sequence[str]:
        """What should be seen to before it does harm, such as a snapshot that is older than so many seconds."""
        return finished(self._call(lambda work: self._holders.warnings(work, older_than)))

    # -- what producers and consumers do

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        """Store each, creating its queue and partition where needed; answers in the order of the items."""
        check_pushes(items)
        ids = ids_for(items)
        return finished(self._call(lambda work: push(work, items, ids))) if items else []

    def pop(self, want: Want) -> Taken:
        """Lease what is ready; never waits."""
        check_want(want)
        return finished(self._call(lambda work: pop(work, want)))

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Carry out each as it says; answers in order."""
        check_steps(settlements)
        return finished(self._call(lambda work: settle(work, settlements))) if settlements else []

    def extend(self, lease_id: str, seconds: float | None = None) -> Extended:
        """Let a lease end no earlier than that from now; None is its queue's lease time."""
        if seconds is not None:
            check_seconds("seconds", seconds)
        return finished(self._call(lambda work: extend(work, lease_id, seconds)))

    def transaction(self, steps: Sequence[Step], leases: frozenset[str] = frozenset()) -> Committed:
        """All steps or none. A settlement without a lease id is covered by the live lease among `leases`."""
        check_steps(steps)
        return finished(self._transact(steps, leases))

    def transaction_on(
        self, connection: Connection, leases: frozenset[str] = frozenset()
    ) -> AbstractContextManager[list[Step]]:
        """Steps and the caller's own statements as one transaction on the caller's connection.

        What is put into the list is carried out at the end of the block, which then commits, unless the connection was
        in a transaction before: it goes on, and the queue's statements should be its last. Locks of partitions are held
        no longer than that. A step that is refused raises Conflict, and QueueUnavailable means: all of it again.
        """
        return Finishing(self._transaction_on(BlockingSession(connection), leases))

    def listen(self, queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring`, from any thread, when something may have become ready in the queue, by any process."""
        return self._bell.listen(check_name("Queue", queue), ring)

    # -- what operators do

    def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Replace all options of a queue, creating it where needed; a mode may not change while leases are open."""
        check_name("Queue", queue)
        return finished(self._call(lambda work: operators.configure(work, queue, options, namespace, task)))

    def options(self, queue: str) -> QueueOptions | None:
        """The options of a queue; None if there is none."""
        check_name("Queue", queue)
        return finished(self._call(lambda work: operators.known_options(work, queue)))

    def subscribe(self, queue: str, group: str, start: float | str = "all") -> None:
        """Make the group known, beginning there; a group that exists keeps its place."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        check_start(start)
        finished(self._call(lambda work: operators.subscribe(work, queue, group, start)))

    def queues(self, name: str | None = None) -> Sequence[QueueInfo]:
        """All queues without their partitions, or the one of that name with all of them."""
        return finished(self._call(lambda work: infos(work, name)))

    def delete_queue(self, queue: str) -> bool:
        """Remove a queue and all it holds but its dead letters; False if there was none."""
        return finished(self._call(lambda work: operators.delete_queue(work, queue)))

    def clear(self, queue: str, partition: str | None = None) -> int:
        """Remove every message of a queue or of one partition; says how many."""
        return finished(self._call(lambda work: operators.clear(work, queue, partition)))

    def groups(self, name: str | None = None) -> Sequence[GroupInfo]:
        """All groups of all queues, or those of that name."""
        return finished(self._call(lambda work: group_infos(work, name)))

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Forget a group's progress, in one queue or all; named again it begins anew."""
        return finished(self._call(lambda work: operators.delete_group(work, group, queue)))

    def seek(self, group: str, queue: str, to: float | None, partition: str | None = None) -> int:
        """Move a group to the first message at or after a time, None to the end, and end its leases."""
        return finished(self._call(lambda work: operators.seek(work, group, queue, to, partition)))

    def purge(self, queue: str, group: str) -> int:
        """Complete for a group all that nobody has leased, due or not; says how many messages that were."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        return finished(self._call(lambda work: operators.purge(work, queue, group)))

    def stored(self, which: Filter) -> Sequence[Stored]:
        """Messages, newest first, without their payloads."""
        check_filter(which)
        return finished(self._call(lambda work: stored(work, which)))

    def message(self, partition_id: str, transaction_id: str) -> Stored | None:
        """One message, with its payload."""
        return finished(self._call(lambda work: message(work, partition_id, transaction_id)))

    def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Remove a message for all groups; False if there was none."""
        return finished(self._call(lambda work: operators.delete_message(work, partition_id, transaction_id)))

    def dead_letters(self, which: Filter) -> tuple[Sequence[DeadLetter], int]:
        """A page of dead letters, newest first, and how many there are in all."""
        check_filter(which)
        return finished(self._call(lambda work: dead.dead_letters(work, which)))

    def redrive(self, dead_letter_ids: Sequence[str]) -> list[Pushed | None]:
        """Push each again as `reprocess-<transaction id>`, once; None where there is none or it was done before."""
        return finished(self._call(lambda work: dead.redrive(work, dead_letter_ids))) if dead_letter_ids else []

    def retry(self, partition_id: str, transaction_id: str) -> int:
        """Make a dead message pending again in its place, for every group that gave it up; says for how many."""
        return finished(self._call(lambda work: dead.retry(work, partition_id, transaction_id)))

    def bury(self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str = "") -> int:
        """Make a dead letter of a message, for the group or for each that has not settled it; says for how many."""
        return finished(self._call(lambda work: dead.bury(work, partition_id, transaction_id, group, error)))

    def add_trace(self, trace: Trace) -> str:
        """Note something about a message; returns the note's id."""
        check_trace(trace)
        return finished(self._call(lambda work: add_trace(work, trace)))

    def traces(
        self,
        *,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Sequence[Trace]:
        """Notes about one message, or under one name, oldest first."""
        return finished(
            self._call(lambda work: traces(work, partition_id, transaction_id, name, limit=limit, offset=offset))
        )

    def trace_names(self) -> Sequence[str]:
        """All names that notes were filed under."""
        return finished(self._call(trace_names))

    def maintain(self) -> float:
        """Give due messages their place, apply maximum waiting times and retention."""
        return finished(self._call(lambda work: operators.maintain(work, self._broom)))
