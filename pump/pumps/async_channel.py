"""One consumer's channel, awaiting: it hands out messages one at a time and carries verdicts out.

`pump.pumps.channel` is its twin: the same program, blocking. A test keeps the two equal.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec

from pump.capabilities import Capabilities
from pump.clock import Clock, Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, TransportError
from pump.ledger import Ledger
from pump.message import Message
from pump.pump_log import Report
from pump.pumps.intake import Intake, lapsed
from pump.subscription import Subscription
from pump.transport_kit.protocol import AsyncConsumer
from pump.verdict import Judge, may_release, may_requeue

Arguments = ParamSpec("Arguments")

RETRY_FIRST: Final = 0.05
RETRY_LONGEST: Final = 2.0
UNSETTLED_WARNING: Final = 30.0
"""After how long a message that nobody settles, and that no lease frees, is told of, in seconds."""


class AsyncChannel:
    """The messages of one consumer. `receive`, `take` and `fill` are for one pump; the rest is for anybody."""

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        open_consumer: Callable[[], Awaitable[AsyncConsumer]],
        rules: Subscription,
        capabilities: Capabilities,
        judge: Judge,
        ledger: Ledger,
        clock: Clock,
        report: Report,
    ) -> None:
        self._open_consumer: Final = open_consumer
        self._rules: Final = rules
        self._capabilities: Final = capabilities
        self._judge: Final = judge
        self._clock: Final = clock
        self._report: Final = report
        self._intake: Final = Intake(
            largest=rules.buffer_size,
            slots=rules.in_flight,
            ordered=rules.ordered,
            blocks=capabilities.blocks,
            suspect=judge.suspect,
            due=ledger.due,
            dropped=judge.handed_back,
        )
        self._lock: Final = threading.Lock()
        self._opening: Final = asyncio.Lock()
        self._changed: Final = Signal()
        self._waiting = False
        self._paused = False
        self._broken = False
        self._trouble: TransportError | None = None
        self._closed = False
        self._troubled = 0
        self._told_of_limit = False
        self._generation = 0
        self._consumer: AsyncConsumer | None = None
        self._end_keeping: Callable[[], None] | None = None

    # -- intake

    async def receive(self, timeout: float) -> Message | None:
        """The next message to handle: what is here, or what comes in time, or None."""
        message = self.take()
        if message is None:
            await self.fill(timeout)
            message = self.take()
        return message

    def take(self) -> Message | None:
        """The next message that is here already and may be handled; None if there is none."""
        consumer = self._consumer
        if consumer is None or self._paused or self._broken:
            return None
        if consumer.generation != self._generation:
            self._drop_others(consumer)
        with self._lock:
            return self._intake.take(self._clock.monotonic())

    def begins(self, message: Message) -> bool:
        """Whether a message that was taken may still begin; what went back meanwhile is let go of, unspent."""
        consumer = self._consumer
        if consumer is not None and not message.lost and message.generation == consumer.generation:
            return True
        self._lose(message)
        self._judge.handed_back(message)
        return False

    async def fill(self, timeout: float) -> bool:
        """Ask the broker for messages as far as there is room, or wait until there is; False if there were none."""
        consumer = await self._working_consumer()
        with self._lock:
            if not self._closed:  # a stop that came before this ends the wait below
                self._changed.clear()
            now = self._clock.monotonic()
            lost = self._intake.expire(now)
            back = self._intake.drain() if self._paused else self._intake.to_hand_back(now)
            room = 0 if self._paused or self._troubled or self._closed else self._intake.room()
            due = self._intake.next_due(now)
            self._waiting = room == 0
        self._interrupt(lost)
        if back:
            await self._give_back(consumer, back)
            return True
        timeout = timeout if due is None else max(0.0, min(timeout, due - now))
        if room == 0:
            await self._clock.wait_async(self._changed, timeout)
            return True
        messages = await self._received(consumer, room, timeout)
        self._offer(consumer, messages)
        return bool(messages)

    async def _received(self, consumer: AsyncConsumer, room: int, timeout: float) -> Sequence[Message]:
        try:
            messages = await consumer.receive(room, timeout)
        except Exception as error:
            self._broken = True
            trouble = _as_transport_error(error, "receiving")
            raise trouble from trouble.__cause__
        if messages or not self._broken:
            self._judge.connected()
        return messages

    def _offer(self, consumer: AsyncConsumer, messages: Sequence[Message]) -> None:
        if not messages:
            return
        now = self._clock.monotonic()
        for message in messages:
            message.origin = self._rules.channel
        with self._lock:
            self._intake.offer(messages, now)
        self._drop_others(consumer)
        expires = messages[0].lease_expires
        if expires is not None and self._end_keeping is None and self._rules.renew_lease:
            interval = max(0.01, (expires - now) / 3)
            self._end_keeping = self._clock.every_async(interval, lambda: self._renew(2 * interval))

    async def _working_consumer(self) -> AsyncConsumer:
        if self._broken:
            await self._let_go()
        if self._trouble is not None:  # a broken channel, whoever met it: the pump has to wait before the next try
            trouble, self._trouble = self._trouble, None
            raise TransportError(f"the channel is made anew: {trouble}") from trouble
        consumer = self._consumer or await self._opened()
        if consumer.generation != self._generation:
            self._drop_others(consumer)
        return consumer

    async def _opened(self) -> AsyncConsumer:
        async with self._opening:  # two may ask for it at once, and there is one
            if self._consumer is None:
                try:
                    self._consumer = await self._open_consumer()
                except Exception as error:
                    trouble = _as_transport_error(error, "opening")
                    raise trouble from trouble.__cause__
            return self._consumer

    def _drop_others(self, consumer: AsyncConsumer) -> None:
        with self._lock:
            self._generation = consumer.generation
            lost = self._intake.drop_others(self._generation)
        self._interrupt(lost)

    async def _let_go(self) -> None:
        consumer, self._consumer, self._broken = self._consumer, None, False
        if consumer is not None:
            try:
                await consumer.close()
            except Exception as error:
                self._report.trouble("closing", error)

    # -- verdicts

    async def acknowledge(self, message: Message) -> None:
        """The message is done."""
        consumer = self._owner(message)
        try:  # as _settle does, without its detour: this is the way of every message that goes well
            await consumer.acknowledge(message)
        except Exception as error:
            await self._settle_again(message, error, lambda: consumer.acknowledge(message))
        self._free(message)

    async def nack(self, message: Message, delay: float = 0.0) -> None:
        """Leave the message: back to the broker at once; where that cannot be, presented again here after the delay."""
        due = self._clock.monotonic() + delay
        consumer = self._owner(message)
        if self._capabilities.nack == "holds":
            self._hold(message, due)
            return
        if not may_release(message, consumer.broker_limit, self._rules.max_attempts):
            self._tell_of_limit(message, consumer)
            self._hold(message, due)
            return
        with self._lock:
            successors = self._intake.release(message, due)
        if successors:
            try:
                await self._give_back(consumer, successors)
            except TransportError as error:  # the message comes again with them, once the channel is made anew
                self._trouble = error
                self._free(message)
                raise
            if message.generation != consumer.generation:
                self._free(message)  # it went back together with them
                return
        await self._settle(message, consumer.nack, message)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Deliver the message again after the delay; in its old place where order is kept."""
        consumer = self._owner(message)
        limit = consumer.broker_limit if self._capabilities.requeue == "same" else None
        fits = may_requeue(message, limit, self._rules.max_attempts, attempts)
        if not fits:
            self._tell_of_limit(message, consumer)
        if not fits or self._rules.ordered or self._capabilities.requeue == "hold":
            message.attempts = attempts
            self._hold(message, self._clock.monotonic() + delay)
            return
        await self._settle(message, consumer.requeue, message, delay, attempts)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        """Make the message a dead letter, or send it to the invalid-message channel."""
        await self._settle(message, self._owner(message).reject, message, rejection)

    async def hand_back(self, message: Message) -> None:
        """Give the message back as if it had not been received."""
        await self._settle(message, self._owner(message).hand_back, (message,))

    async def leave(self, message: Message) -> None:
        """Say nothing to the broker: whoever has the message settles it, or its lease runs out."""
        with self._lock:
            unleased = message.lease_expires is None
            if message.settled or message.lost or (unleased and not message.explicit):
                self._intake.settled(message)
                self._wake()
                return
            self._intake.leave(message)
        if unleased:
            self._clock.alarm(UNSETTLED_WARNING, lambda: self._report.unsettled_for_long(message))

    async def extend(self, message: Message) -> None:
        """Renew the message's lease. A message that is lost keeps its slot for as long as its handler runs."""
        await self._owner(message, settling=False).extend(message)

    async def purge(self) -> int:
        """Remove everything that waits, here and in the broker; says how many messages that were."""
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
        self._free(message)

    async def _settle_again(self, message: Message, error: Exception, call: Callable[[], Awaitable[None]]) -> None:
        """Try the same verdict while the lease lasts; where there is none, the channel is made anew."""
        if isinstance(error, LeaseLost):
            self._lose(message)
            raise error
        delay = RETRY_FIRST
        with self._lock:
            self._troubled += 1
        try:
            while message.lease_expires is not None:
                self._report.trouble("settling", error)
                stopping = await self._clock.wait_async(self._judge.stopping, delay)
                self._owner(message)
                try:
                    await call()
                except LeaseLost:
                    self._lose(message)
                    raise
                except Exception as again:
                    error = again
                else:
                    return
                if stopping:
                    break
                delay = min(2 * delay, RETRY_LONGEST)
            self._broken = True
            self._free(message)
            self._trouble = trouble = _as_transport_error(error, "settling")
            raise trouble
        finally:
            with self._lock:
                self._troubled -= 1
                self._wake()

    def _owner(self, message: Message, *, settling: bool = True) -> AsyncConsumer:
        """The consumer that may settle the message; LeaseLost where a verdict would hit another delivery."""
        consumer = self._consumer
        if consumer is None or message.lost or message.generation != consumer.generation:
            self._lose(message, settling=settling)
            raise LeaseLost(f"message {message.id} is not ours any more")
        expires = message.lease_expires
        if expires is not None and expires <= self._clock.monotonic():
            self._lose(message, settling=settling)
            raise LeaseLost(f"the lease on message {message.id} has lapsed")
        return consumer

    def _lose(self, message: Message, *, settling: bool = True) -> None:
        message.lost = True
        if settling:
            self._free(message)

    def _free(self, message: Message) -> None:
        with self._lock:
            self._intake.settled(message)
            if self._waiting:
                self._wake()

    def _hold(self, message: Message, due: float) -> None:
        with self._lock:
            self._intake.hold(message, due)
            self._wake()

    def _tell_of_limit(self, message: Message, consumer: AsyncConsumer) -> None:
        if not self._told_of_limit and consumer.broker_limit is not None:
            self._told_of_limit = True
            self._report.held(message, consumer.broker_limit)

    async def _give_back(self, consumer: AsyncConsumer, messages: Sequence[Message]) -> None:
        for message in messages:
            self._judge.handed_back(message)
        now, generation = self._clock.monotonic(), consumer.generation
        ours = [each for each in messages if each.generation == generation and not lapsed(each, now)]
        if not ours:
            return
        try:
            await consumer.hand_back(ours)
        except Exception as error:
            self._broken = True
            trouble = _as_transport_error(error, "handing back")
            raise trouble from trouble.__cause__

    # -- leases

    async def _renew(self, ahead: float) -> None:
        now = self._clock.monotonic()
        with self._lock:
            lost = self._intake.expire(now)
            due = self._intake.leased(now + ahead)
        self._interrupt(lost)
        consumer = self._consumer
        for message in due:
            if consumer is None or message.generation != consumer.generation:
                continue
            try:
                await consumer.extend(message)
            except LeaseLost:
                message.lost = True
                self._interrupt((message,))
            except Exception as error:
                self._report.trouble("renewing", error)

    def _interrupt(self, lost: Sequence[Message]) -> None:
        """Tell the handlers of what is not ours any more; never under the lock, which they may want."""
        for message in lost:
            interrupt = message.interrupt
            if interrupt is not None:
                try:
                    interrupt()
                except Exception as error:
                    self._report.trouble("interrupting", error)

    # -- life

    def pause(self) -> None:
        """Hand out nothing more, until resumed."""
        self._paused = True
        self._wake_up()

    def resume(self) -> None:
        """Hand out messages again."""
        self._paused = False
        self._wake_up()

    def stop(self) -> None:
        """Ask the broker for nothing more: a receive under way returns early. What is in hand can still be settled."""
        self._closed = True
        self._wake_up()

    async def finish(self, timeout: float) -> None:
        """Wait until the messages that their handlers have still to settle are settled, or the time is over."""
        deadline = self._clock.monotonic() + timeout
        while True:
            with self._lock:
                self._changed.clear()
                self._waiting = True
                unsettled = any(message.explicit and not message.lost for message in self._intake.in_hand)
            left = deadline - self._clock.monotonic()
            if not unsettled or left <= 0:
                return
            await self._clock.wait_async(self._changed, left)

    async def close(self) -> None:
        """Hand back, in order, what nobody has begun to handle, and let go of the broker."""
        self.stop()
        if self._end_keeping is not None:
            self._end_keeping()
        with self._lock:
            waiting = self._intake.drain()
        if waiting and self._consumer is not None:
            try:
                await self._give_back(self._consumer, waiting)
            except TransportError as error:
                self._report.trouble("handing back", error)
        await self._let_go()

    @property
    def in_hand(self) -> Sequence[Message]:
        """What is being handled, or was and waits to be settled."""
        with self._lock:
            return self._intake.in_hand

    def abandon(self, message: Message) -> None:
        """Nobody will settle the message, as its turn has died: it comes again by its lease, or by a new consumer."""
        if message.lease_expires is None:
            self._broken, self._trouble = True, TransportError(f"the turn of message {message.id} died")
        self._lose(message)

    def _wake_up(self) -> None:
        consumer = self._consumer
        if consumer is not None:
            try:
                consumer.interrupt()
            except Exception as error:  # then the receive lasts its time
                self._report.trouble("interrupting", error)
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        self._waiting = False
        self._changed.set()


def _as_transport_error(error: Exception, doing: str) -> TransportError:
    if isinstance(error, TransportError):
        return error
    trouble = TransportError(f"{doing} failed: {type(error).__name__}: {error}")
    trouble.__cause__ = error
    return trouble
