"""Storing messages: one statement for all of a call."""

from collections.abc import Sequence
from typing import Final

from pump.queue.ids import mint_many
from pump.queue.postgres.work import NO_KEY, Place, Work
from pump.queue.vocabulary import Push, Pushed

FULL: Final = "queue is full"
TOO_MANY_PARTITIONS: Final = "queue has too many partitions"


async def push(work: Work, items: Sequence[Push], ids: Sequence[str]) -> list[Pushed]:
    """Store each; answers in order. The ids are those of `ids_for`."""
    load = Load(work, items, ids)
    await load.find_places()
    await load.store()
    return load.answers()


def ids_for(items: Sequence[Push]) -> list[str]:
    """An id for each message, then one for each transaction that has none; minted once, whatever is tried again."""
    return mint_many(len(items) + sum(not item.transaction_id for item in items))


class Load:
    """What one call pushes."""

    def __init__(self, work: Work, items: Sequence[Push], ids: Sequence[str]) -> None:
        self._work: Final = work
        self._items: Final = items
        self._message_ids: Final = ids
        minted = iter(ids[len(items) :])
        self._transactions: Final = [item.transaction_id or next(minted) for item in items]
        keys = [(item.queue, item.partition) for item in items]
        self._numbers: Final = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._which: Final = [self._numbers[key] for key in keys]
        self._places: list[Place] = []
        self._refusals: list[str] = []
        self._first: Final[dict[tuple[int, str], int]] = {}
        """Where each message comes first in the call."""
        self._sent: list[int] = []
        self._outcomes: dict[int, tuple[str, str]] = {}

    async def find_places(self) -> None:
        """Where everything goes; must come first."""
        self._places = await self._work.places(list(self._numbers))
        self._refusals = [self._refusal(place) for place in self._places]

    def _refusal(self, place: Place) -> str:
        """Why nothing can be stored there, if so."""
        if place.part_id is None:
            return TOO_MANY_PARTITIONS
        return NO_KEY if place.sealed and self._work.sealing is None else ""

    async def store(self) -> None:
        """Send what is to be stored, each message once."""
        first, refusals = self._first, self._refusals
        for index, (which, transaction) in enumerate(zip(self._which, self._transactions, strict=True)):
            if not refusals[which] and first.setdefault((which, transaction), index) == index:
                self._sent.append(index)
        if not self._sent:
            return
        for ordinal, outcome, message_id in await self._work.rows(PUSH, *self._columns(), self._work.offset):
            if ordinal == 0:
                self._work.woke_somebody = True
            else:
                self._outcomes[self._sent[ordinal - 1]] = (outcome, message_id)
        if len(self._outcomes) < len(self._sent) or any(kind == "scheduled" for kind, _ in self._outcomes.values()):
            self._work.rung.update({self._items[index].queue for index in self._sent})

    def _columns(self) -> tuple[object, ...]:
        """The parameters: of columns that hold nothing, nothing."""
        used = sorted({self._which[index] for index in self._sent}, key=self._part_of)
        numbers = {which: number for number, which in enumerate(used, 1)}
        items = [self._items[index] for index in self._sent]
        return (
            sorted({self._places[which].queue_id for which in used}),
            [self._places[which].part_id for which in used],
            [self._places[which].sealed for which in used],
            [numbers[self._which[index]] for index in self._sent],
            [self._message_ids[index] for index in self._sent],
            [self._transactions[index] for index in self._sent],
            [self._payload(index) for index in self._sent],
            [item.trace_id for item in items] if any(item.trace_id for item in items) else None,
            [item.producer for item in items] if any(item.producer for item in items) else None,
            [float(item.not_before) for item in items] if any(item.not_before for item in items) else None,
            [float(item.delay) for item in items] if any(item.delay for item in items) else None,
        )

    def _part_of(self, which: int) -> int:
        """Partitions are locked in the order of their numbers."""
        return self._places[which].part_id or 0

    def _payload(self, index: int) -> bytes:
        """What is stored of it."""
        place, payload = self._places[self._which[index]], self._items[index].payload
        if not place.sealed or self._work.sealing is None:
            return payload
        return self._work.sealing.seal(payload, place.uid, self._transactions[index])

    def answers(self) -> list[Pushed]:
        """What became of each."""
        return [self._answer(index, item) for index, item in enumerate(self._items)]

    def _answer(self, index: int, item: Push) -> Pushed:
        which, transaction = self._which[index], self._transactions[index]
        refusal = self._refusals[which]
        if refusal:
            return self._refused(index, refusal)
        first = self._first[which, transaction]
        outcome, message_id = self._outcomes.get(first, ("", None))
        if outcome == "full":
            return self._refused(index, FULL)
        return Pushed(
            item.queue,
            item.partition,
            self._places[which].uid,
            message_id or self._message_ids[first],
            transaction,
            outcome == "duplicate" or first != index,
            "",
            outcome == "scheduled" and first == index,
            item.trace_id,
        )

    def _refused(self, index: int, why: str) -> Pushed:
        item, uid = self._items[index], self._places[self._which[index]].uid
        return Pushed(item.queue, item.partition, uid, "", self._transactions[index], False, why, False, item.trace_id)  # noqa: FBT003 - by position, in the order of the fields


PUSH: Final = (
    "select * from message_pump.push(%b::bigint[], %b::bigint[], %b::boolean[], %b::integer[], %b::text[]::uuid[],"
    " %b::text[], %b::bytea[], %b::text[]::uuid[], %b::text[], %b::float8[], %b::float8[], %s::float8)"
)
