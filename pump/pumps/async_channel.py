"""The awaiting channel of one consumer: it hands out messages one at a time and carries verdicts out.

`pump.pumps.channel` is its twin: the same program, blocking. A test keeps the two equal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Message
from pump.pumps.channel_base import (
    OTHERS_SECONDS,
    RETRY_FIRST,
    RETRY_LONGEST,
    RETRY_SECONDS,
    ChannelBase,
    as_transport_error,
)
from pump.transport_kit.parking import PARKED_SECONDS
from pump.transport_kit.protocol import AsyncConsumer
from pump.verdict import Judge

Arguments = ParamSpec("Arguments")


class AsyncChannel(ChannelBase[AsyncConsumer]):
    """The messages of one consumer. Only one pump calls `receive`, `take` and `fill`; anybody may call the rest."""

    def __init__(
        self, open_consumer: Callable[[], Awaitable[AsyncConsumer]], capabilities: Capabilities, judge: Judge
    ) -> None:
        super().__init__(capabilities, judge)
        self._open_consumer: Final = open_consumer
        self._opening: Final = asyncio.Lock()

    # -- receiving

    async def receive(self, timeout: float) -> Message | None:
        """The next message to handle: one that is here already or arrives within the timeout; else None."""
        message = self.take()
        if message is None:
            await self.fill(timeout)
            message = self.take()
        return message

    async def fill(self, timeout: float) -> bool:
        """Receive as many messages as there is room for, or wait until there is room; False if none came."""
        consumer = await self._working_consumer()
        back, room, timeout = self._next_receive(timeout)
        if back:
            await self._give_back(consumer, back)
            return True
        if room == 0:
            await self._clock.wait_async(self._changed, timeout)
            return True
        returns = self._returns
        try:
            messages = await consumer.receive(room, timeout)
        except Exception as error:
            self._broken = True
            failure = as_transport_error(error, "receiving")
            raise failure from failure.__cause__
        if messages or not self._broken:
            self.judge.connected()
        if not messages:
            return False
        if self._overtakes(returns):
            await self._give_back(consumer, messages)
            return True
        self._take_in(consumer, messages)
        expires = messages[0].lease_expires
        if expires is not None and self._stop_renewing is None and self._rules.renew_lease:
            self._begin_renewing(
                consumer, expires, lambda interval: self._clock.every_async(interval, lambda: self._renew(2 * interval))
            )
        return True

    async def _working_consumer(self) -> AsyncConsumer:
        if self._broken:
            await self._close_consumer()
        if self._failure is not None:  # wherever the failure was met, the pump waits before the next try
            failure, self._failure = self._failure, None
            raise TransportError(f"the channel is opened again: {failure}") from failure
        consumer = self._consumer or await self._opened()
        if consumer.generation != self._generation:
            self._drop_other_generations(consumer)
        return consumer

    async def _opened(self) -> AsyncConsumer:
        async with self._opening:  # two callers may need a consumer at once; only one is opened
            if self._consumer is None:
                try:
                    self._consumer = self._with_uncounted_noted(await self._open_consumer())
                except Exception as error:
                    failure = as_transport_error(error, "opening")
                    raise failure from failure.__cause__
            return self._consumer

    async def _close_consumer(self) -> None:
        consumer, self._consumer, self._broken = self._consumer, None, False
        if consumer is not None:
            try:
                await consumer.close()
            except Exception as error:
                self._log.failed("closing", error)

    # -- verdicts

    async def acknowledge(self, message: Message) -> None:
        """The message is done."""
        consumer = self._owner(message)
        try:  # not by _settle, which costs a call more: every message that goes well comes here
            await consumer.acknowledge(message)
        except Exception as error:
            await self._settle_again(message, error, lambda: consumer.acknowledge(message))
        self._free_slot(message)

    async def nack(self, message: Message, delay: float = 0.0) -> None:
        """Give the message back to the broker at once; where that cannot be, hold it and present it after the delay."""
        due = self._clock.monotonic() + delay
        consumer = self._owner(message)
        if self._nack_holds(message, consumer):
            self._hold(message, due + OTHERS_SECONDS)
            return
        with self._lock:
            successors = self._intake.release(message, due)
        if successors:
            try:
                await self._give_back(consumer, successors)
            except TransportError as error:  # the message comes again with its successors, once the channel is reopened
                self._failure = error
                self._free_slot(message)
                raise
            if message.generation != consumer.generation:
                self._free_slot(message)  # it went back together with its successors
                return
        await self._settle(message, consumer.nack, message)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Deliver the message again after the delay; it keeps its place where order is kept."""
        consumer = self._owner(message)
        if self._requeue_holds(message, consumer, attempts):
            message.attempts = attempts
            self._hold(message, self._clock.monotonic() + delay)
            return
        try:
            await consumer.requeue(message, delay, attempts)
        except Exception as error:
            message.attempts = attempts
            await self._settle_again(message, error, lambda: consumer.requeue(message, delay, attempts))
        self._free_slot(message)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        """Make the message a dead letter, or send it to the invalid-message channel."""
        consumer = self._owner(message)
        try:
            await consumer.reject(message, rejection)
        except Exception as error:
            message.attempts = max(message.attempts, rejection.attempts)
            await self._settle_again(message, error, lambda: consumer.reject(message, rejection))
        self._free_slot(message)

    async def hand_back(self, message: Message) -> None:
        """Give the message back as if it had not been received."""
        await self._settle(message, self._owner(message).hand_back, (message,))

    async def leave_unsettled(self, message: Message) -> None:
        """Send the broker nothing: the message's handler settles it, or its lease ends."""
        self._note_unsettled(message)

    async def extend(self, message: Message) -> None:
        """Renew the message's lease. A lost message keeps its slot while its handler runs."""
        await self._owner(message, settling=False).extend(message)

    async def purge(self) -> int:
        """Remove all waiting messages, here and in the broker; returns how many there were."""
        consumer = await self._working_consumer()
        with self._lock:
            waiting = self._intake.drain()
        if waiting:
            await self._give_back(consumer, waiting)
        return await consumer.purge()

    async def _settle(
        self,
        message: Message,
        call: Callable[Arguments, Awaitable[None]],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> None:
        try:
            await call(*args, **options)
        except Exception as error:
            await self._settle_again(message, error, lambda: call(*args, **options))
        self._free_slot(message)

    async def _settle_again(self, message: Message, error: Exception, call: Callable[[], Awaitable[None]]) -> None:
        """Try the same verdict again while the lease lasts, within limits; then let the message come later, and raise.

        Without a lease, there is no second try: the channel is reopened, and all its messages come again. If the same
        verdict has failed for long, its message comes later then, too.
        """
        if isinstance(error, LeaseLost):
            self._mark_lost(message)
            raise error
        delay, stopping = RETRY_FIRST, False
        until = self._clock.monotonic() + RETRY_SECONDS
        with self._lock:
            self._retrying += 1
        try:
            while message.lease_expires is not None and self._clock.monotonic() < until:
                self._log.failed("settling", error)
                stopping = await self._clock.wait_async(self.judge.stopping, delay)
                self._owner(message)
                try:
                    await call()
                except LeaseLost:
                    self._mark_lost(message)
                    raise
                except Exception as again:
                    error = again
                else:
                    return
                if stopping:
                    break
                delay = min(2 * delay, RETRY_LONGEST)
            failure = as_transport_error(error, "settling")
            is_away = stopping and not isinstance(error, PublishError)  # a stop does not wait for a broker that is away
            if is_away or not self._must_let_pass(message, error) or not await self._parked(message):
                self._broken, self._failure = True, failure
            self._free_slot(message)
            raise failure
        finally:
            with self._lock:
                self._retrying -= 1
                self._wake()

    async def _parked(self, message: Message) -> bool:
        """Hold or requeue a message whose verdict cannot be carried out now; returns whether that worked."""
        consumer = self._consumer
        if consumer is None or message.generation != consumer.generation:
            return False
        if self._rules.ordered or self._capabilities.requeue == "hold":
            self._hold(message, self._clock.monotonic() + PARKED_SECONDS)
            return True
        try:
            await consumer.requeue(message, PARKED_SECONDS, message.attempts)
        except LeaseLost:  # the message has gone back already
            return False
        except Exception as error:
            self._log.failed("giving back", error)
            return False
        return True

    async def _give_back(self, consumer: AsyncConsumer, messages: Sequence[Message]) -> None:
        ours = self._not_begun(consumer, messages)
        if not ours:
            return
        try:
            await consumer.hand_back(ours)
        except Exception as error:
            self._broken = True
            failure = as_transport_error(error, "handing back")
            raise failure from failure.__cause__

    async def _renew(self, ahead: float) -> None:
        """Renew every lease that ends within `ahead` seconds."""
        consumer = self._consumer
        for message in self._ending_leases(ahead):
            if consumer is not None and message.generation == consumer.generation:
                with self._renewing(message):
                    await consumer.extend(message)

    # -- ending

    async def finish(self, timeout: float) -> None:
        """Wait until handlers that settle by themselves have settled the messages in hand, or the time is over."""
        deadline = self._clock.monotonic() + timeout
        while self._has_unsettled() and (left := deadline - self._clock.monotonic()) > 0:
            await self._clock.wait_async(self._changed, left)

    async def hand_back_waiting(self) -> None:
        """Give back, in order, the messages that no handler has begun, while handlers run. A failure is only logged."""
        consumer, waiting = self._consumer, self._may_go_back()
        if waiting:
            try:
                if consumer is not None:
                    await self._give_back(consumer, waiting)
            except TransportError as error:
                self._log.failed("handing back", error)
            finally:
                self._has_gone_back()

    async def close(self) -> None:
        """Hand back, in order, the messages that no handler has begun, and close the consumer."""
        self.stop()
        if self._stop_renewing is not None:
            self._stop_renewing()
        with self._lock:
            waiting = self._intake.drain()
        if waiting and self._consumer is not None:
            try:
                await self._give_back(self._consumer, waiting)
            except TransportError as error:
                self._log.failed("handing back", error)
        await self._release_unsettled()
        await self._close_consumer()

    async def _release_unsettled(self) -> None:
        """Close what factories opened for messages that handlers left unsettled: nobody can settle them now."""
        for message in self.in_hand:
            if message.release is not None:
                await message.release()
