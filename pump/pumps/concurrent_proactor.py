"""The pump that awaits several messages at a time, in order within a key: one task receives, the others handle.

Each task runs the Proactor's turn. Which message may begin is decided by the Intake alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pump.message import Message
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.own_task import OwnTask
from pump.pumps.proactor import Proactor
from pump.telemetry import log


class ConcurrentProactor(Proactor):
    """A Proactor with up to `in_flight` messages in hand, each in a task of its own; no task can end the pump."""

    def __init__(
        self, channel: AsyncChannel, dispatch: Callable[[Message], Awaitable[object]], *, empty_delay: float = 0.0
    ) -> None:
        super().__init__(channel, dispatch, empty_delay=empty_delay)
        self._in_flight: Final = self.judge.rules.in_flight
        self._tasks: Final[dict[asyncio.Task[None], Message]] = {}
        self._begins = False
        """Whether tasks may be begun."""

    async def run(self) -> None:
        """Pump until the judge stops it, then wait until the messages in hand are done."""
        judge = self.judge
        self._begins = True
        try:
            while judge.running:
                self._begin()
                try:
                    found = await self.channel.fill(self._receive_timeout)
                except Exception as error:
                    await self._clock.wait_async(judge.stopping, judge.disconnected(error))
                    continue
                if not found and self._empty_delay:
                    await self._clock.wait_async(judge.stopping, self._empty_delay)
            while self._tasks:
                await asyncio.wait(self._tasks)
            await self.channel.finish(self._grace)
        finally:
            await self._end()

    async def _end(self) -> None:
        """End every task, then close the channel: if the pump dies, each task hands its message back first."""
        self._begins = False
        self.cancel()
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            await self.channel.close()

    def cancel(self) -> None:
        """End the handlers that are running; their messages are handed back."""
        for task, message in self._tasks.items():
            message.ended = True
            task.cancel()

    def _begin(self) -> None:
        while self._begins and len(self._tasks) < self._in_flight and self.judge.running:
            message = self.channel.take()
            if message is None:
                return
            task = OwnTask(self._begun(message), name=f"pump-{message.id}")
            self._tasks[task] = message
            task.add_done_callback(self._ended)

    async def _begun(self, message: Message) -> None:
        """Handle a message, unless it went back after it was taken and before its task began."""
        if self.channel.may_begin(message):
            await self._turn(message)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        message = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None or task.cancelled():
            log.error("the task of message %s ended unexpectedly; the message comes again", message.id, exc_info=error)
            self.channel.abandon(message)
        if self.judge.running:
            self._begin()
        else:  # the receive that is under way is the last one
            self.channel.interrupt()
