"""A consumer of one durable: receives, settles with JetStream's acknowledgements, and hands back."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.msg import Msg

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, TransportError
from pump.message import NO_RAW_HEADERS, Message
from pump.telemetry import Telemetry
from pump.transport_kit.protocol import ignore_uncounted, new_generation
from pump.transports.nats.connection import ANSWER_SECONDS, NatsConnection, error_text, log
from pump.transports.nats.dead_letters import NatsDeadLetters
from pump.transports.nats.headers import from_nats
from pump.transports.nats.pull import LONGEST_SECONDS, Puller
from pump.transports.nats.streams import UNLIMITED, Durable

if TYPE_CHECKING:
    from pump.settling import Verdict

ACK: Final = b""
NAK: Final = b"-NAK"
TERM: Final = b"+TERM"
IN_PROGRESS: Final = b"+WPI"

LATE_SECONDS: Final = 0.2
"""How long a message that arrives after an interrupted receive waits for the next one, before it is handed back."""
PURGE_BATCH: Final = 250
PURGE_SECONDS: Final = 0.1
"""How long a purge waits for messages: while max_ack_pending is reached, the server does not answer at once."""
UNFLUSHED: Final = 64
"""The most acknowledgements that wait for the loop to send them, and so the most that a kill makes come again."""
_SHORT_REPLY: Final = 9


class NatsReceipt:
    """One delivery: nats-py's message, its consumer, and whether it was settled."""

    __slots__ = ("consumer", "nak_verdict", "raw", "settled")

    def __init__(self, raw: Msg, consumer: "NatsConsumer") -> None:
        self.raw: Final = raw
        self.consumer: Final = consumer
        self.settled = False
        """Only this prevents a second acknowledgement of a delivery: the server would accept it."""
        self.nak_verdict: Verdict | None = None
        """The verdict for a handler's nak. It is kept, so that a nak that failed and is tried again is counted once."""


