"""The parameter of a NATS handler that settles its messages itself: one JetStream message, with its request decoded."""

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
"""A method of nats-py's message: ack, nak or term."""

SETTLE_SECONDS: Final = 5.0
"""How long a thread waits for the connection's loop to send its acknowledgement."""


class Headers(Mapping[str, str]):
    """The headers as they came, including `ce-…` and `Nats-…`. They cannot be changed."""

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
        """All values of a header, which may be repeated; KeyError if there is none."""
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
    """JetStream's data about one delivery."""

    stream: str
    consumer: str
    stream_sequence: int
    consumer_sequence: int
    timestamp: datetime
    """When the message was stored, with a time zone."""
    pending: int
    """How many messages the consumer still had to deliver when it delivered this one."""
    redelivery_count: int
    """How often the message was delivered before."""
    domain: str | None = None

    @property
    def num_delivered(self) -> int:
        """How often the message was delivered, including this time."""
        return self.redelivery_count + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _NativeAcknowledge(Acknowledge):
    """An ack or a term that nats-py sends."""

    send: Callable[[], Any]

    def settle(self, channel: Settles[Any], message: Message) -> Any:  # noqa: ANN401 - of either colour, as `send` is
        return self.send()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NativeRequeue(Requeue):
    """A nak that nats-py sends."""

    send: Callable[[], Any]

    def settle(self, channel: Settles[Any], message: Message) -> Any:  # noqa: ANN401 - of either colour, as `send` is
        return self.send()


class _JetStreamMessage(Generic[T, Done]):
    """The common part of both colours. `Done` is what settling returns: None, or an awaitable."""

    __slots__ = ()

    may_nack: ClassVar[bool] = False
    system: ClassVar[str] = "nats"

    if TYPE_CHECKING:  # these are defined in Delivery and AsyncDelivery
        _judge: Judge

        @property
        def message(self) -> Message: ...
        @property
        def payload(self) -> Any: ...  # noqa: ANN401
        def _settle(self, decide: Callable[[], Verdict]) -> Done: ...
        def _release_after(self, send: Acknowledgement) -> Done: ...

    def __init__(self, message: Message, payload: T, channel: Channel | AsyncChannel) -> None:
        super().__init__(message, payload, channel)  # type: ignore[call-arg]  # the parameters of a delivery
        try:
            parse_reply(self._receipt.raw.reply)
        except (ValueError, IndexError):
            raise nats.errors.NotJSMessageError from None

    @property
    def raw(self) -> Msg:
        """nats-py's message."""
        return self._receipt.raw

    @property
    def headers(self) -> Headers:
        """The headers as they came; empty if there are none."""
        return Headers(self.raw.headers)

    @property
    def subject(self) -> str:
        """The subject that the message was posted to."""
        return self.raw.subject

    @property
    def data(self) -> bytes:
        """The body, unchanged."""
        return self.raw.data

    @property
    def metadata(self) -> NatsMetadata:
        """JetStream's data about this delivery."""
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
        """The id of the message's trace: from the headers, else from the payload."""
        parent = find(self.headers, "traceparent")
        by_parent = parent.split("-")[1] if parent is not None and parent.count("-") >= 3 else None  # noqa: PLR2004 - W3C's format
        return find(self.headers, "trace_id") or by_parent or self._in_payload("trace_id")

    @property
    def tenant_id(self) -> str | None:
        """The message's tenant: from the headers, else from the payload."""
        return find(self.headers, "tenant_id") or self._in_payload("tenant_id")

    @property
    def version(self) -> str | None:
        """The version of the message's schema: from the headers, else from the payload."""
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
        """Have the message delivered again, at once or after a delay. On the last attempt it becomes a dead letter."""
        wait = None if delay is None else delay_seconds(delay)
        return self._settle(lambda: self._nak(wait))

    def term(self) -> Done:
        """The message is never delivered again, and does not become a dead letter."""
        return self._settle(lambda: _NativeAcknowledge(send=partial(self._release_after, Msg.term)))

    def _nak(self, delay: float | None) -> Verdict:
        """The verdict for a nak: nats-py sends it, unless the attempts, or the server's deliveries, are used up."""
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

    They are sent straight to the server, from any thread, and raise nats-py's own errors. One that failed may be tried
    again. After the lease has lapsed they raise LeaseLost and send nothing: it would settle another delivery.
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
    """A NatsMessage for async handlers; its methods are awaited, on any loop."""

    __slots__ = ()

    twin: ClassVar[str] = "NatsMessage"

    async def in_progress(self) -> None:
        """The handler still works on it: renew its lease."""
        await self._on_own_loop(self._extend())

    async def _release_after(self, send: Acknowledgement) -> None:
        await self._send(send)
        await self._channel.leave_unsettled(self._message)
