"""What a NATS handler that settles its messages itself receives: one JetStream message, with its request decoded."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import nats.errors
from nats.aio.msg import Msg

from pump.colour import must_not_block
from pump.duration import Duration, delay_seconds
from pump.errors import PumpError, TransportError
from pump.handling.delivery import AsyncDelivery, Delivery
from pump.message import Message
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.settling import Acknowledge, Requeue, Settles, Verdict
from pump.transports.nats.consumer import NatsReceipt, parse_reply
from pump.transports.nats.headers import RepeatedHeader, find
from pump.verdict import Judge, may_requeue

T = TypeVar("T")
Done = TypeVar("Done")
Acknowledgement: TypeAlias = Callable[[Msg], Coroutine[Any, Any, None]]
"""One of nats-py's own: ack, nak or term."""

SETTLE_SECONDS: Final = 5.0
"""How long a thread waits until the connection's loop has sent its acknowledgement."""


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
        """Every value of a header that may be repeated; KeyError where there is none."""
        value = self._raw[name]
        if isinstance(value, RepeatedHeader):
            return value.values
        values = tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
        if not values:
            raise KeyError(name)
        return values

    def __repr__(self) -> str:
        return f"Headers({dict(self)!r})"


@dataclass(frozen=True, slots=True)
class NatsMetadata:
    """What JetStream says about one delivery."""

    stream: str
    consumer: str
    stream_sequence: int
    consumer_sequence: int
    timestamp: datetime
    """When it was stored, with its time zone."""
    pending: int
    """How many messages the consumer still had to deliver when it delivered this one."""
    redelivery_count: int
    """How often it was delivered before."""
    domain: str | None = None

    @property
    def num_delivered(self) -> int:
        """How often it was delivered, this time included."""
        return self.redelivery_count + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _NativeAcknowledge(Acknowledge):
    """Sent by nats-py: an ack, or a term."""

    send: Callable[[], Any]

    def settle(self, channel: Settles[Any], message: Message) -> Any:  # noqa: ANN401 - of either colour, as `send` is
        return self.send()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NativeRequeue(Requeue):
    """Sent by nats-py: a nak."""

    send: Callable[[], Any]

    def settle(self, channel: Settles[Any], message: Message) -> Any:  # noqa: ANN401 - of either colour, as `send` is
        return self.send()


