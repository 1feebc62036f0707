"""The memory transport: locks, delays and dead letters inside one process, for tests and for real work."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from itertools import count, takewhile
from math import inf
from threading import Lock
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from pump.capabilities import Capabilities
from pump.clock import Clock, Signal
from pump.dead_letter import Rejection, dead_letter
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, LeaseLost, PublishError, SetupError, TransportError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.protocol import new_generation
from pump.transport_kit.sending import not_sent
from pump.transport_kit.settings import read_url
from pump.transports.memory.bus import BusChannel, BusMessage, MemoryBus

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

log: Final = logging.getLogger("pump.transports.memory")

ACK_TIMEOUT: Final = 30.0
"""Seconds for which a delivery belongs to its consumer, unless it is extended."""
LONGEST_TURN: Final = 0.002
"""Seconds after which an awaiting consumer lets the loop's other tasks run, even if there are always messages."""

_receipts: Final = count(1)
_buses: Final[dict[str, MemoryBus]] = {}
"""By name. Kept until the process ends: messages sent to memory://name wait for the next consumer."""
_buses_lock: Final = Lock()


class MemoryConsumer:
    """One consumer of one channel of a memory bus, blocking."""

    broker_limit: int | None = None

    def __init__(self, bus: MemoryBus, subscription: Subscription, ack_timeout: float) -> None:
        self.generation = new_generation()
        self.woken: Final = Signal()
        """Set when there may be something to receive, or a reason to stop waiting."""
        self.longest_wait = 0.0
        """The longest time that a receive waits before it looks again, in seconds."""
        self._bus: Final = bus
        self._destinations: Final = Destinations.of(subscription)
        self._creates: Final = subscription.missing == "create"
        self._lease: Final = ack_timeout if subscription.lease is None else seconds(subscription.lease)
        self._locked: Final[dict[object, BusMessage]] = {}
        """The messages in hand, by receipt. The first one expires first: an extended message moves to the end."""
        self._channel: BusChannel | None = None
        self._interrupted = False
        self._closed = False

    @property
    def in_hand(self) -> int:
        """How many messages the consumer has received and not settled."""
        return len(self._locked)

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages. If none is there, waits up to `timeout` seconds for the first one."""
        clock = self._bus.clock
        deadline = clock.monotonic() + timeout
        try:
            while (messages := self.take(limit, deadline)) is None:
                clock.wait(self.woken, self.longest_wait)
        except BaseException:
            self.stop_waiting()
            raise
        return messages

    def take(self, limit: int, deadline: float) -> Sequence[Message] | None:
        """The messages that a receive returns now; None if it must wait until `woken`, for `longest_wait` at most."""
        with self._bus.lock:
            channel = self._open_channel()
            channel.waiting.pop(self, None)
            now = self._bus.clock.monotonic()
            channel.pass_time(now)
            batch = self._lock(channel, min(limit, channel.pending), now + self._lease)
            if not batch and now < deadline:
                self.woken.clear()  # before _interrupted is read: `interrupt` sets that first, then woken
                if not self._interrupted:
                    channel.waiting[self] = None
                    self.longest_wait = min(deadline, channel.next_due) - now
                    return None
            self._interrupted = False
            return batch

    def stop_waiting(self) -> None:
        """End a receive without a result. If it was just woken for a message, wake another consumer instead."""
        with self._bus.lock:
            channel = self._channel
            if channel is not None and channel.pending and self not in channel.waiting:
                channel.wake(1)
            elif channel is not None:
                channel.waiting.pop(self, None)

    def acknowledge(self, message: Message) -> None:
        """The message is done."""
        bus = self._bus
        with bus.lock:  # the same as `_release`, but one call less for every message
            entry = self._locked.get(message.receipt)
            if entry is None or entry.expires <= bus.clock.monotonic():
                raise self._lease_lost(message)
            del self._locked[message.receipt]

    def nack(self, message: Message) -> None:
        """Put the message back at its old place; any consumer may receive it at once."""
        with self._bus.lock:
            channel = self._open_channel()
            entry = self._release(message)
            entry.learn(message.attempts)
            channel.put_back(entry)
            channel.wake(1)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Move the message to the tail after `delay` seconds, with that number of attempts."""
        with self._bus.lock:
            channel = self._open_channel()
            entry = self._release(message)
            entry.attempts = attempts
            entry.unexplained = 0  # `attempts` accounts for every delivery so far
            if delay > 0:
                channel.schedule(entry, self._bus.clock.monotonic() + delay)
            else:
                channel.append(entry)
                channel.wake(1)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Move the message to its dead-letter channel; if there is no such channel, remove and log it."""
        name = self._destinations.for_rejected(rejection.kind)
        header = dead_letter(message, rejection)  # made first: if this fails, the message must not be lost
        with self._bus.lock:
            channel = None
            if name is not None:
                channel = self._bus.declare(name) if self._creates else self._bus.find(name)
                if channel is None:
                    raise PublishError(f"the memory bus has no channel {name!r} for dead letters", sent=False)
            self._release(message)
            if channel is not None:
                channel.add(header, message.body)
        if channel is None:
            report_gone(log, message, self._destinations.channel, rejection)

    def extend(self, message: Message) -> None:
        """Renew the message's lease."""
        with self._bus.lock:
            entry = self._release(message)
            entry.expires = message.lease_expires = self._bus.clock.monotonic() + self._lease
            self._locked[message.receipt] = entry

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Put messages back at their old places. Messages whose lease has expired are there already."""
        with self._bus.lock:
            channel = self._open_channel()
            channel.pass_time(self._bus.clock.monotonic())
            receipts = [message.receipt for message in messages if message.receipt in self._locked]
            for message in messages:
                if message.receipt in self._locked:
                    self._locked[message.receipt].learn(message.attempts)
            channel.wake(self._give_back(channel, receipts, unexplained=0))

    def purge(self) -> int:
        """Remove all messages that wait in the channel or are due later; returns how many they were."""
        with self._bus.lock:
            return self._open_channel().purge()

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early. Does not take the bus's lock."""
        self._interrupted = True
        self.woken.set()

    def close(self) -> None:
        """Close the consumer: the messages that it has not settled can be received at once, in the old order."""
        with self._bus.lock:
            self._closed = True
            self.woken.set()
            if self._channel is not None:
                self._channel.consumers.discard(self)
                self._channel.wake(self._give_back(self._channel, list(self._locked), unexplained=1))

    def expire(self, channel: BusChannel, now: float) -> float:
        """Give back messages whose lease has expired; returns when the next one expires. Call it with the lock held."""
        expired = takewhile(lambda receipt: self._locked[receipt].expires <= now, self._locked)
        self._give_back(channel, list(expired), unexplained=1)
        return next((entry.expires for entry in self._locked.values()), inf)

    def _open_channel(self) -> BusChannel:
        if self._closed:
            raise TransportError(f"the consumer of {self._destinations.channel!r} is closed")
        if self._channel is None:
            self._channel = self._bus.find(self._destinations.channel)
            if self._channel is None:
                raise TransportError(f"the memory bus has no channel {self._destinations.channel!r}")
            self._channel.consumers.add(self)
        return self._channel

    def _lock(self, channel: BusChannel, number: int, expires: float) -> list[Message]:
        batch, generation = [], self.generation
        for _ in range(number):
            entry, receipt = channel.pop(), next(_receipts)
            entry.deliveries += 1
            entry.expires = expires
            self._locked[receipt] = entry
            batch.append(entry.copy(receipt, generation, expires))
        if batch:
            channel.expect(expires)
        return batch

    def _lease_lost(self, message: Message) -> LeaseLost:
        self._open_channel()
        return LeaseLost(f"message {message.id} of {self._destinations.channel} no longer belongs to this consumer")

    def _release(self, message: Message) -> BusMessage:
        entry = self._locked.get(message.receipt)
        if entry is None or entry.expires <= self._bus.clock.monotonic():
            raise self._lease_lost(message)
        del self._locked[message.receipt]
        return entry

    def _give_back(self, channel: BusChannel, receipts: Sequence[object], unexplained: int) -> int:
        for receipt in receipts:
            entry = self._locked.pop(receipt)
            entry.unexplained += unexplained
            channel.put_back(entry)
        return len(receipts)


