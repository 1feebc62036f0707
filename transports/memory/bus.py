"""The bus behind the memory transport: topics, and the channels that keep their messages in order."""

import os
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Final

from pump.clock import Clock, SystemClock
from pump.errors import PublishError
from pump.message import Header, Message

if TYPE_CHECKING:
    from pump.transports.memory.transport import MemoryConsumer


class BusMessage:
    """One message of one channel, as the bus stores it. Each delivery is a copy of it."""

    __slots__ = ("attempts", "body", "deliveries", "expires", "header", "identity", "place", "unexplained")

    def __init__(self, header: Header, body: bytes, identity: str, place: int) -> None:
        self.header = header
        self.body = body
        self.identity = identity
        self.place = place
        self.deliveries = 0
        self.unexplained = 0
        self.attempts = 0
        self.expires = inf

    def learn(self, attempts: int) -> None:
        """Record how many attempts were counted; they explain all deliveries so far."""
        if attempts > self.attempts:
            self.attempts, self.unexplained = attempts, 0

    def copy(self, receipt: object = None, generation: int = 0, lease_expires: float | None = None) -> Message:
        """A delivery of the message; without a receipt, a copy that only shows it."""
        return Message(
            self.header,
            self.body,
            identity=self.identity,
            receipt=receipt,
            generation=generation,
            deliveries=self.deliveries,
            attempts=self.attempts,
            unexplained=self.unexplained,
            lease_expires=lease_expires,
            position=self.place,
        )


class BusChannel:
    """The messages that wait or are due later, and the consumers. Every method is called with the bus's lock held."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumers: set[MemoryConsumer] = set()
        self.waiting: dict[MemoryConsumer, None] = {}
        self.next_due = inf
        """When the next delay or lease ends, or earlier. A consumer waits no longer than until then."""
        self.returned: list[tuple[int, BusMessage]] = []
        """Messages given back, by place. They come before the new ones, since they were received before those."""
        self.new: deque[BusMessage] = deque()
        self.scheduled: list[tuple[float, int, BusMessage]] = []
        self._places = count(1)

    @property
    def pending(self) -> int:
        """How many messages can be received now."""
        return len(self.returned) + len(self.new)

    def add(self, header: Header, body: bytes, due: float | None = None, *, identity: str = "") -> None:
        """Add a new message at the tail, now or when it is due. A copy of a message gets the original's identity."""
        place = next(self._places)
        entry = BusMessage(header, body, identity or f"{self.name}/{place}", place)
        if due is None:
            self.new.append(entry)
            self.wake(1)
        else:
            self.schedule(entry, due)

    def append(self, entry: BusMessage) -> None:
        """Move a message to the tail."""
        entry.place = next(self._places)
        self.new.append(entry)

    def put_back(self, entry: BusMessage) -> None:
        """Put a message back at its old place, before all messages that were not received yet."""
        heappush(self.returned, (entry.place, entry))

    def schedule(self, entry: BusMessage, due: float) -> None:
        """Move a message to the tail when it is due."""
        heappush(self.scheduled, (due, next(self._places), entry))
        self.expect(due)

    def pop(self) -> BusMessage:
        """Remove and return the first message that can be received."""
        return heappop(self.returned)[1] if self.returned else self.new.popleft()

    def expect(self, due: float) -> None:
        """Note when the next delay or lease ends; wake the consumers that would wait longer than that."""
        if due < self.next_due:
            self.next_due = due
            self.wake(len(self.waiting))

    def wake(self, number: int) -> None:
        """Wake the consumers that have waited longest, one for each message that became receivable."""
        if self.waiting:
            for consumer in list(islice(self.waiting, number)):
                del self.waiting[consumer]
                consumer.woken.set()

    def pass_time(self, now: float) -> None:
        """Make the messages receivable that are due, or whose lease has expired, by now."""
        if now < self.next_due:
            return
        while self.scheduled and self.scheduled[0][0] <= now:
            self.append(heappop(self.scheduled)[2])
        expiries = [consumer.expire(self, now) for consumer in self.consumers]
        self.next_due = min([self.scheduled[0][0] if self.scheduled else inf, *expiries])

    def purge(self) -> int:
        """Remove the messages that wait or are due later; returns how many they were."""
        number = self.pending + len(self.scheduled)
        self.returned.clear()
        self.new.clear()
        self.scheduled.clear()
        return number


