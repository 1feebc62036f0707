"""A consumer of one queue. Its calls block; the vendor's client runs on a loop of the consumer's own.

So locks are renewed even while a handler blocks its thread or its loop.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pump.clock import Clock
from pump.dead_letter import TOTAL_LIMIT, Rejection
from pump.duration import seconds
from pump.errors import LeaseLost, PublishError, PumpError, TransportError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.dead_letters import (
    SHORT_LIMIT,
    LetterTries,
    copy_headers,
    dead_letter_headers,
    report_gone,
)
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.parking import Parking
from pump.transport_kit.protocol import new_generation
from pump.transports.servicebus.entities import DEAD, Facts, channel_names
from pump.transports.servicebus.errors import Refused, publish_error
from pump.transports.servicebus.link import Link, QueueLink, Senders, pause
from pump.transports.servicebus.messages import claim, raw_of, read_message, receipt_of, said_of, write_copy
from pump.transports.servicebus.settings import ServiceBusSettings

LONGEST_DELAY: Final = 3650 * 86_400.0
UNSENT: Final = 64
"""The most acknowledgements that wait to be sent, and so the most messages that come again after a kill."""
QUIET_SECONDS: Final = 0.05
"""How long after the last receive late messages are given back."""
RETRY_SECONDS: Final = 0.2
"""How long to wait before a lost connection, or a renewal, is tried again."""
RENEWAL_SECONDS: Final = 2.0
"""How long one try to renew may take."""
CLOSE_SECONDS: Final = 1.0
"""How long a close waits for a namespace that does not answer."""

Result = TypeVar("Result")


class ServiceBusConsumer:
    """One consumer. It makes broken connections again: locks outlive a connection, and so does its generation."""

    _link: Link
    """Made on the loop."""

    def __init__(self, settings: ServiceBusSettings, subscription: Subscription, facts: Facts, clock: Clock) -> None:
        self.generation: Final = new_generation()
        self.broker_limit: Final = facts.max_delivery_count
        self._destinations: Final = channel_names(subscription)
        self._channel: Final = self._destinations.channel
        self._parking: Final = Parking(log, self._channel, subscription.max_attempts)
        self._facts: Final = facts
        self._patience: Final = facts.lock_seconds or seconds(settings.lease)
        self._clock: Final = clock
        self._thread: Final = LoopThread("pump-servicebus", ends_connections=True)
        self._acks: Final[deque[Message]] = deque()
        """Appended by any thread, sent by the loop. A deque needs no lock."""
        self._sending = False
        """Whether the loop was asked to send. Cleared before the deque is read, so that nothing is left over."""
        self._interrupted = False
        self._closed = False
        self._broken_since: float | None = None
        self._receives = 0
        self._quieting: asyncio.Task[None] | None = None
        self._link = self._run(self._made(lambda: self._new_link(settings)))
        self._senders: Final[Senders] = self._run(self._made(lambda: Senders(settings)))
        self._flushing: Final[asyncio.Lock] = self._run(self._made(asyncio.Lock))

    def _new_link(self, settings: ServiceBusSettings) -> Link:
        return QueueLink(settings, self._channel)

    @staticmethod
    async def _made(make: Any) -> Any:  # noqa: ANN401 - on the loop, where the client wants to be made
        return make()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._thread.run(work)
        except (RuntimeError, CancelledError) as error:  # the thread was closed, perhaps during the call
            raise TransportError(f"the consumer of {self._channel} is closed") from error

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are there, or the first to come within `timeout` seconds, or none."""
        if self._closed:
            raise TransportError(f"the consumer of {self._channel} is closed")
        return self._run(self._receive(limit, self._clock.monotonic() + timeout))

    async def _receive(self, limit: int, deadline: float) -> Sequence[Message]:
        self._receives += 1
        messages: Sequence[Message] = ()
        while not messages:
            began = self._clock.monotonic()
            try:
                await self._flush()
                raws = await self._link.receive(limit, deadline - began)
            except Refused:
                self._link.reconnect()
                raise
            except TransportError as error:
                await self._note_outage(error, deadline)
                raws = ()
            else:
                self._note_recovery()
            messages = [self._message(raw, began) for raw in raws]
            if self._interrupted or self._clock.monotonic() >= deadline:
                break
        self._interrupted = False
        if len(messages) < limit and self._broken_since is None:
            self._quieting = asyncio.get_running_loop().create_task(self._quiet(self._receives))
        return messages

    def _message(self, raw: Any, began: float) -> Message:  # noqa: ANN401 - the client's
        lock = self._facts.lock_seconds
        until = raw.locked_until_utc
        left = self._patience if until is None else (until - datetime.now(UTC)).total_seconds()
        expires = self._clock.monotonic() + left
        return read_message(
            raw,
            queue=self._channel,
            topic=self._destinations.topic,
            generation=self.generation,
            lease_expires=expires if lock is None else min(expires, self._clock.monotonic() + lock),
        )

    async def _quiet(self, receives: int) -> None:
        """If no receive follows, leave late messages to other consumers. A call of the client is never cut off."""
        with suppress(TransportError, LeaseLost):
            if self._receives == receives:
                await self._link.ask_no_more()
            await pause(QUIET_SECONDS)
            if self._receives == receives and not self._closed:
                await self._link.quiet()

    async def _note_outage(self, error: TransportError, deadline: float) -> None:
        """Note a lost connection. It is made again here while locks may last; after that, a new consumer is needed."""
        now = self._clock.monotonic()
        self._link.reconnect()
        if self._broken_since is None:
            self._broken_since = now
            log.warning("servicebus: the connection of %s is lost; connecting again: %s", self._channel, error)
        elif now - self._broken_since > self._patience:
            raise error
        await pause(min(RETRY_SECONDS, max(0.0, deadline - now)))

    def _note_recovery(self) -> None:
        if self._broken_since is not None:
            seconds_lost = self._clock.monotonic() - self._broken_since
            log.warning("servicebus: %s is connected again, after %.1f s", self._channel, seconds_lost)
            self._broken_since = None

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early. It returns within SLICE_SECONDS."""
        self._interrupted = True

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """As `acknowledge`, without waiting; False if too many wait to be sent."""
        if len(self._acks) >= UNSENT:
            return False
        claim(message)
        self._acks.append(message)
        if not self._sending:
            self._sending = True
            try:
                self._thread.loop.call_soon_threadsafe(self._begin_to_send)
            except RuntimeError as error:
                raise TransportError(f"the consumer of {self._channel} is closed") from error
        return True

    def acknowledge(self, message: Message) -> None:
        """The message is done. It is sent at once, without waiting for the answer, unless too many are under way."""
        while not self.acknowledge_soon(message):
            self._run(self._flush())

    def _begin_to_send(self) -> None:
        self._sending = False
        self._sender = self._thread.loop.create_task(self._send())

    async def _send(self) -> None:
        with suppress(TransportError):  # the rest is sent before the next receive
            await self._flush()

    async def _flush(self) -> None:
        """Send all acknowledgements, in order. After an error, the rest stays here."""
        async with self._flushing:
            while self._acks:
                message = self._acks[0]
                try:
                    await self._link.complete(raw_of(message))
                except LeaseLost as error:
                    log.warning("servicebus: message %s of %s comes again: %s", message.id, self._channel, error)
                self._acks.popleft()

    # -- other verdicts

    def nack(self, message: Message) -> None:
        """Give it back, for any consumer at once, in its old place. Azure counts the delivery."""
        self._run(self._settled(message, self._link.abandon(raw_of(message))))

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Send a copy to the channel's own queue, scheduled; once that is stored, the original is completed."""
        self._run(self._settled(message, self._requeue(message, delay, attempts)))

    async def _requeue(self, message: Message, delay: float, attempts: int) -> None:
        receipt = receipt_of(message)
        if receipt.copied != self._own_queue:
            now = self._clock.wall()
            headers = {**message.header.headers, **copy_headers(message, attempts, now)}
            due = now + min(delay, LONGEST_DELAY) if delay > 0 else 0.0
            await self._copy(self._own_queue, write_copy(message, headers, attempts=attempts, due=due))
            receipt.copied = self._own_queue
        await self._link.complete(receipt.raw)
        receipt.settled = True

    @property
    def _own_queue(self) -> str:
        """The queue for copies. Nothing can be sent to the dead letters of a queue, so their copies go to the queue."""
        name = self._channel
        return name[: -len(DEAD)] if name.lower().endswith(DEAD) else name

    async def _copy(self, queue: str, copy: Any) -> None:  # noqa: ANN401 - the client's
        try:
            await self._senders.send(queue, [copy])
        except PumpError:
            raise
        except Exception as error:
            raise publish_error(error, f"a copy to {queue}") from error

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Make it a dead letter: Azure's own, or a copy in another queue, stored before the original is completed."""
        self._run(self._settled(message, self._reject(message, rejection)))

    async def _reject(self, message: Message, rejection: Rejection) -> None:
        queue = self._destinations.for_rejected(rejection.kind)
        if queue is None:
            await self._link.complete(raw_of(message))
            report_gone(log, message, self._channel, rejection)
            return
        if queue.lower() == f"{self._channel}{DEAD}".lower():
            header = next(iter(dead_letter_headers(message, rejection)))
            await self._link.dead_letter(raw_of(message), *said_of(header.headers, rejection.reason))
            return
        receipt = receipt_of(message)
        if receipt.copied != queue:
            try:
                await self._store_dead_letter(queue, message, rejection)
            except TransportError:
                await self._parking.park_async(message, rejection, self._requeue)
                raise
            receipt.copied = queue
        await self._link.complete(receipt.raw)

    async def _store_dead_letter(self, queue: str, message: Message, rejection: Rejection) -> None:
        """Store it with full provenance; if the queue refuses that, with less."""
        letters = (
            (write_copy(message, header.headers, attempts=0, keeps_identity=False), "")
            for header in dead_letter_headers(message, rejection, (TOTAL_LIMIT, SHORT_LIMIT))
        )
        for each in LetterTries(log, message, self._channel, rejection, letters, is_too_large=_is_final):
            with each:
                await self._copy(queue, each.letter)

    async def _settled(self, message: Message, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a verdict once, after all earlier acknowledgements."""
        receipt = receipt_of(message)
        if receipt.settled:
            work.close()
            raise LeaseLost(f"message {message.id} of {self._channel} was already settled")
        try:
            await self._flush()
        except BaseException:
            work.close()
            raise
        try:
            await work
        except LeaseLost:
            receipt.settled = True
            raise
        receipt.settled = True

    def extend(self, message: Message) -> None:
        """Renew its lock, on a separate connection. If that breaks, it is made again."""
        self._run(self._extend(message))

    async def _extend(self, message: Message) -> None:
        until = self._clock.monotonic() + min(RENEWAL_SECONDS, self._patience / 2)
        while True:
            began = self._clock.monotonic()
            expires = message.lease_expires
            if receipt_of(message).settled or (expires is not None and began >= expires):
                raise LeaseLost(f"the lock on message {message.id} has ended")
            try:
                message.lease_expires = await self._renewed(message, max(0.05, until - began))
            except TransportError:
                if self._clock.monotonic() + RETRY_SECONDS >= until:
                    raise
                await pause(RETRY_SECONDS)
            else:
                return

    async def _renewed(self, message: Message, timeout: float) -> float:
        """Renew its lock, and return when that ends, on the monotonic clock."""
        began = self._clock.monotonic()
        await self._link.renew(raw_of(message), timeout)
        left = (raw_of(message).locked_until_utc - datetime.now(UTC)).total_seconds()
        lock = self._facts.lock_seconds
        return began + (left if lock is None else lock)

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Give these back as if they had not been received, in their old places."""
        self._run(self._hand_back(messages))

    async def _hand_back(self, messages: Sequence[Message]) -> None:
        ours = [each for each in messages if not receipt_of(each).settled]
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flush()
                await self._link.release([raw_of(each) for each in ours])
        except TimeoutError as error:
            raise TransportError(f"handing back to {self._channel} failed: no answer came in time") from error
        for each in ours:
            receipt_of(each).settled = True

    def purge(self) -> int:
        """Remove all messages that wait, except scheduled ones and those that other consumers have."""
        return self._run(self._purge())

    async def _purge(self) -> int:
        await self._flush()
        return await self._link.purge()

    # -- ending

    def close(self) -> None:
        """Send all acknowledgements, and disconnect. This takes at most a second if the namespace does not answer."""
        if self._closed:
            return
        self._closed = True
        try:
            self._run(self._close())
        finally:
            self._thread.close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flush()
        except (TimeoutError, TransportError) as error:
            log.warning(
                "servicebus: %d acknowledgements on %s were not sent: %s", len(self._acks), self._channel, error
            )
        if self._quieting is not None:
            self._quieting.cancel()
        await asyncio.gather(self._link.close(), self._senders.close(), return_exceptions=True)


def _is_final(error: PumpError) -> bool:
    return isinstance(error, PublishError) and not error.retriable
