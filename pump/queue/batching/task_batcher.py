"""Many small calls of one kind as few large ones: whoever comes while one is under way goes along with the next."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from pump.errors import TransportError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LARGE: Final = 100
"""So many items go by themselves: they gain nothing from company, and would hold up the small ones."""
MOST: Final = 1000
HEAVIEST: Final = 4_000_000


class _Parcel(Generic[Item, Answer]):
    """What one caller wants to have done."""

    def __init__(self, items: Sequence[Item], weight: int) -> None:
        self.items: Final = items
        self.weight: Final = weight
        self.answer: Final[asyncio.Future[Sequence[Answer]]] = asyncio.get_running_loop().create_future()

    def done(self, answers: Sequence[Answer]) -> None:
        if not self.answer.done():  # its caller may have been cancelled
            self.answer.set_result(answers)

    def failed(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Merger(Generic[Item, Answer]):
    """One call at a time, with all that has gathered since the last one. For one loop.

    Everybody gets the answers to his own items, in their order. What a merged call raises is nobody's in particular:
    where it says that what was asked is wrong, everybody's items are tried by themselves.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        run_alone: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        weigh: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._run: Final = run
        self._run_alone: Final = run_alone
        self._weigh: Final = weigh
        self._waiting: Final[deque[_Parcel[Item, Answer]]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def do(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Have these done, with others or alone."""
        if not items:
            return ()
        if len(items) >= LARGE:
            return await self._run_alone(items)
        parcel = _Parcel[Item, Answer](items, sum(map(self._weigh, items)))
        self._waiting.append(parcel)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._work_off(), name="queue-desk")
        return await parcel.answer

    async def finish(self) -> None:
        """Wait until all that has gathered is done."""
        while self._work is not None:
            await asyncio.shield(self._work)

    async def _work_off(self) -> None:
        try:
            while batch := self._next():
                await self._carry_out(batch)
        finally:
            self._work = None
            for parcel in self._waiting:  # only where the loop itself ends
                parcel.answer.cancel()

    def _next(self) -> Sequence[_Parcel[Item, Answer]]:
        batch: list[_Parcel[Item, Answer]] = []
        number = weight = 0
        while self._waiting:
            parcel = self._waiting[0]
            number += len(parcel.items)
            weight += parcel.weight
            if batch and (number > MOST or weight > HEAVIEST):
                break
            self._waiting.popleft()
            if not parcel.answer.cancelled():
                batch.append(parcel)
        return batch

    async def _carry_out(self, batch: Sequence[_Parcel[Item, Answer]]) -> None:
        items = [item for parcel in batch for item in parcel.items]
        try:
            answers = await self._run(items)
        except Exception as error:
            await self._recover(batch, error)
            return
        start = 0
        for parcel in batch:
            end = start + len(parcel.items)
            parcel.done(answers[start:end])
            start = end

    async def _recover(self, batch: Sequence[_Parcel[Item, Answer]], error: Exception) -> None:
        if len(batch) == 1 or isinstance(error, TransportError):  # an outage is everybody's
            for parcel in batch:
                parcel.failed(error)
            return
        for parcel in batch:
            await self._carry_out([parcel])
