"""Storing messages: one statement for all items of a call."""

from collections.abc import Sequence
from typing import Final

from pump.queue.postgres.work import PartitionKey, PostgresWork
from pump.queue.results import FULL, TOO_MANY_PARTITIONS, push_refused
from pump.queue.vocabulary import Push, Pushed
from pump.queue.work import NO_KEY


def push_messages(work: PostgresWork, items: Sequence[Push], ids: Sequence[str]) -> list[Pushed]:
    """Store each message; results in order. The ids come from `ids_for`."""
    batch = PushBatch(work, items, ids)
    batch.store()
    return [batch.result(index, item) for index, item in enumerate(items)]


class PushBatch:
    """The items that one call pushes. `which` is the number of a partition within the call."""

    def __init__(self, work: PostgresWork, items: Sequence[Push], ids: Sequence[str]) -> None:
        self._work: Final = work
        self._items: Final = items
        self._message_ids: Final = ids
        minted = iter(ids[len(items) :])
        self._transactions: Final = [item.transaction_id or next(minted) for item in items]
        keys = [(item.queue, item.partition) for item in items]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._which: Final = [numbers[key] for key in keys]
        self._partitions: Final = work.partitions(list(numbers))
        self._refusals: Final = [self._refusal(partition) for partition in self._partitions]
        self._first: Final[dict[tuple[int, str], int]] = {}
        """The index of each message's first occurrence in the call."""
        self._sent: list[int] = []
        self._outcomes: dict[int, tuple[str, str]] = {}

    def _refusal(self, partition: PartitionKey) -> str:
        """Why nothing can be stored in a partition; "" if something can."""
        if partition.part_id is None:
            return TOO_MANY_PARTITIONS
        return NO_KEY if partition.sealed and self._work.sealing is None else ""

    def store(self) -> None:
        """Store the items that are not refused, each message once."""
        first, refusals = self._first, self._refusals
        for index, (which, transaction) in enumerate(zip(self._which, self._transactions, strict=True)):
            if not refusals[which] and first.setdefault((which, transaction), index) == index:
                self._sent.append(index)
        if not self._sent:
            return
        for ordinal, outcome, message_id in self._work.rows(PUSH, *self._columns(), self._work.offset):
            if ordinal == 0:
                self._work.woke_somebody = True
            else:
                self._outcomes[self._sent[ordinal - 1]] = (outcome, message_id)
        if len(self._outcomes) < len(self._sent) or any(kind == "scheduled" for kind, _ in self._outcomes.values()):
            self._work.changed.update({self._items[index].queue for index in self._sent})

    def _columns(self) -> tuple[object, ...]:
        """The parameters of the statement; a column without values is None."""
        # Partitions are locked in the order of their ids.
        used = sorted({self._which[index] for index in self._sent}, key=lambda which: self._partitions[which])
        numbers = {which: number for number, which in enumerate(used, 1)}
        items = [self._items[index] for index in self._sent]
        partitions = [self._partitions[which] for which in used]
        return (
            sorted({partition.queue_id for partition in partitions}),
            [partition.part_id for partition in partitions],
            [partition.sealed for partition in partitions],
            [numbers[self._which[index]] for index in self._sent],
            [self._message_ids[index] for index in self._sent],
            [self._transactions[index] for index in self._sent],
            [self._payload(index) for index in self._sent],
            [item.trace_id for item in items] if any(item.trace_id for item in items) else None,
            [item.producer for item in items] if any(item.producer for item in items) else None,
            [float(item.not_before) for item in items] if any(item.not_before for item in items) else None,
            [float(item.delay) for item in items] if any(item.delay for item in items) else None,
        )

    def _payload(self, index: int) -> bytes:
        """The payload as it is stored."""
        partition, payload = self._partitions[self._which[index]], self._items[index].payload
        if not partition.sealed or self._work.sealing is None:
            return payload
        return self._work.sealing.seal(payload, partition.uid, self._transactions[index])

    def result(self, index: int, item: Push) -> Pushed:
        """The result of one item."""
        which, transaction = self._which[index], self._transactions[index]
        uid = self._partitions[which].uid
        if self._refusals[which]:
            return push_refused(item, transaction, uid, self._refusals[which])
        first = self._first[which, transaction]
        outcome, message_id = self._outcomes.get(first, ("", None))
        if outcome == "full":
            return push_refused(item, transaction, uid, FULL)
        duplicate = outcome == "duplicate" or first != index
        scheduled = outcome == "scheduled" and first == index
        message_id = message_id or self._message_ids[first]
        return Pushed(item.queue, item.partition, uid, message_id, transaction, duplicate, "", scheduled, item.trace_id)


PUSH: Final = (
    "select * from message_pump.push(%b::bigint[], %b::bigint[], %b::boolean[], %b::integer[], %b::text[]::uuid[],"
    " %b::text[], %b::bytea[], %b::text[]::uuid[], %b::text[], %b::float8[], %b::float8[], %s::float8)"
)