class _JetStreamMessage(Generic[T, Done]):
    """What both colours show and decide alike. Done is what settling returns: None, or what has to be awaited."""

    __slots__ = ()

    may_nack: ClassVar[bool] = False
    system: ClassVar[str] = "nats"

    if TYPE_CHECKING:  # a delivery has these
        _judge: Judge

        @property
        def message(self) -> Message: ...
        @property
        def payload(self) -> Any: ...  # noqa: ANN401
        def _settle(self, decide: Callable[[], Verdict]) -> Done: ...
        def _release_after(self, send: Acknowledgement) -> Done: ...

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel)  # type: ignore[call-arg]  # a delivery takes them
        try:
            parse_reply(self._receipt.raw.reply)
        except (ValueError, IndexError):
            raise nats.errors.NotJSMessageError from None

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
        """The subject it was posted to."""
        return self.raw.subject

    @property
    def data(self) -> bytes:
        """The body, byte for byte."""
        return self.raw.data

    @property
    def metadata(self) -> NatsMetadata:
        """What JetStream says about this delivery."""
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
        """The trace it belongs to: from its headers, else from its payload."""
        parent = find(self.headers, "traceparent")
        by_parent = parent.split("-")[1] if parent is not None and parent.count("-") >= 3 else None  # noqa: PLR2004 - W3C's format
        return find(self.headers, "trace_id") or by_parent or self._in_payload("trace_id")

    @property
    def tenant_id(self) -> str | None:
        """Its tenant: from its headers, else from its payload."""
        return find(self.headers, "tenant_id") or self._in_payload("tenant_id")

    @property
    def version(self) -> str | None:
        """The version of its schema: from its headers, else from its payload."""
        return find(self.headers, "version") or self.message.header.version or self._in_payload("version")

    def _in_payload(self, name: str) -> str | None:
        payload = self.payload
        value = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
        return None if value is None else str(value)

    @property
    def _receipt(self) -> NatsReceipt:
        receipt = self.message.receipt
        if not isinstance(receipt, NatsReceipt):
            raise PumpError(f"{type(self).__name__} is for messages from NATS, and {self.message!r} is not")
        return receipt

    def ack(self) -> Done:
        """The message is done."""
        return self._settle(lambda: _NativeAcknowledge(send=partial(self._release_after, Msg.ack)))

    def nak(self, delay: Duration | None = None) -> Done:
        """Have it again, at once or after the server's delay. On the last attempt it becomes a dead letter."""
        wait = None if delay is None else delay_seconds(delay)
        return self._settle(lambda: self._nak(wait))

    def term(self) -> Done:
        """It is never delivered again, and does not become a dead letter."""
        return self._settle(lambda: _NativeAcknowledge(send=partial(self._release_after, Msg.term)))

    def _nak(self, delay: float | None) -> Verdict:
        """By nats-py, unless the attempts are used up, or the server would give the message up before they are."""
        receipt, message = self._receipt, self.message
        consumer = receipt.consumer
        verdict = receipt.nak_verdict = receipt.nak_verdict or self._judge.asked_again(message, delay)
        if not isinstance(verdict, Requeue) or not may_requeue(
            message, consumer.broker_limit, consumer.max_attempts, verdict.attempts
        ):
            return verdict
        send = partial(self._release_after, lambda raw: raw.nak() if delay is None else raw.nak(delay=delay))
        return _NativeRequeue(verdict.delay, verdict.attempts, send=send)

    # -- on the connection's loop; nats-py's errors are raised unchanged

    async def _send(self, acknowledgement: Acknowledgement) -> None:
        receipt = self._sendable()
        await acknowledgement(receipt.raw)
        receipt.settled = True

    async def _extend(self) -> None:
        receipt = self._sendable()
        try:
            await receipt.consumer.extend(self.message)
        except TransportError as error:
            raise (error.__cause__ or error) from None

    def _sendable(self) -> NatsReceipt:
        receipt = self._receipt
        receipt.consumer.check_connected()
        receipt.consumer.check_ours(self.message)
        return receipt


class NatsMessage(_JetStreamMessage[T, None], Delivery[T]):
    """One JetStream message, settled by its handler. The first of ack, nak and term wins; later ones do nothing.

    They go straight to the server, from any thread, and raise nats-py's own errors; one that failed may be tried
    again. After the lease has lapsed nothing is sent, since it would hit another delivery: that raises LeaseLost.
    """

    __slots__ = ()

    twin: ClassVar[str] = "AsyncNatsMessage"

    def in_progress(self) -> None:
        """The handler still works on it: renew its lease."""
        must_not_block("NatsMessage.in_progress", "AsyncNatsMessage.in_progress")
        self._run(self._extend())

    def _settle(self, decide: Callable[[], Verdict]) -> None:
        must_not_block("settling a NatsMessage", "AsyncNatsMessage's methods")
        super()._settle(decide)

    def _release_after(self, send: Acknowledgement) -> None:
        self._run(self._send(send))
        self._channel.leave_unsettled(self._message)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._receipt.consumer.loop)
        except RuntimeError:
            work.close()
            raise nats.errors.ConnectionClosedError from None
        try:
            future.result(SETTLE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise nats.errors.TimeoutError from None


class AsyncNatsMessage(_JetStreamMessage[T, Coroutine[Any, Any, None]], AsyncDelivery[T]):
    """The same for async handlers, awaited on any loop."""

    __slots__ = ()

    twin: ClassVar[str] = "NatsMessage"

    async def in_progress(self) -> None:
        """The handler still works on it: renew its lease."""
        await self._on_own_loop(self._extend())

    async def _release_after(self, send: Acknowledgement) -> None:
        await self._send(send)
        await self._channel.leave_unsettled(self._message)
