"""What every engine of the queue promises. Two keep it: `sqlite_engine` and `postgres_engine`.

Every pushed message is, for every group, in exactly one of pending (scheduled counts), leased, completed and
dead-lettered. A group's progress never goes back and never passes a message that is not settled; a push that commits
late is still delivered. An operator's delete and seek are the only exits, and are logged.

All calls block and may come from any thread; `postgres_async_engine` has the same ones, awaited. Each is one database
transaction: what it returns is committed, what it raises (a QueueError, or QueueUnavailable) changed nothing, unless
the connection broke at the commit itself. Whoever cannot know then asks again with the same transaction ids.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pump.queue.options import QueueOptions
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


class Engine(Protocol):
    """The queue on one database."""

    def close(self) -> None:
        """Let go of every connection and thread; leases stay until they end."""

    def healthy(self) -> bool:
        """Whether the database answers just now."""

    def warnings(self) -> Sequence[str]:
        """What an operator should see to before it does harm, each as a sentence; nothing that is secret."""

    # -- what producers and consumers do

    def push(self, items: Sequence[Push]) -> list[Pushed]:
        """Store each, creating its queue and partition where needed; answers in the order of the items.

        A duplicate is not stored again; an item that its queue refuses does not hold back the others.
        """

    def pop(self, want: Want) -> Taken:
        """Lease what is ready; never waits."""

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Carry out each as it says; answers in order. One that is refused changes nothing, and not the others."""

    def extend(self, lease_id: str, seconds: float | None = None) -> Extended:
        """Let a lease end no earlier than that from now; None is its queue's lease time."""

    def transaction(self, steps: Sequence[Step], leases: frozenset[str] = frozenset()) -> Committed:
        """All steps or none. A settlement without a lease id is covered by the live lease among `leases`.

        A message that was completed before, and a push that is a duplicate, each refuse the whole.
        """

    def listen(self, queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring`, from any thread, when something may have become ready in the queue, by any process.

        One message may ring often, or the bell may fail: a listener looks by itself once a second as well. Returns
        what ends it.
        """

    # -- what operators do

    def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Replace all options of a queue, creating it where needed; a mode may not change while leases are open."""

    def options(self, queue: str) -> QueueOptions | None:
        """The options of a queue; None if there is none."""

    def subscribe(self, queue: str, group: str, start: float | str = "all") -> None:
        """Make the group known, beginning there; a group that exists keeps its place."""

    def queues(self, name: str | None = None) -> Sequence[QueueInfo]:
        """All queues without their partitions, or the one of that name with all of them."""

    def delete_queue(self, queue: str) -> bool:
        """Remove a queue and all it holds but its dead letters; False if there was none."""

    def clear(self, queue: str, partition: str | None = None) -> int:
        """Remove every message of a queue or of one partition; says how many."""

    def groups(self, name: str | None = None) -> Sequence[GroupInfo]:
        """All groups of all queues, or those of that name."""

    def delete_group(self, group: str, queue: str | None = None) -> bool:
        """Forget a group's progress, in one queue or all; named again it begins anew."""

    def seek(self, group: str, queue: str, to: float | None, partition: str | None = None) -> int:
        """Move a group to the first message at or after a time, None to the end, and end its leases.

        Says how many partitions that were.
        """

    def purge(self, queue: str, group: str) -> int:
        """Complete for a group all that nobody has leased, due or not; says how many messages that were.

        Not all at one moment: each call of the database is about a bounded number of messages.
        """

    def stored(self, which: Filter) -> Sequence[Stored]:
        """Messages, newest first, without their payloads."""

    def message(self, partition_id: str, transaction_id: str) -> Stored | None:
        """One message, with its payload."""

    def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Remove a message for all groups; False if there was none."""

    def dead_letters(self, which: Filter) -> tuple[Sequence[DeadLetter], int]:
        """A page of dead letters, newest first, and how many there are in all."""

    def redrive(self, dead_letter_ids: Sequence[str]) -> list[Pushed | None]:
        """Push each again as `reprocess-<transaction id>`, once; None where there is none or it was done before."""

    def retry(self, partition_id: str, transaction_id: str) -> int:
        """Make a dead message pending again in its place, for every group that gave it up; says for how many."""

    def bury(self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str = "") -> int:
        """Make a dead letter of a message, for the group or for each that has not settled it; says for how many.

        Whether it is pending, scheduled or leased: whoever has it, has it no more. It counts as no attempt.
        """

    def add_trace(self, trace: Trace) -> str:
        """Note something about a message; returns the note's id."""

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

    def trace_names(self) -> Sequence[str]:
        """All names that notes were filed under."""

    def maintain(self) -> float:
        """Give due messages their place, apply maximum waiting times and retention.

        Returns the seconds until there is more to do. `pop` sees to what is due by itself: without this, nothing is
        lost and nothing comes late, but nothing is removed.
        """
