"""What every engine of the queue promises, and the checks that come first in each call.

For every consumer group, each pushed message is in exactly one state: pending (scheduled counts as pending), leased,
completed or dead-lettered. A group's progress never goes back and never passes a message that is not settled; a push
that commits late is still delivered. Only an operator's delete or seek breaks this rule, and both are logged.

All calls block and may come from any thread. A call is one database transaction, unless its docstring says otherwise.
When a call returns, its work is committed. When it raises a QueueError or QueueUnavailable, nothing was changed, unless
the connection broke during the commit itself. A caller who cannot know repeats the call with the same transaction ids.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pump.errors import PumpError
from pump.queue.errors import QueueUnavailable, QueueUnusable
from pump.queue.ids import ids_for
from pump.queue.limits import (
    LARGEST_PAYLOAD_BYTES,
    check_filter,
    check_name,
    check_pop,
    check_seconds,
    check_start,
    check_steps,
    check_trace,
)
from pump.queue.options import QueueOptions
from pump.queue.sealing import Sealing
from pump.queue.vocabulary import (
    Committed,
    DeadLetter,
    Extended,
    Filter,
    GroupInfo,
    PartitionNumbers,
    PopRequest,
    PopResult,
    Push,
    Pushed,
    QueueInfo,
    Settled,
    Settlement,
    Step,
    Stored,
    Trace,
)
from pump.queue.work import Operations, StepRefused, pushes_of, transact

T = TypeVar("T")


class Engine(ABC):
    """The queue on one database."""

    clock_offset: float
    """Seconds added to the database's time, for tests."""
    largest_payload: int = LARGEST_PAYLOAD_BYTES
    """No message may be larger."""
    sweep_seconds: float = 5.0
    """The least time between two looks for settled messages behind one that is not settled."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection and end every thread; leases stay until they expire."""

    def healthy(self) -> bool:
        """Whether the database answers now."""
        try:
            self._read(lambda work: work.ping())
        except QueueUnavailable:
            return False
        return True

    @abstractmethod
    def use_keys(self, keys: Sealing) -> None:
        """Use these keys from now on; ConfigurationError, and the keys stay as they were, if one of them is wrong."""

    def problem(self) -> str:
        """Why the database cannot be written to now, in words; "" if it can."""
        try:
            self._write(lambda work: work.probe())
        except (QueueUnavailable, QueueUnusable) as error:
            return error.cause.words
        except PumpError as error:
            return str(error)
        return ""

    @abstractmethod
    def warnings(self) -> Sequence[str]:
        """What an operator should repair before it does harm: one sentence each, without secrets."""

    # -- what producers and consumers do

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        """Store each message, creating its queue and partition where needed; results in the order of the items.

        A duplicate is not stored again. An item that its queue refuses does not stop the others.
        """
        check_steps(items, self.largest_payload)
        ids = ids_for(items)
        return self._write(lambda work: work.push(items, ids)) if items else []

    def pop(self, request: PopRequest) -> PopResult:
        """Lease the messages that are ready; never waits."""
        check_pop(request)
        return self._pop(request)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Carry out each settlement; results in order. A refused one changes nothing and does not stop the others."""
        check_steps(settlements)
        return self._write(lambda work: work.settle(settlements)) if settlements else []

    def extend(self, lease_id: str, seconds: float | None = None) -> Extended:
        """Extend a lease to end no earlier than `seconds` from now; None means the lease time of its queue."""
        if seconds is not None:
            check_seconds("seconds", seconds)
        return self._write(lambda work: work.extend(lease_id, seconds))

    def transaction(self, steps: Sequence[Step], leases: frozenset[str] = frozenset()) -> Committed:
        """Carry out all steps or none. A settlement without a lease id needs its message's live lease among `leases`.

        If a message was completed before, or a push is a duplicate, the whole transaction is refused.
        """
        check_steps(steps, self.largest_payload)
        ids = ids_for(pushes_of(steps))
        try:
            return self._write(lambda work: transact(work, steps, leases, ids))
        except StepRefused as refused:
            return Committed(success=False, results=(), error=str(refused))

    def listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        """Call `on_ready`, from any thread, when something may have become ready in the queue, in any process.

        One message may cause several calls, and a call may be lost: a listener also looks by itself once a second.
        Returns the function that ends the listening.
        """
        return self._listen(check_name("Queue", queue), on_ready)

    # -- what operators do

    def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Replace all options of a queue, creating it where needed; the mode cannot change while leases are open."""
        check_name("Queue", queue)

        def act(work: Operations) -> QueueInfo:
            work.configure(queue, options, namespace, task)
            return work.queues(queue)[0]

        return self._write(act)

    def options(self, queue: str) -> QueueOptions | None:
        """The options of a queue; None if there is no such queue."""
        check_name("Queue", queue)
        return self._read(lambda work: work.options(queue))

    def subscribe(self, queue: str, group: str, start: float | str = "all") -> None:
        """Create the group, starting there; a group that exists keeps its progress."""
        check_name("Queue", queue)
        check_name("Consumer group", group)
        check_start(start)
        self._write(lambda work: work.subscribe(queue, group, start))

    def queues(self, name: str | None = None, *, whole: bool = False) -> Sequence[QueueInfo]:
        """All queues, with partitions and groups only if `whole`; or the named queue with its partitions and groups."""
        return self._read(lambda work: work.queues(name, whole=whole))

    def numbers(self, queue: str | None = None) -> Mapping[str, Sequence[PartitionNumbers]]:
        """Count the messages of each partition, in all or by group and state, for every queue or one; in one query."""
        return self._read(lambda work: work.numbers(queue))

    def delete_queue(self, queue: str) -> bool:
        """Remove a queue and everything in it except its dead letters; False if there was none."""
        return self._write(lambda work: work.delete_queue(queue))

    def clear(self, queue: str, partition: str | None = None) -> int:
        """Remove every message of a queue or of one partition; returns the number of messages."""
        return self._write(lambda work: work.clear(queue, partition))

    def groups(self, name: str | None = None) -> Sequence[GroupInfo]:
        """All groups of all queues, or those of that name."""
        return self._read(lambda work: work.groups(name))

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Delete a group's progress, in one queue or in all; if the name is used again, a new group starts."""
        return self._write(lambda work: work.delete_group(group, queue))

    def seek(self, group: str, queue: str, to: float | None, partition: str | None = None) -> int:
        """Move a group to the first message at or after a time, None to the end, and end its leases.

        Returns how many partitions were moved.
        """
        return self._write(lambda work: work.seek(group, queue, to, partition))

    def purge(self, queue: str, group: str) -> int:
        """Complete for a group every message that nobody has leased, due or not; returns the number of messages.

        The work is done in several transactions, each with a bounded number of messages.
        """
        check_name("Queue", queue)
        check_name("Consumer group", group)
        return self._purge(queue, group)

    def stored(self, which: Filter) -> Sequence[Stored]:
        """Messages, newest first, without their payloads."""
        check_filter(which)
        return self._read(lambda work: work.stored(which))

    def message(self, partition_id: str, transaction_id: str) -> Stored | None:
        """One message, with its payload."""
        return self._read(lambda work: work.message(partition_id, transaction_id))

    def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Remove a message for all groups; False if there was none."""
        return self._write(lambda work: work.delete_message(partition_id, transaction_id))

    def dead_letters(self, which: Filter) -> tuple[Sequence[DeadLetter], int]:
        """A page of dead letters, newest first, and their total number."""
        check_filter(which)
        return self._read(lambda work: work.dead_letters(which))

    def dead_letter_counts(self) -> Mapping[str, int]:
        """The number of dead letters of each queue that has any."""
        return self._read(lambda work: work.dead_letter_counts())

    def redrive(self, dead_letter_ids: Sequence[str]) -> list[Pushed | None]:
        """Push each again, once, as `reprocess-<transaction id>`; None for one that is unknown or already redriven."""
        return self._write(lambda work: work.redrive(dead_letter_ids)) if dead_letter_ids else []

    def retry(self, partition_id: str, transaction_id: str) -> int:
        """Make a dead message pending again in its old place, for each group that gave it up; returns how many did."""
        return self._write(lambda work: work.retry(partition_id, transaction_id))

    def give_up(self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str = "") -> int:
        """Make a message a dead letter for one group, or for each that has not settled it; returns how many groups.

        The message may be pending, scheduled or leased; a consumer that has it leased loses it. No attempt is counted.
        """
        return self._write(lambda work: work.give_up(partition_id, transaction_id, group, error))

    def add_trace(self, trace: Trace) -> str:
        """Store a note about a message; returns the note's id."""
        check_trace(trace)
        return self._write(lambda work: work.add_trace(trace))

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
        return self._read(lambda work: work.traces(partition_id, transaction_id, name, limit=limit, offset=offset))

    def trace_names(self) -> Sequence[str]:
        """All names that notes were stored under."""
        return self._read(lambda work: work.trace_names())

    def maintain(self) -> float:
        """Give due scheduled messages their places, and apply maximum waiting times and retention.

        Returns the seconds until there is more to do. Without this call no message is lost or late, since `pop` also
        gives due messages their places; but no message is removed either.
        """
        return self._write(lambda work: work.maintain(self.sweep_seconds))

    # -- what differs between the databases

    @abstractmethod
    def _write(self, act: Callable[[Operations], T]) -> T:
        """Run the function in a transaction, commit, then notify the listeners of the queues that it changed."""

    @abstractmethod
    def _read(self, act: Callable[[Operations], T]) -> T:
        """Run a function that changes nothing."""

    def _pop(self, request: PopRequest) -> PopResult:
        return self._write(lambda work: work.pop(request))

    @abstractmethod
    def _purge(self, queue: str, group: str) -> int:
        """As `purge`."""

    @abstractmethod
    def _listen(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        """As `listen`."""