class NatsConsumer:
    """One consumer of a durable, on a connection of its own.

    With a shared connection, a large message or the end of one consumer would delay the acknowledgements of another;
    and a blocking consumer has a loop of its own anyway.
    """

    def __init__(
        self,
        connection: NatsConnection,
        durable: Durable,
        dead_letters: NatsDeadLetters,
        clock: Clock,
        *,
        max_attempts: int | None,
        telemetry: Telemetry,
    ) -> None:
        self.generation: Final = new_generation()
        self.durable: Final = durable
        self.broker_limit: Final = durable.max_deliver
        self.loop: Final = connection.loop
        """The loop of the connection; everything is sent from there."""
        self.max_attempts: Final = max_attempts
        self.on_uncounted: Callable[[Message], None] = ignore_uncounted
        """As ReceivesAhead's."""
        self._connection: Final = connection
        self._acknowledges: Final = durable.acknowledges
        self._dead_letters: Final = dead_letters
        self._clock: Final = clock
        self._telemetry: Final = telemetry
        self._changed: Final = asyncio.Event()
        self._next_receive: Final = Signal()
        self._puller: Final = Puller(
            connection,
            durable.stream,
            durable.name,
            longest=min(LONGEST_SECONDS, durable.lease(1) / 4, durable.longest_request or LONGEST_SECONDS),
            largest=durable.largest_request,
            clock=clock,
            on_change=self._on_change,
        )
        self._receiving = False
        self._interrupted = False
        self._closed = False
        self._handing_back: asyncio.Task[None] | None = None
        self._acknowledged: Final[deque[tuple[Message, str]]] = deque()
        """Messages and their reply subjects. Any thread appends, the loop sends the acks. A deque needs no lock."""
        self._unflushed = 0
        self._sending = False
        """Whether the loop was asked to send. Any thread and the loop write it, without a lock: `acknowledge_soon`."""
        self._sender: asyncio.Task[None] | None = None
        connection.on_change = self._changed.set

    # -- receiving

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages. If none is there, waits up to `timeout` seconds for the first one."""
        self._receiving = True
        self._next_receive.set()
        try:
            return await self._receive(limit, self._clock.monotonic() + timeout)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"receiving failed: {error_text(error)}") from error
        finally:
            self._receiving = self._interrupted = False

    async def _receive(self, limit: int, deadline: float) -> Sequence[Message]:
        puller, connection, requested = self._puller, self._connection, False
        while True:
            self._changed.clear()
            if puller.overdue and connection.alive and await self._is_full():
                puller.forget()
            self._check()
            if self._interrupted or (puller.arrived and not puller.pending):
                return self._take(limit)
            now = self._clock.monotonic()
            if puller.pending:
                if now >= deadline and not requested:  # the request is an earlier receive's, and may last longer
                    return self._take(limit)
                until = puller.deadline if requested else min(deadline, puller.deadline)
            elif now >= deadline and (requested or not connection.alive):
                return ()
            elif connection.alive and now >= puller.busy_until:
                requested = True
                await puller.request(limit, max(0.0, deadline - now))
                continue
            else:
                until = min(deadline, puller.busy_until) if connection.alive else deadline
            self._unflushed = 0
            await self._wait_for_change(until - now)

    async def _is_full(self) -> bool:
        """Whether as many messages are out as the durable allows: until one is settled, the server ends no request."""
        durable = self.durable
        if durable.max_ack_pending <= 0:
            return False
        try:
            known = await self._connection.request(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
        except (nats.errors.Error, OSError):
            return False
        return bool(known["num_ack_pending"] >= durable.max_ack_pending)

    async def _wait_for_change(self, timeout: float) -> None:
        """Return when the event is set, or after `timeout` seconds. Unlike `asyncio.wait_for`, it makes no task."""
        timer = self.loop.call_later(timeout, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _check(self) -> None:
        """Raise a TransportError if this consumer can receive no more, so that a new one must be opened."""
        if self._closed:
            raise TransportError(f"the consumer {self.durable.name!r} is closed")
        self._puller.check()
        if self._connection.closed:
            raise TransportError(f"the connection to {self._connection.address} is closed")
        if self._connection.lost_seconds > self.durable.lease(1):
            # By now all leases have lapsed. A new consumer also checks that the stream and the durable still exist.
            raise TransportError(f"there is no connection to {self._connection.address}")

    def _take(self, limit: int) -> Sequence[Message]:
        arrived = self._puller.arrived
        batch = [self._message(*arrived.popleft()) for _ in range(min(limit, len(arrived)))]
        return [message for message in batch if message is not None]

    def _message(self, raw: Msg, sent_at: float) -> Message | None:
        try:
            stream, deliveries, sequence, _ = parse_reply(raw.reply)
        except (ValueError, IndexError):
            log.error(
                "the consumer %r received something that is not a message of a stream; it is ignored", self.durable.name
            )
            return None
        position = f"{stream}:{sequence}"
        header, fault = from_nats(raw.headers, raw.subject, position)
        return Message(
            header,
            raw.data,
            identity=position,
            receipt=NatsReceipt(raw, self),
            generation=self.generation,
            deliveries=deliveries,
            lease_expires=sent_at + self.durable.lease(deliveries) if self._acknowledges else None,
            position=position,
            raw_headers=MappingProxyType(raw.headers) if raw.headers else NO_RAW_HEADERS,
            fault=fault,
        )

    # -- settling

    async def acknowledge(self, message: Message) -> None:
        """The message is done. The server does not confirm the ack; if it is lost, the message comes again."""
        receipt = _unsettled(message)
        self._connection.check_alive("acknowledging")
        if self._acknowledges:
            try:
                await self._connection.client.publish(receipt.raw.reply, ACK)
            except (nats.errors.Error, OSError) as error:
                raise TransportError(f"acknowledging failed: {error_text(error)}") from error
        receipt.settled = True
        self._unflushed += 1
        if self._unflushed >= UNFLUSHED:
            self._unflushed = 0
            await asyncio.sleep(0)  # nats-py writes to the socket when the loop has a turn

    def acknowledge_soon(self, message: Message) -> bool:
        """As `acknowledge`, from any thread: the loop sends the ack, together with others.

        `_sending` is cleared before the deque is read, so a message appended meanwhile is acknowledged too.
        """
        receipt = _unsettled(message)
        self._connection.check_alive("acknowledging")
        receipt.settled = True
        if self._acknowledges:
            self._acknowledged.append((message, receipt.raw.reply))
            if not self._sending:
                self._sending = True
                self.loop.call_soon_threadsafe(self._begin_to_send)
        return True

    def _begin_to_send(self) -> None:
        self._sending = False
        self._sender = self.loop.create_task(self._send_acknowledgements())

    async def _send_acknowledgements(self) -> None:
        while self._acknowledged:
            message, reply = self._acknowledged.popleft()
            try:
                await self._connection.client.publish(reply, ACK)
            except (nats.errors.Error, OSError) as error:
                log.warning("acknowledging message %s failed: %s; it comes again", message.id, error_text(error))
                self._telemetry.tell("settle_failed", channel=message.origin, message=message, error=error, cause=None)

    async def nack(self, message: Message) -> None:
        """Give the message back: the next consumer that asks gets it at once."""
        await self._settle(message, NAK)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Have the server deliver the message again after `delay` seconds."""
        await self._settle(message, NAK if delay <= 0 else b'%b {"delay": %d}' % (NAK, int(delay * 1e9)))

    async def reject(self, message: Message, rejection: Rejection) -> None:
        """Publish the dead letter, wait for its confirmation, and end the message. If none is wanted, log and end."""
        _, _, _, stored = parse_reply(_unsettled(message).raw.reply)
        token = f"{message.position}:{stored}:{self.durable.name}"
        await self._dead_letters.publish(message, rejection, token)
        await self._settle(message, TERM)

    async def extend(self, message: Message) -> None:
        """Renew the message's lease, from before the request on, but only if the server confirms the request.

        Without a confirmation nothing is known. And the server renews any delivery of the message that is out: after
        the lease has lapsed, this would renew the lease of another consumer.
        """
        if not self._acknowledges:
            return
        now = self._clock.monotonic()
        expires = message.lease_expires
        if expires is not None and now >= expires:
            raise LeaseLost(f"the lease on message {message.id} has lapsed")
        await self._connection.confirm(_unsettled(message).raw.reply, IN_PROGRESS, self._answer_seconds(message))
        message.lease_expires = now + self.durable.lease(message.deliveries)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        """Hand back messages in ascending order. Messages whose lease has lapsed are with the server already."""
        await self._drain()
        now = self._clock.monotonic()
        ours = [each for each in messages if each.lease_expires is not None and each.lease_expires > now]
        receipts = [_unsettled(each) for each in ours]
        await self._settle_all([each.raw.reply for each in receipts], NAK, "handing back")
        for each in receipts:
            each.settled = True

    async def _settle(self, message: Message, word: bytes) -> None:
        """Send an acknowledgement (ack, nak or term), and wait until the server has confirmed it."""
        receipt = _unsettled(message)
        if self._acknowledges:
            await self._connection.confirm(receipt.raw.reply, word, self._answer_seconds(message))
        receipt.settled = True

    def _answer_seconds(self, message: Message) -> float:
        expires = message.lease_expires
        left = ANSWER_SECONDS if expires is None else expires - self._clock.monotonic()
        return max(0.01, min(ANSWER_SECONDS, left))

    async def _settle_all(self, replies: Sequence[str], word: bytes, action: str) -> None:
        """Settle deliveries in order. The server confirms the last one; then it has received the others too."""
        if not replies:
            return
        self._connection.check_alive(action)
        try:
            for reply in replies[:-1]:
                await self._connection.client.publish(reply, word)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"{action} failed: {error_text(error)}") from error
        await self._connection.confirm(replies[-1], word)

    async def purge(self) -> int:
        """Acknowledge all messages that wait. Other consumers of the stream still get their messages."""
        durable, limit = self.durable, self.durable.max_ack_pending
        purged = await self._purge(min(PURGE_BATCH, limit) if limit > 0 else PURGE_BATCH)
        if limit <= 0:
            return purged
        try:
            known = await self._connection.request(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
            if not known["num_pending"] or known["num_ack_pending"] < limit:
                return purged
            if not durable.is_ours:
                raise TransportError(
                    f"{durable.name!r} cannot be purged while {limit} of its messages are in hand: its max_ack_pending "
                    "keeps the others back"
                )
            await self._change(known["config"], max_ack_pending=UNLIMITED)
            try:
                return purged + await self._purge(PURGE_BATCH)
            finally:
                await self._change(known["config"])
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"purging failed: {error_text(error)}") from error

    async def _change(self, config: Mapping[str, object], **changed: object) -> None:
        durable = self.durable
        request = {"stream_name": durable.stream, "config": {**config, **changed}}
        await self._connection.request(f"CONSUMER.DURABLE.CREATE.{durable.stream}.{durable.name}", request)

    async def _purge(self, batch: int) -> int:
        """Pull up to `batch` messages at a time and acknowledge them, until the server gives no more."""
        purged = 0
        await self._drain()
        while True:
            if not self._puller.arrived:
                self._connection.check_alive("purging")
                try:
                    await self._puller.request(batch, PURGE_SECONDS)
                except (nats.errors.Error, OSError) as error:
                    raise TransportError(f"purging failed: {error_text(error)}") from error
                await self._drain()
            if not (replies := self._take_replies()):
                return purged
            await self._settle_all(replies, ACK, "purging")
            purged += len(replies)

    async def count_waiting(self) -> int:
        """How many messages no consumer has settled, those in hand included."""
        durable = self.durable
        try:
            known = await self._connection.request(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"counting failed: {error_text(error)}") from error
        return int(known["num_pending"]) + int(known["num_ack_pending"])

    # -- for handlers that settle messages with nats-py's own methods

    def check_connected(self) -> None:
        """Raise nats-py's own error if nothing can be sent now."""
        if self._connection.closed or self._closed:
            raise nats.errors.ConnectionClosedError
        if not self._connection.alive:
            raise nats.errors.ConnectionReconnectingError

    def check_ours(self, message: Message) -> None:
        """Raise LeaseLost if an acknowledgement would settle another delivery of the message."""
        expires = message.lease_expires
        lapsed = expires is not None and expires <= self._clock.monotonic()
        if message.lost or lapsed or receipt_of(message).settled:
            raise LeaseLost(f"message {message.id} no longer belongs to this consumer")

    # -- closing

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early with what it has. From any thread."""
        self._interrupted = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: no receive is under way
            self.loop.call_soon_threadsafe(self._changed.set)

    async def close(self) -> None:
        """Wait for the end of the pull request, hand back its messages, and close the connection."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        self._next_receive.set()
        try:
            await self._send_acknowledgements()
            if self._handing_back is not None:
                await self._handing_back
            await self._hand_back_arrived()
        except TransportError as error:
            log.debug("closing the consumer %r: %s", self.durable.name, error)
        finally:
            await self._connection.close()
            await self._dead_letters.close()

    async def _drain(self) -> None:
        """Wait until the pull request can bring no more messages."""
        puller = self._puller
        while puller.pending:
            self._changed.clear()
            puller.check()
            if puller.pending:
                await self._wait_for_change(puller.deadline - self._clock.monotonic())

    def _take_replies(self) -> Sequence[str]:
        """Remove the messages that have arrived; returns their reply subjects, where they are acknowledged."""
        arrived = self._puller.arrived
        replies = [raw.reply for raw, _ in arrived]
        arrived.clear()
        return replies

    async def _hand_back_arrived(self) -> None:
        await self._drain()
        for message in filter(None, (self._message(*each) for each in self._puller.arrived)):
            self.on_uncounted(message)
        await self._settle_all(self._take_replies(), NAK, "handing back")

    async def _hand_back_late(self) -> None:
        """Hand back what arrives late, unless a receive begins soon: after an interrupt there may be none for long."""
        try:
            self._next_receive.clear()
            if not await self._clock.wait_async(self._next_receive, LATE_SECONDS):
                await self._hand_back_arrived()
        except TransportError as error:
            log.debug(
                "handing messages back to %r failed: %s; they come again when their leases end",
                self.durable.name,
                error,
            )
        finally:
            self._handing_back = None

    def _on_change(self) -> None:
        if self._receiving:
            if not self._puller.pending:  # before that, it would only wait again
                self._changed.set()
            return
        self._changed.set()
        if self._puller.arrived and not self._closed and self._handing_back is None:
            self._handing_back = self.loop.create_task(self._hand_back_late())


def receipt_of(message: Message) -> NatsReceipt:
    """The receipt of a message that came from NATS; LeaseLost for any other."""
    receipt = message.receipt
    if not isinstance(receipt, NatsReceipt):
        raise LeaseLost(f"message {message.id} did not come from NATS")
    return receipt


def parse_reply(reply: str) -> tuple[str, int, int, str]:
    """Stream, number of deliveries, sequence and time of storing, read from the reply subject of a message.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>`; newer servers may put the
    domain and the account before the stream.
    """
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"]:
        raise ValueError("not the subject of an acknowledgement")
    first = 2 if len(tokens) == _SHORT_REPLY else 4
    return tokens[first], int(tokens[first + 2]), int(tokens[first + 3]), tokens[first + 5]


def _unsettled(message: Message) -> NatsReceipt:
    receipt = receipt_of(message)
    if receipt.settled:
        raise LeaseLost(f"message {message.id} was already settled")
    return receipt