def _awaitable(
    method: Callable[Concatenate[MemoryConsumer, Arguments], Result],
) -> Callable[Concatenate["AsyncMemoryConsumer", Arguments], Coroutine[Any, Any, Result]]:
    """A method of MemoryConsumer for awaiting callers. Only for methods that do not wait."""

    @wraps(method)
    async def call(self: "AsyncMemoryConsumer", /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return method(self._consumer, *arguments, **options)

    return call


class AsyncMemoryConsumer:
    """A MemoryConsumer for awaiting callers, on any loop."""

    broker_limit: int | None = None

    def __init__(self, consumer: MemoryConsumer, clock: Clock) -> None:
        self.generation = consumer.generation
        self._consumer: Final = consumer
        self._clock: Final = clock
        self._turn_ends = 0.0

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """As in MemoryConsumer. The loop's other tasks run too, even if there are always messages."""
        consumer, deadline = self._consumer, self._clock.monotonic() + timeout
        loop = asyncio.get_running_loop()
        if loop.time() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = loop.time() + LONGEST_TURN
        try:
            while (messages := consumer.take(limit, deadline)) is None:
                await self._clock.wait_async(consumer.woken, consumer.longest_wait)
        except BaseException:
            consumer.stop_waiting()
            raise
        return messages

    async def acknowledge(self, message: Message) -> None:
        """As in MemoryConsumer."""
        self._consumer.acknowledge(message)

    def extend_from_thread(self, message: Message) -> None:
        """As `extend` in MemoryConsumer."""
        self._consumer.extend(message)

    nack = _awaitable(MemoryConsumer.nack)
    requeue = _awaitable(MemoryConsumer.requeue)
    reject = _awaitable(MemoryConsumer.reject)
    extend = _awaitable(MemoryConsumer.extend)
    hand_back = _awaitable(MemoryConsumer.hand_back)
    purge = _awaitable(MemoryConsumer.purge)
    close = _awaitable(MemoryConsumer.close)

    def interrupt(self) -> None:
        """As in MemoryConsumer."""
        self._consumer.interrupt()


class MemoryProducer:
    """Sends to the topics of a memory bus: all messages of one call, or none of them."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus: Final = bus
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; it can be received after the delay. PublishError: none was stored."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        self._bus.publish(messages, delay)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True


class AsyncMemoryProducer:
    """A MemoryProducer for awaiting callers."""

    def __init__(self, bus: MemoryBus) -> None:
        self._producer: Final = MemoryProducer(bus)

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As in MemoryProducer."""
        self._producer.send(messages, delay)

    async def close(self) -> None:
        """As in MemoryProducer."""
        self._producer.close()


class MemoryTransport:
    """Messages inside this process. Transports with the same name share one bus; one without a name has its own."""

    capabilities: Capabilities = Capabilities(
        system="memory",
        nack="releases",
        blocks="channel",
        requeue="same",
        counts_deliveries=True,
        carries_attempts=True,
        durable=False,
        between_processes=False,
        leases=True,
        delayed_publish=True,
    )

    def __init__(self, name: str = "", *, clock: Clock | None = None, ack_timeout: Duration = ACK_TIMEOUT) -> None:
        self._ack_timeout: Final = seconds(ack_timeout)
        if not self._ack_timeout > 0:
            raise ConfigurationError(f"memory: ack_timeout must be longer than 0 s, not {ack_timeout}")
        with _buses_lock:
            self.bus: Final = _buses.setdefault(name, MemoryBus(clock)) if name else MemoryBus(clock)
        """The bus that holds the messages; tests may look at it."""
        if clock not in {None, self.bus.clock}:
            raise ConfigurationError(f"memory://{name} is in use already, with another clock")

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `memory://`, `memory://name` or `memory://name?ack_timeout=seconds`."""
        read = read_url(url, "memory://name?ack_timeout=seconds", {"ack_timeout": float}, schemes=["memory"])
        return cls(read.name, **read.options)

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate channels and bindings; SetupError names what is missing.

        A publication creates nothing: posting to a topic without a channel is a PublishError.
        """
        channels = [(subscription.missing, Destinations.of(subscription)) for subscription in subscriptions]
        self.bus.claim()
        with self.bus.lock:
            for missing, destinations in channels:
                if missing == "create":
                    self.bus.declare(destinations.channel, destinations.topic)
                    for name in destinations.dead_letters:
                        self.bus.declare(name)
            for missing, destinations in channels:
                if missing == "validate":
                    self._validate(destinations)
            for publication in publications:
                if publication.missing == "validate" and not self.bus.bound(publication.destination):
                    raise SetupError(f"no channel of the memory bus is bound to the topic {publication.destination!r}")

    def consumer(self, subscription: Subscription) -> MemoryConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        self.prepare([subscription], [])
        return MemoryConsumer(self.bus, subscription, self._ack_timeout)

    def producer(self) -> MemoryProducer:
        """Open a producer."""
        return MemoryProducer(self.bus)

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """As `prepare`."""
        self.prepare(subscriptions, publications)

    async def async_consumer(self, subscription: Subscription) -> AsyncMemoryConsumer:
        """As `consumer`."""
        return AsyncMemoryConsumer(self.consumer(subscription), self.bus.clock)

    async def async_producer(self) -> AsyncMemoryProducer:
        """As `producer`."""
        return AsyncMemoryProducer(self.bus)

    def _validate(self, wanted: Destinations) -> None:
        for name in (wanted.channel, *wanted.dead_letters):
            if self.bus.find(name) is None:
                raise SetupError(f"the memory bus has no channel {name!r}, and missing='validate' does not create it")
        if self.bus.find(wanted.channel) not in self.bus.bound(wanted.topic):
            raise SetupError(f"the channel {wanted.channel!r} of the memory bus is not bound to {wanted.topic!r}")