class MemoryBus:
    """The channels, the topics that they are bound to, one clock and one lock: memory transports may share a bus.

    A message sent to a topic goes to every channel bound to it. Tests may ask for the messages of a channel by its
    name; a channel that does not exist has none. The methods that take or return a channel are for transports.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Final[Clock] = SystemClock() if clock is None else clock
        self.lock = Lock()
        """To be held while a channel is used."""
        self._process = 0
        """The id of the process that uses the bus; 0 before the first use."""
        self._channels: Final[dict[str, BusChannel]] = {}
        self._topics: Final[dict[str, tuple[BusChannel, ...]]] = {}

    def claim(self) -> None:
        """Use the bus in this process. A forked child empties its copy, since the messages in it are the parent's."""
        if self._process not in {0, os.getpid()}:
            self.lock = Lock()
            self._channels.clear()
            self._topics.clear()
        self._process = os.getpid()

    def channels(self) -> Sequence[str]:
        """The names of all channels."""
        with self.lock:
            return tuple(self._channels)

    def pending(self, channel: str) -> int:
        """How many messages of the channel can be received now."""
        with self.lock:
            return self._at_present(channel).pending

    def locked(self, channel: str) -> int:
        """How many messages of the channel its consumers have received and not settled."""
        with self.lock:
            return sum(consumer.in_hand for consumer in self._at_present(channel).consumers)

    def scheduled(self, channel: str) -> int:
        """How many messages of the channel are due later."""
        with self.lock:
            return len(self._at_present(channel).scheduled)

    def messages(self, channel: str) -> Sequence[Message]:
        """Copies of the messages that can be received from the channel now, in order."""
        with self.lock:
            found = self._at_present(channel)
            entries = [entry for _, entry in sorted(found.returned)] + list(found.new)
            return tuple(entry.copy() for entry in entries)

    def find(self, name: str) -> BusChannel | None:
        """The channel, or None. Call it with the lock held."""
        return self._channels.get(name)

    def bound(self, topic: str) -> Sequence[BusChannel]:
        """The channels that are bound to the topic. Call it with the lock held."""
        return self._topics.get(topic, ())

    def declare(self, name: str, topic: str | None = None) -> BusChannel:
        """The channel, created if missing, and bound to the topic if one is given. Call it with the lock held."""
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = BusChannel(name)
        if topic is not None and channel not in self.bound(topic):
            self._topics[topic] = (*self.bound(topic), channel)
        return channel

    def publish(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Send each message to every channel bound to its topic: all of them, or none and a PublishError."""
        if self._process not in {0, os.getpid()}:  # before the lock: at the fork a thread may have held it
            raise PublishError(
                f"nothing was sent: the memory bus is in the process {self._process}, and this is a child of it: post "
                "there, or use a transport that other processes reach, such as sqlite:///shop.db",
                sent=False,
                retriable=False,
            )
        with self.lock:
            try:
                routes = [self._topics[message.header.topic] for message in messages]
            except KeyError as error:
                raise PublishError(
                    f"nothing was sent: no channel of the memory bus is bound to the topic {error.args[0]!r}, so "
                    "nobody would receive it: add a Subscription to it, and start that before posting",
                    sent=False,
                    retriable=False,
                ) from None
            now = self.clock.monotonic()
            due = now + delay if delay > 0 else None
            for channel in {channel for route in routes for channel in route}:
                channel.pass_time(now)  # messages that are due already come before these
            for message, route in zip(messages, routes, strict=True):
                for channel in route:
                    channel.add(message.header, message.body, due)

    def _at_present(self, name: str) -> BusChannel:
        channel = self._channels.get(name)
        if channel is None:
            return BusChannel(name)
        channel.pass_time(self.clock.monotonic())
        return channel
