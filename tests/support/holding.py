"""A transport whose broker has no nack, like logs and sessions: it proves the other half of the contract."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.errors import PublishError, TransportError
from pump.message import ATTEMPTS_HEADER, Header, Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.protocol import Consumer, Producer
from pump.transports.memory import MemoryConsumer, MemoryProducer, MemoryTransport

GARBAGE: Final = "application/garbage"

HOLDS = Capabilities(
    system="holding",
    nack="holds",
    blocks="partition",
    requeue="hold",
    counts_deliveries=False,
    carries_attempts=False,
    keeps_held_attempts=False,
    durable=True,
    leases=False,
    delayed_publish=False,
    purges=False,
    waits=False,
    hands_back="all",
    largest_body=2_000,
    largest_headers=10_000,
)
"""The least that a transport may be able to do."""

COPIES = replace(HOLDS, blocks="nothing", requeue="copy", carries_attempts=True, purges=True, waits=True)
"""Defers by copies to its own channel; no message waits behind a held one."""


class HoldingTransport:
    """A memory transport that uses less than its broker can do."""

    def __init__(self, capabilities: Capabilities, clock: Clock) -> None:
        self.capabilities: Capabilities = capabilities
        self.memory: Final = MemoryTransport(clock=clock, ack_timeout=inf)

    @classmethod
    def from_url(cls, url: str) -> Self:
        raise NotImplementedError

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.memory.prepare(subscriptions, publications)

    def consumer(self, subscription: Subscription) -> Consumer:
        unleased = replace(subscription, lease=None)
        return _Consumer(self.memory.consumer(unleased), self.memory, unleased, self.capabilities)

    def producer(self) -> Producer:
        return _Producer(self.memory.producer(), self.capabilities)

    def send_garbage(self, topic: str, body: bytes) -> None:
        """Send a message that its consumers cannot read."""
        self.memory.producer().send([Message(Header("", topic, content_type=GARBAGE), body)])


class _Consumer:
    broker_limit: int | None = None

    def __init__(
        self, consumer: MemoryConsumer, memory: MemoryTransport, subscription: Subscription, can: Capabilities
    ) -> None:
        self.generation = consumer.generation
        self._consumer = consumer
        self._memory: Final = memory
        self._subscription: Final = subscription
        self._can: Final = can

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        return [self._known(each) for each in self._consumer.receive(limit, timeout if self._can.waits else 0.0)]

    def _known(self, message: Message) -> Message:
        """The message as a broker that counts nothing would deliver it."""
        headers = dict(message.header.headers)
        attempts = int(headers.pop(ATTEMPTS_HEADER, "0"))
        garbage = message.header.content_type == GARBAGE
        return Message(
            message.header._replace(headers=headers),
            message.body,
            identity=message.identity,
            receipt=message.receipt,
            generation=message.generation,
            attempts=attempts,
            partition=None if self._can.blocks == "nothing" else message.header.key or "",
            fault="it is garbage" if garbage else "",
        )

    def acknowledge(self, message: Message) -> None:
        self._consumer.acknowledge(message)

    def nack(self, message: Message) -> None:
        raise AssertionError("nack is not called where capabilities say that it holds")

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        if self._can.requeue == "hold":
            raise AssertionError("requeue is not called where capabilities say that it holds")
        self._consumer.extend(message)  # LeaseLost, before there is a copy, if it was settled already
        headers = {**message.header.headers, ATTEMPTS_HEADER: str(attempts)}
        with self._memory.bus.lock:
            channel = self._memory.bus.find(self._subscription.channel)
            assert channel is not None
            due = self._memory.bus.clock.monotonic() + delay if delay > 0 else None
            channel.add(message.header._replace(headers=headers), message.body, due, identity=message.identity)
        self._consumer.acknowledge(message)

    def reject(self, message: Message, rejection: Rejection) -> None:
        self._consumer.reject(message, rejection)

    def extend(self, message: Message) -> None:
        """There is nothing to extend."""

    def hand_back(self, messages: Sequence[Message]) -> None:
        """All of them go back, also those in hand; and so what was received before is void."""
        self._consumer.hand_back(messages)
        self._consumer.close()
        self._consumer = self._memory.consumer(self._subscription)
        self.generation = self._consumer.generation

    def purge(self) -> int:
        if not self._can.purges:
            raise TransportError("this transport cannot purge")
        return self._consumer.purge()

    def interrupt(self) -> None:
        self._consumer.interrupt()

    def close(self) -> None:
        self._consumer.close()


class _Producer:
    def __init__(self, producer: MemoryProducer, can: Capabilities) -> None:
        self._producer: Final = producer
        self._can: Final = can

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        if delay > 0:
            raise PublishError("this transport sends nothing later", sent=False, retriable=False)
        for message in messages:
            headers = sum(len(each.encode()) for item in message.header.headers.items() for each in item)
            if len(message.body) > (self._can.largest_body or inf) or headers > (self._can.largest_headers or inf):
                raise PublishError(f"message {message.id} is too large", sent=False, retriable=False)
        self._producer.send(messages)

    def close(self) -> None:
        self._producer.close()
