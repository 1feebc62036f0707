"""The pump that awaits: one task, one message at a time. `pump.pumps.reactor` is its twin."""

from collections.abc import Awaitable, Callable
from typing import Final

from pump.duration import seconds
from pump.message import Message
from pump.pumps.async_channel import AsyncChannel


class Proactor:
    """Takes messages from a channel, one after another, and carries out the judge's verdict on each."""

    def __init__(
        self, channel: AsyncChannel, dispatch: Callable[[Message], Awaitable[object]], *, empty_delay: float = 0.0
    ) -> None:
        self.channel: Final = channel
        self.judge: Final = channel.judge
        self._dispatch: Final = dispatch
        self._clock: Final = self.judge.clock
        self._receive_timeout: Final = seconds(self.judge.rules.receive_timeout)
        self._grace: Final = seconds(self.judge.rules.grace)
        self._empty_delay: Final = empty_delay

    async def run(self) -> None:
        """Pump until the judge stops it. Nothing else ends it."""
        judge = self.judge
        try:
            while judge.running:
                try:
                    message = self.channel.take()
                    if message is None and await self.channel.fill(self._receive_timeout):
                        continue  # the pump may have been stopped meanwhile
                except Exception as error:
                    await self._clock.wait_async(judge.stopping, judge.disconnected(error))
                    continue
                if message is not None:
                    await self._turn(message)
                elif self._empty_delay:
                    await self._clock.wait_async(judge.stopping, self._empty_delay)
            await self.channel.finish(self._grace)
        finally:
            await self.channel.close()

    async def _turn(self, message: Message) -> None:
        judge = self.judge
        verdict = judge.arrived(message)
        if verdict is None:
            place = judge.begins(message)
            try:
                await self._dispatch(message)
            except BaseException as error:
                verdict = judge.failed(message, error)
            else:
                verdict = judge.handled(message)
            judge.ends(place, message, verdict)
        try:
            await verdict.settle(self.channel, message)
        except Exception as error:
            judge.unsettled(message, verdict, error)
        else:
            judge.settled(message, verdict)
        if verdict.pause:
            await self._clock.wait_async(judge.stopping, verdict.pause)
