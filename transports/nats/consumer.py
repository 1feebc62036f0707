"""A consumer of one durable: receives, settles with the words of JetStream, and gives back."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, TransportError
from pump.message import NO_RAW_HEADERS, Message
from pump.telemetry import Telemetry
from pump.transport_kit.protocol import new_generation
from pump.transports.nats.connection import ANSWER_SECONDS, Link, log, said
from pump.transports.nats.dead_letters import Graves, Parked
from pump.transports.nats.headers import read
from pump.transports.nats.pull import LONGEST_SECONDS, Change, Puller
from pump.transports.nats.streams import Binding
from pump.verdict import may_requeue

ACK: Final = b""
NAK: Final = b"-NAK"
TERM: Final = b"+TERM"
IN_PROGRESS: Final = b"+WPI"

UNWANTED_SECONDS: Final = 0.2
"""After an interrupted receive, what still comes waits so long for the next one, and then goes back."""
PURGE_BATCH: Final = 250
UNFLUSHED: Final = 64
"""So many acknowledgements wait at most for the loop to send them: a kill brings no more back than these."""
_SHORT_REPLY: Final = 9


class Receipt:
    """One delivery, as nats-py has it, whose it is, and whether it has been settled."""

    __slots__ = ("consumer", "raw", "settled")

    def __init__(self, raw: Msg, consumer: "NatsConsumer") -> None:
        self.raw: Final = raw
        self.consumer: Final = consumer
        self.settled = False
        """The server does not mind a second word on a delivery; so nobody but us can prevent one."""


class NatsConsumer:
    """One consumer of a durable, on a connection of its own.

    Of its own, since a blocking consumer has a loop of its own anyway, and since neither a large message nor the end of
    one consumer shall hold up the acknowledgements of another.
    """

    def __init__(
        self,
        link: Link,
        binding: Binding,
        graves: Graves,
        clock: Clock,
        *,
        max_attempts: int | None,
        telemetry: Telemetry,
    ) -> None:
        self.generation: Final = new_generation()
        self.binding: Final = binding
        self._link: Final = link
        self._graves: Final = graves
        self._clock: Final = clock
        self.max_attempts: Final = max_attempts
        self._telemetry: Final = telemetry
        self._changed: Final = Change(link.loop)
        self._received: Final = Signal()
        longest = min(LONGEST_SECONDS, binding.lease(1) / 4)
        self._puller: Final = Puller(
            link, binding.stream, binding.durable, longest=longest, clock=clock, changed=self._on_change
        )
        self._receiving = False
        self._interrupted = False
        self._closed = False
        self._giving_back: asyncio.Task[None] | None = None
        self._acknowledged: Final[deque[Message]] = deque()
        """Handed over from other threads and not sent yet."""
        self._unflushed = 0
        self._sending = False
        self._sends: asyncio.Task[None] | None = None
        self._parked: Final = Parked(link, binding, graves, clock)
        link.changed = self._changed.set

    async def begin(self, *, creates: bool) -> None:
        """Hear what the server gives up by itself, where it does that."""
        if self.broker_limit is not None:
            await self._parked.listen(creates=creates)

    @property
    def broker_limit(self) -> int | None:
        """The durable's max_deliver."""
        return self.binding.max_deliver

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where everything is sent from."""
        return self._link.loop

    def must_be_connected(self) -> None:
        """Raise nats-py's own error where nothing can be sent at present."""
        if self._link.closed or self._closed:
            raise nats.errors.ConnectionClosedError
        if not self._link.alive:
            raise nats.errors.ConnectionReconnectingError

    def must_be_ours(self, message: Message) -> None:
        """Raise LeaseLost where a word on the message would hit another delivery of it."""
        expires = message.lease_expires
        lapsed = expires is not None and expires <= self._clock.monotonic()
        if message.lost or lapsed or receipt_of(message).settled:
            raise LeaseLost(f"message {message.id} is not ours any more")

    def fits(self, message: Message, attempts: int) -> bool:
        """Whether a message that goes back is sure to come again as often as it may still be tried."""
        return may_requeue(message, self.broker_limit, self.max_attempts, attempts)

    # -- receiving

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: what is there, or what comes within `timeout` seconds, or nothing."""
        self._receiving = True
        self._received.set()
        try:
            return await self._receive(limit, self._clock.monotonic() + timeout)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"receiving failed: {said(error)}") from error
        finally:
            self._receiving = self._interrupted = False

    async def _receive(self, limit: int, deadline: float) -> Sequence[Message]:
        puller, link, asked = self._puller, self._link, False
        while True:
            self._changed.clear()
            self._check()
            if self._interrupted or (puller.arrived and not puller.under_way):
                return self._taken(limit)
            now = self._clock.monotonic()
            if puller.under_way:
                if now >= deadline and not asked:  # what is under way is an earlier receive's, and may last longer
                    return self._taken(limit)
                until = puller.due if asked else min(deadline, puller.due)
            elif now >= deadline and (asked or not link.alive):
                return ()
            elif link.alive and now >= puller.busy_until:
                asked = True
                await puller.ask(limit, max(0.0, deadline - now))
                continue
            else:
                until = min(deadline, puller.busy_until) if link.alive else deadline
            self._unflushed = 0
            await self._changed.wait(until - now)

    def _check(self) -> None:
        """Raise where this consumer will bring nothing more as it is."""
        if self._closed:
            raise TransportError(f"the consumer {self.binding.durable!r} is closed")
        self._puller.check()
        if self._link.closed:
            raise TransportError(f"the connection to {self._link.address} is closed")
        if self._link.cut_for > self.binding.lease(1):
            # Whatever is in hand has lapsed by now; a new consumer also looks whether stream and durable are there.
            raise TransportError(f"there is no connection to {self._link.address}")

    def _taken(self, limit: int) -> Sequence[Message]:
        arrived = self._puller.arrived
        batch = [self._message(*arrived.popleft()) for _ in range(min(limit, len(arrived)))]
        return [message for message in batch if message is not None]

    def _message(self, raw: Msg, since: float) -> Message | None:
        try:
            stream, deliveries, sequence, _ = position_of(raw.reply)
        except (ValueError, IndexError):
            log.error("something that is no message of a stream came for %r: it is left", self.binding.durable)
            return None
        position = f"{stream}:{sequence}"
        header, fault = read(raw.headers, raw.subject, position)
        return Message(
            header,
            raw.data,
            receipt=Receipt(raw, self),
            generation=self.generation,
            deliveries=deliveries,
            lease_expires=since + self.binding.lease(deliveries) if self.binding.acknowledges else None,
            position=position,
            raw_headers=MappingProxyType(raw.headers) if raw.headers else NO_RAW_HEADERS,
            fault=fault,
        )

    # -- settling

    async def acknowledge(self, message: Message) -> None:
        """The message is done. Sent, and not confirmed: lost on the way, the message comes again."""
        receipt = _unsettled(message)
        self._link.must_be_alive("acknowledging")
        if self.binding.acknowledges:
            try:
                await self._link.client.publish(receipt.raw.reply, ACK)
            except (nats.errors.Error, OSError) as error:
                raise TransportError(f"acknowledging failed: {said(error)}") from error
        receipt.settled = True
        self._unflushed += 1
        if self._unflushed >= UNFLUSHED:
            self._unflushed = 0
            await asyncio.sleep(0)  # what is written leaves when the loop has a turn

    def acknowledge_soon(self, message: Message) -> bool:
        """The same, from any thread: handed over to the loop, which sends what has come together by then."""
        receipt = _unsettled(message)
        self._link.must_be_alive("acknowledging")
        receipt.settled = True
        if self.binding.acknowledges:
            self._acknowledged.append(message)
            if not self._sending:
                self._sending = True
                self._link.loop.call_soon_threadsafe(self._begin_to_send)
        return True

    def _begin_to_send(self) -> None:
        self._sending = False  # what is handed over from now on begins anew
        self._sends = self._link.loop.create_task(self._send_acknowledgements())

    async def _send_acknowledgements(self) -> None:
        while self._acknowledged:
            message = self._acknowledged.popleft()
            try:
                await self._link.client.publish(receipt_of(message).raw.reply, ACK)
            except (nats.errors.Error, OSError) as error:
                log.warning("acknowledging message %s failed: %s; it comes again", message.id, said(error))
                self._telemetry.tell("settle_failed", channel=message.origin, message=message, error=error, cause=None)

    async def nack(self, message: Message) -> None:
        """Give it back: whoever asks next has it at once."""
        await self._settle(message, NAK)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """The server itself delivers it again, after `delay` seconds."""
        await self._settle(message, NAK if delay <= 0 else naked(delay))

    async def reject(self, message: Message, rejection: Rejection) -> None:
        """Post its dead letter, and only when that is confirmed, end it; without a place it is ended, and logged."""
        _, _, _, stored = position_of(_unsettled(message).raw.reply)
        token = f"{message.position}:{stored}:{self.binding.durable}"
        if not await self._graves.bury(message, rejection, token):
            log.error(
                "message %s of %s is given up (%s), and its subscription wants no dead letter: %s",
                message.id,
                self.binding.durable,
                rejection.reason,
                "it stays in the stream alone" if self.binding.keeps_all else "it is gone",
            )
        await self._settle(message, TERM)

    async def extend(self, message: Message) -> None:
        """Renew its lease: counted from before the server was asked, and only once it has answered.

        The word is fire and forget: unanswered, nothing is known. And it renews whichever delivery is out, so that
        after the lease has lapsed it would renew somebody else's.
        """
        if not self.binding.acknowledges:
            return
        now = self._clock.monotonic()
        expires = message.lease_expires
        if expires is not None and now >= expires:
            raise LeaseLost(f"the lease on message {message.id} has lapsed")
        await self._link.confirm(_unsettled(message).raw.reply, IN_PROGRESS, self._patience(message))
        message.lease_expires = now + self.binding.lease(message.deliveries)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        """Give back messages nobody has begun to handle, in ascending order; what lapsed is back already."""
        await self._drain()
        now = self._clock.monotonic()
        ours = [each for each in messages if each.lease_expires is not None and each.lease_expires > now]
        receipts = [_unsettled(each) for each in ours]
        await self._give_back([each.raw.reply for each in receipts])
        for each in receipts:
            each.settled = True

    async def _give_back(self, replies: Sequence[str]) -> None:
        if not replies:
            return
        self._link.must_be_alive("handing back")
        try:
            for reply in replies[:-1]:
                await self._link.client.publish(reply, NAK)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"handing back failed: {said(error)}") from error
        await self._link.confirm(replies[-1], NAK)  # and with it, in order, those before it

    async def _settle(self, message: Message, word: bytes) -> None:
        """Settle with a word that is confirmed, so that it is with the server when this returns."""
        receipt = _unsettled(message)
        if self.binding.acknowledges:
            await self._link.confirm(receipt.raw.reply, word, self._patience(message))
        receipt.settled = True

    def _patience(self, message: Message) -> float:
        expires = message.lease_expires
        left = ANSWER_SECONDS if expires is None else expires - self._clock.monotonic()
        return max(0.01, min(ANSWER_SECONDS, left))

    async def purge(self) -> int:
        """Settle everything that waits, without touching what other consumers of the stream still have to see."""
        purged = 0
        try:
            while replies := await self._fetched():
                for reply in replies[:-1]:
                    await self._link.client.publish(reply, ACK)
                await self._link.confirm(replies[-1], ACK)
                purged += len(replies)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"purging failed: {said(error)}") from error
        return purged

    async def _fetched(self) -> Sequence[str]:
        await self._drain()
        if not self._puller.arrived:
            self._link.must_be_alive("purging")
            await self._puller.ask(PURGE_BATCH, 0.0)
            await self._drain()
        return self._unwanted()

    # -- life

    def interrupt(self) -> None:
        """Make a receive that is under way, or else the next one, return early with what it has. From any thread."""
        self._interrupted = True
        self._changed.set_soon()

    async def close(self) -> None:
        """Wait for the end of what is under way, give back what it brought, and let go of the connection."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        self._received.set()
        try:
            await self._send_acknowledgements()
            if self._giving_back is not None:
                await self._giving_back
            await self._drain()
            await self._give_back(self._unwanted())
        except TransportError as error:
            log.debug("closing the consumer %r: %s", self.binding.durable, error)
        finally:
            await self._parked.close()
            await self._graves.close()
            await self._link.close()

    async def _drain(self) -> None:
        """Wait until nothing more can come of what was asked for."""
        puller = self._puller
        while puller.under_way:
            self._changed.clear()
            puller.check()
            if puller.under_way:
                await self._changed.wait(puller.due - self._clock.monotonic())

    def _unwanted(self) -> Sequence[str]:
        """What has come and nobody has seen, which is nobody's from now on."""
        arrived = self._puller.arrived
        replies = [raw.reply for raw, _ in arrived]
        arrived.clear()
        return replies

    async def _give_back_unwanted(self) -> None:
        """An interrupted receive may have no successor for long: what came late waits for one, but not for ever."""
        try:
            self._received.clear()
            if not await self._clock.wait_async(self._received, UNWANTED_SECONDS):
                await self._drain()
                await self._give_back(self._unwanted())
        except TransportError as error:
            log.debug("handing back to %r: %s; they come again", self.binding.durable, error)
        finally:
            self._giving_back = None

    def _on_change(self) -> None:
        self._changed.set()
        if self._puller.arrived and not self._receiving and not self._closed and self._giving_back is None:
            self._giving_back = asyncio.get_running_loop().create_task(self._give_back_unwanted())


def naked(delay: float) -> bytes:
    """The word that has a message delivered again after a delay."""
    return NAK + b" " + json.dumps({"delay": int(delay * 1e9)}).encode()


def receipt_of(message: Message) -> Receipt:
    """The receipt of a message that came from NATS; LeaseLost for any other."""
    receipt = message.receipt
    if not isinstance(receipt, Receipt):
        raise LeaseLost(f"message {message.id} did not come from NATS")
    return receipt


def position_of(reply: str) -> tuple[str, int, int, str]:
    """Stream, number of deliveries, sequence and time of storing, from the subject that acknowledgements go to.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>`, where newer servers may
    put the domain and the account before the stream.
    """
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"]:
        raise ValueError("no acknowledgement's subject")
    first = 2 if len(tokens) == _SHORT_REPLY else 4
    return tokens[first], int(tokens[first + 2]), int(tokens[first + 3]), tokens[first + 5]


def _unsettled(message: Message) -> Receipt:
    receipt = receipt_of(message)
    if receipt.settled:
        raise LeaseLost(f"message {message.id} was settled before")
    return receipt
