"""One engine of the durable queue in a test's hand: a queue, a clock that the test moves, and short words."""

from collections.abc import Sequence
from typing import Any

from pump.queue.engine import Engine
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import (
    DEFAULT_GROUP,
    DeadLetter,
    Filter,
    Leased,
    PopRequest,
    PopResult,
    ProgressInfo,
    Push,
    Pushed,
    Settled,
    Settlement,
    State,
    Status,
)

OK = Status.COMPLETED
FAIL = Status.FAILED
BACK = Status.RETRY
DEAD = Status.DEAD


class Rig:
    """An engine and the queue that the test is about."""

    def __init__(self, engine: Engine, *, ordered: bool = True, queue: str = "orders") -> None:
        self.engine = engine
        self.queue = queue
        self.ordered = ordered

    def configure(self, **options: Any) -> None:
        self.engine.configure(self.queue, QueueOptions(**{"ordered": self.ordered, "retry_delay": 0.0, **options}))

    def push(self, *names: str, partition: str = "Default", **fields: Any) -> list[Pushed]:
        """Messages whose transaction ids and payloads are those names."""
        return self.engine.push([Push(self.queue, name.encode(), partition, name, **fields) for name in names])

    def pop(self, limit: int = 100, **want: Any) -> list[Leased]:
        return list(self.take(limit, **want).messages)

    def take(self, limit: int = 100, **want: Any) -> PopResult:
        return self.engine.pop(PopRequest(**{"queue": self.queue, "limit": limit, "ordered": self.ordered, **want}))

    def names(self, limit: int = 100, **want: Any) -> list[str]:
        """The names of the messages that a pop gets."""
        return [each.transaction_id for each in self.pop(limit, **want)]

    def settle(self, *pairs: tuple[Leased, Status], group: str = DEFAULT_GROUP, **fields: Any) -> list[Settled]:
        """One call that settles each message as it says."""
        return self.engine.settle([settlement(each, status, group=group, **fields) for each, status in pairs])

    def complete(self, messages: Sequence[Leased], group: str = DEFAULT_GROUP) -> list[Settled]:
        return self.settle(*((each, OK) for each in messages), group=group)

    def one(self, message: Leased, status: Status = OK, **fields: Any) -> Settled:
        """One settlement in a call of its own."""
        return self.settle((message, status), **fields)[0]

    def later(self, seconds: float) -> None:
        """Let so much time pass."""
        self.engine.clock_offset += seconds

    def expire(self) -> None:
        """Let every lease end."""
        self.later(301)

    def states(self, group: str = DEFAULT_GROUP) -> dict[str, State]:
        """The state of every stored message for a group."""
        found = self.engine.stored(Filter(queue=self.queue, limit=10_000))
        return {each.transaction_id: each.states[group] for each in found}

    def dead(self, **which: Any) -> list[DeadLetter]:
        return list(self.engine.dead_letters(Filter(**{"queue": self.queue, "limit": 1000, **which}))[0])

    def dead_names(self, **which: Any) -> list[str]:
        return sorted(each.transaction_id for each in self.dead(**which))

    def progress(self, partition: str = "Default", group: str = DEFAULT_GROUP) -> ProgressInfo:
        (info,) = self.engine.queues(self.queue)
        (found,) = [each for each in info.partitions if each.name == partition]
        (progress,) = [each for each in found.progress if each.group == group]
        return progress


def settlement(message: Leased, status: Status = OK, **fields: Any) -> Settlement:
    """What a consumer who has the message says of it."""
    made = Settlement(message.transaction_id, message.partition_id, message.lease_id, status)
    return made._replace(**fields)
