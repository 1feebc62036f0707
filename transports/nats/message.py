"""What a NATS handler that settles its messages itself receives: one JetStream message, with its request decoded."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import nats.errors
from nats.aio.msg import Msg

from pump.colour import must_not_block
from pump.duration import Duration, seconds
from pump.errors import PumpError, TransportError
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.message import Message
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.transports.nats.consumer import Receipt, position_of
from pump.transports.nats.headers import found
from pump.verdict import ACKNOWLEDGE, Requeue, Verdict

T = TypeVar("T")

SETTLE_SECONDS: Final = 5.0
"""For the connection's loop to carry out what another thread asked for."""


class Headers(Mapping[str, str]):
    """The headers as they came, `ce-…` and `Nats-…` included; they cannot be changed."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[str, Any] | None) -> None:
        self._raw: Final[Mapping[str, Any]] = raw or {}

    def __getitem__(self, name: str) -> str:
        return self.getall(name)[0]

    def __iter__(self) -> Iterator[str]:
        return (str(name.value) if hasattr(name, "value") else name for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def getall(self, name: str) -> tuple[str, ...]:
        """Every value of a header that may stand several times; KeyError where it does not stand at all."""
        value = self._raw[name]
        values = tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
        if not values:
            raise KeyError(name)
        return values

    def __repr__(self) -> str:
        return f"Headers({dict(self)!r})"


@dataclass(frozen=True, slots=True)
class NatsMetadata:
    """What JetStream says of one delivery."""

    stream: str
    consumer: str
    stream_sequence: int
    consumer_sequence: int
    timestamp: datetime
    """When it was stored, with its time zone."""
    pending: int
    """How many messages the consumer had not delivered yet, when it delivered this one."""
    redelivery_count: int
    """How often it was delivered before."""
    domain: str | None = None

    @property
    def num_delivered(self) -> int:
        """How often it was delivered, this time included."""
        return self.redelivery_count + 1


class _JetStream:
    """What both colours may read, and what they decide alike."""

    __slots__ = ()

    may_nack: ClassVar[bool] = False
    system: ClassVar[str] = "nats"

    if TYPE_CHECKING:  # a delivery has these

        @property
        def message(self) -> Message: ...
        @property
        def payload(self) -> Any: ...  # noqa: ANN401

    @property
    def raw(self) -> Msg:
        """The message as nats-py has it."""
        return self._receipt.raw

    @property
    def headers(self) -> Headers:
        """The headers as they came; empty where there are none."""
        return Headers(self.raw.headers)

    @property
    def subject(self) -> str:
        """Where it was posted to."""
        return self.raw.subject

    @property
    def data(self) -> bytes:
        """The body, byte for byte."""
        return self.raw.data

    @property
    def metadata(self) -> NatsMetadata:
        """What JetStream says of this delivery."""
        known = self.raw.metadata
        return NatsMetadata(
            known.stream,
            known.consumer,
            known.sequence.stream,
            known.sequence.consumer,
            known.timestamp,
            known.num_pending,
            known.num_delivered - 1,
            known.domain or None,
        )

    @property
    def trace_id(self) -> str | None:
        """Which trace it belongs to: as its headers say, and else as its payload says."""
        parent = found(self.headers, "traceparent")
        by_parent = parent.split("-")[1] if parent is not None and parent.count("-") >= 3 else None  # noqa: PLR2004 - as W3C has it
        return self._told("trace_id") or by_parent or self._within("trace_id")

    @property
    def tenant_id(self) -> str | None:
        """Whose it is: as its headers say, and else as its payload says."""
        return self._told("tenant_id") or self._within("tenant_id")

    @property
    def version(self) -> str | None:
        """The version of its form: as its headers say, and else as its payload says."""
        return self._told("version") or self.message.header.version or self._within("version")

    def _told(self, name: str) -> str | None:
        return found(self.headers, name)

    def _within(self, name: str) -> str | None:
        payload = self.payload
        value = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
        return None if value is None else str(value)

    @property
    def _receipt(self) -> Receipt:
        receipt = self.message.receipt
        if not isinstance(receipt, Receipt):
            raise PumpError(f"{type(self).__name__} is for messages from NATS, and {self.message!r} is not")
        return receipt

    def _must_be_jetstream(self) -> None:
        try:
            position_of(self._receipt.raw.reply)
        except (ValueError, IndexError):
            raise nats.errors.NotJSMessageError from None

    # -- settling: all of these run on the connection's loop, and nats-py's errors come out as they are

    async def _send(self, word: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        receipt = self._ready()
        await word(receipt.raw)
        receipt.settled = True

    async def _extend(self) -> None:
        receipt = self._ready()
        try:
            await receipt.consumer.extend(self.message)
        except TransportError as error:
            raise (error.__cause__ or error) from None

    def _ready(self) -> Receipt:
        """Raise where no word may leave: there is no connection, or it would hit another delivery."""
        receipt = self._receipt
        receipt.consumer.must_be_connected()
        receipt.consumer.must_be_ours(self.message)
        return receipt

    def _fits(self, verdict: Verdict) -> bool:
        """Whether the server may have the message back: it neither is exhausted nor would be given up by the server."""
        return isinstance(verdict, Requeue) and self._receipt.consumer.fits(self.message, verdict.attempts)


class NatsMessage(_JetStream, Delivery[T]):
    """One JetStream message, settled by its handler. The first of ack, nak and term wins; later ones do nothing.

    They go straight to the server, from any thread, and nats-py's own errors come out; one that failed may be tried
    again. What would hit another delivery, since the lease has lapsed, is not sent: that is LeaseLost.
    """

    __slots__ = ("_naked",)

    twin: ClassVar[str] = "AsyncNatsMessage"

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel)
        self._must_be_jetstream()
        self._naked: Verdict | None = None

    def ack(self) -> None:
        """The message is done."""
        self._settle_natively(lambda raw: raw.ack())

    def nak(self, delay: Duration | None = None) -> None:
        """Have it again, at once or after the delay, which is the server's. On the last attempt it is a dead letter."""
        wait = _delay(delay)
        if not self._claim():
            return
        try:
            verdict = self._naked = self._naked or self._judge.asked_again(self._message, wait)
            if self._fits(verdict):
                self._run(self._send(lambda raw: raw.nak() if wait is None else raw.nak(delay=wait)))
                self._channel.leave_unsettled(self._message)
            else:
                verdict.settle(self._channel, self._message)
        except BaseException:
            self._message.settled = False
            raise
        self._judge.settled(self._message, verdict)

    def term(self) -> None:
        """It is never delivered again, and no dead letter is made of it."""
        self._settle_natively(lambda raw: raw.term())

    def in_progress(self) -> None:
        """The handler is still at it: the message is ours for another lease."""
        must_not_block("NatsMessage.in_progress", "AsyncNatsMessage.in_progress")
        self._run(self._extend())

    def _settle_natively(self, word: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        if not self._claim():
            return
        try:
            self._run(self._send(word))
        except BaseException:
            self._message.settled = False
            raise
        self._channel.leave_unsettled(self._message)
        self._judge.settled(self._message, ACKNOWLEDGE)

    def _claim(self) -> bool:
        must_not_block("settling a NatsMessage", "AsyncNatsMessage's methods")
        return self._message.claim()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        loop = self._receipt.consumer.loop
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise nats.errors.ConnectionClosedError from None
        try:
            future.result(SETTLE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise nats.errors.TimeoutError from None


class AsyncNatsMessage(_JetStream, AsyncDelivery[T]):
    """The same for async handlers, awaited on any loop."""

    __slots__ = ("_naked",)

    twin: ClassVar[str] = "NatsMessage"

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel)
        self._must_be_jetstream()
        self._naked: Verdict | None = None

    async def ack(self) -> None:
        """The message is done."""
        await self._settle_natively(lambda raw: raw.ack())

    async def nak(self, delay: Duration | None = None) -> None:
        """Have it again, at once or after the delay, which is the server's. On the last attempt it is a dead letter."""
        wait = _delay(delay)
        if self._message.claim():
            await self._on_own_loop(self._carry_out_nak(wait))

    async def term(self) -> None:
        """It is never delivered again, and no dead letter is made of it."""
        await self._settle_natively(lambda raw: raw.term())

    async def in_progress(self) -> None:
        """The handler is still at it: the message is ours for another lease."""
        await self._on_own_loop(self._extend())

    async def _settle_natively(self, word: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        if self._message.claim():
            await self._on_own_loop(self._carry_out_word(word))

    async def _carry_out_word(self, word: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._send(word)
        except BaseException:
            self._message.settled = False
            raise
        await self._channel.leave_unsettled(self._message)
        self._judge.settled(self._message, ACKNOWLEDGE)

    async def _carry_out_nak(self, wait: float | None) -> None:
        try:
            verdict = self._naked = self._naked or self._judge.asked_again(self._message, wait)
            if self._fits(verdict):
                await self._send(lambda raw: raw.nak() if wait is None else raw.nak(delay=wait))
                await self._channel.leave_unsettled(self._message)
            else:
                await verdict.settle(self._channel, self._message)
        except BaseException:
            self._message.settled = False
            raise
        self._judge.settled(self._message, verdict)


def _delay(delay: Duration | None) -> float | None:
    wait = None if delay is None else seconds(delay)
    if wait is not None and wait < 0:
        raise ValueError(f"a delay cannot be negative: {wait} s")
    return wait
