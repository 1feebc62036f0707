"""Merges small calls of many tasks: the calls that arrive while one batch runs form the next batch."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from pump.queue.batching.waiting_call import LARGE, WaitingCall, next_batch, share_answers, share_error

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class TaskBatcher(Generic[Item, Answer]):
    """Runs one batch at a time, made of the calls that arrived since the last batch began. For one loop."""

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        run_alone: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        weigh: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._run: Final = run
        self._run_alone: Final = run_alone
        self._weigh: Final = weigh
        self._waiting: Final[deque[WaitingCall[asyncio.Future[Sequence[Answer]]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def do(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Carry out these items in a batch; returns their results in order."""
        if not items:
            return ()
        if len(items) >= LARGE:
            return await self._run_alone(items)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Answer]] = loop.create_future()
        self._waiting.append(WaitingCall(items, sum(map(self._weigh, items)), future))
        if self._task is None:
            self._task = loop.create_task(self._run_all(), name="queue-batcher")
        return await future

    async def finish(self) -> None:
        """Wait until everything that has arrived is done."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _run_all(self) -> None:
        try:
            while batch := next_batch(self._waiting):
                await self._carry_out(batch)
        finally:
            self._task = None
            for call in self._waiting:  # only if the loop itself ends
                call.future.cancel()

    async def _carry_out(self, batch: Sequence[WaitingCall[asyncio.Future[Sequence[Answer]]]]) -> None:
        try:
            share_answers(batch, await self._run([item for call in batch for item in call.items]))
        except Exception as error:
            for call in share_error(batch, error):
                await self._carry_out([call])
