"""The Delivery: what a handler receives if it settles its message itself."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from pump.colour import Colour, must_not_block
from pump.duration import Duration
from pump.errors import DeferMessageAction, DontAckAction, RejectMessageAction
from pump.message import Message
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.settling import ACKNOWLEDGE, Verdict
from pump.verdict import Judge

T = TypeVar("T")
Done = TypeVar("Done")


class _Received(Generic[T, Done]):
    """What a handler can read of its message and decide. Done is the result of settling: None, or an awaitable."""

    __slots__ = ("_judge", "_message", "_payload")

    colour: ClassVar[Colour]
    twin: ClassVar[str]
    """The name of the class for handlers of the other colour."""
    may_nack: ClassVar[bool] = True
    """Whether a handler may nack: a redelivery after a nack and one after a crash then look the same."""
    system: ClassVar[str] = ""
    """The broker whose messages it is for; "" for any broker."""

    def __init__(self, message: Message, payload: T, judge: Judge) -> None:
        self._message: Final = message
        self._payload: Final = payload
        self._judge = judge

    @property
    def payload(self) -> T:
        """The request, as mapped before the handler was called."""
        return self._payload

    @property
    def message(self) -> Message:
        """The message as delivered."""
        return self._message

    @property
    def data(self) -> bytes:
        """The body as it was sent."""
        return self._message.body

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's own headers; they cannot be changed."""
        return self._message.header.headers

    @property
    def subject(self) -> str:
        """Where the message was posted to."""
        return self._message.header.topic

    @property
    def settled(self) -> bool:
        """Whether the message is settled, or is being settled."""
        return self._message.settled

    def ack(self) -> Done:
        """The message is done."""
        return self._settle(lambda: ACKNOWLEDGE)

    def nack(self) -> Done:
        """Leave the message with the broker, as DontAckAction does: no attempt is counted, and it comes again."""
        return self._settle(lambda: self._judge.decided(self._message, DontAckAction()))

    def defer(self, delay: Duration | None = None) -> Done:
        """Deliver the message again after the delay, as DeferMessageAction does; the last attempt is a dead letter."""
        action = DeferMessageAction(delay)
        return self._settle(lambda: self._judge.decided(self._message, action))

    def reject(self, reason: str = "") -> Done:
        """Make the message a dead letter, as RejectMessageAction does."""
        return self._settle(lambda: self._judge.decided(self._message, RejectMessageAction(reason)))

    @abstractmethod
    def _settle(self, decide: Callable[[], Verdict]) -> Done: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._message!r}>"


class Delivery(_Received[T, None]):
    """One delivery, settled by its handler. The first settlement wins, later ones do nothing; any thread may settle.

    A settlement that fails raises, and may be tried again. If the handler raises before it has settled, the pump
    settles as for any handler; if it returns without settling, the message stays unsettled until somebody settles it
    or its lease ends.
    """

    __slots__ = ("_channel",)

    colour: ClassVar[Colour] = "blocking"
    twin: ClassVar[str] = "AsyncDelivery"

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel.judge)
        if not isinstance(channel, Channel):
            raise TypeError(f"{type(self).__name__} belongs to a blocking handler; an async one takes AsyncDelivery")
        self._channel: Final = channel

    def extend(self) -> None:
        """Keep the message for another lease; LeaseLost if it no longer belongs to this consumer."""
        must_not_block("Delivery.extend", "AsyncDelivery.extend")
        self._channel.extend(self._message)

    def _settle(self, decide: Callable[[], Verdict]) -> None:
        must_not_block("settling a Delivery", "AsyncDelivery's methods")
        message = self._message
        if not message.claim():
            return
        try:
            verdict = self._judge.told(message, decide())
            verdict.settle(self._channel, message)
        except BaseException:
            message.settled = False
            raise
        self._judge.settled(message, verdict)
        if message.release is not None:
            message.release()


class AsyncDelivery(_Received[T, Coroutine[Any, Any, None]]):
    """One delivery, settled by its async handler: as Delivery, but every call is awaited, on any loop."""

    __slots__ = ("_channel", "_loop")

    colour: ClassVar[Colour] = "awaiting"
    twin: ClassVar[str] = "Delivery"

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel.judge)
        if not isinstance(channel, AsyncChannel):
            raise TypeError(f"{type(self).__name__} belongs to an async handler; a blocking one takes Delivery")
        self._channel: Final = channel
        self._loop: Final = asyncio.get_running_loop()

    async def extend(self) -> None:
        """Keep the message for another lease; LeaseLost if it no longer belongs to this consumer."""
        await self._on_own_loop(self._channel.extend(self._message))

    async def _settle(self, decide: Callable[[], Verdict]) -> None:
        if self._message.claim():
            await self._on_own_loop(self._carry_out(decide))

    async def _carry_out(self, decide: Callable[[], Verdict]) -> None:
        message = self._message
        try:
            verdict = self._judge.told(message, decide())
            await verdict.settle(self._channel, message)
        except BaseException:
            message.settled = False
            raise
        self._judge.settled(message, verdict)
        if message.release is not None:
            await message.release()

    async def _on_own_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Await the work on the loop that received the message: the channel belongs to that loop."""
        if asyncio.get_running_loop() is self._loop:
            await work
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
