"""The contract on the memory bus: natively, over the bridges, and as a transport with less to offer would keep it."""

from collections.abc import Sequence
from typing import Final, Self

import pytest

from pump.clock import Clock, ManualClock, SystemClock
from pump.subscription import Publication, Subscription
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import (
    AsyncConsumer,
    AsyncProducer,
    AwaitingTransport,
    BlockingTransport,
    Consumer,
    Producer,
    Transport,
)
from pump.transports.memory import MemoryConsumer, MemoryTransport
from support.holding import COPIES, HOLDS, HoldingTransport


class OneColour:
    """A memory transport that hides one of its colours."""

    def __init__(self, clock: Clock) -> None:
        self.memory: Final = MemoryTransport(clock=clock)
        self.capabilities = self.memory.capabilities

    @classmethod
    def from_url(cls, url: str) -> Self:
        raise NotImplementedError


class OnlyBlocking(OneColour):
    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.memory.prepare(subscriptions, publications)

    def consumer(self, subscription: Subscription) -> Consumer:
        return self.memory.consumer(subscription)

    def producer(self) -> Producer:
        return self.memory.producer()


class OnlyAwaiting(OneColour):
    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        await self.memory.async_prepare(subscriptions, publications)

    async def async_consumer(self, subscription: Subscription) -> AsyncConsumer:
        return await self.memory.async_consumer(subscription)

    async def async_producer(self) -> AsyncProducer:
        return await self.memory.async_producer()


class MemoryContract(TransportContract):
    """The contract without real waits: the waiting code itself moves the clock."""

    @pytest.fixture
    def clock(self) -> Clock:
        return ManualClock(automatic=True)

    def memory_of(self, transport: Transport) -> MemoryTransport:
        if isinstance(transport, MemoryTransport):
            return transport
        assert isinstance(transport, OneColour | HoldingTransport)
        return transport.memory

    def break_connection(self, transport: Transport) -> None:
        bus = self.memory_of(transport).bus
        for name in bus.channels():
            with bus.lock:
                channel = bus.find(name)
                consumers = list(channel.consumers) if channel else []
            for consumer in consumers:
                assert isinstance(consumer, MemoryConsumer)
                consumer.close()

    def restart_broker(self, transport: Transport) -> None:
        if not transport.capabilities.durable:
            pytest.skip("the bus ends with its process")
        self.break_connection(transport)

    def in_another_process(self, transport: Transport) -> str:
        if transport.capabilities.between_processes:
            pytest.skip("no other process reaches this bus")
        return "from pump.transports.memory import MemoryTransport\ntransport = MemoryTransport.from_url('memory://a')"


class TestMemory(MemoryContract):
    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return MemoryTransport(clock=clock)


@pytest.mark.long
class TestMemoryInRealTime(MemoryContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()

    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return MemoryTransport(clock=clock)


class TestBlockingMemory(MemoryContract):
    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return OnlyBlocking(clock)


class TestAwaitingMemory(MemoryContract):
    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return OnlyAwaiting(clock)


class TestMemoryInOrder(TestMemory):
    ordered = True


class TestHolding(MemoryContract):
    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return HoldingTransport(HOLDS, clock)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        assert isinstance(transport, HoldingTransport)
        transport.send_garbage(topic, b"\xff\xfe no sense")
        return b"\xff\xfe no sense"


class TestHoldingWithCopies(TestHolding):
    @pytest.fixture
    def transport(self, clock: Clock) -> Transport:
        return HoldingTransport(COPIES, clock)


class TestHoldingInOrder(TestHolding):
    ordered = True


def test_the_bridges_are_what_is_tested() -> None:
    clock = ManualClock()

    assert not isinstance(OnlyBlocking(clock), AwaitingTransport)
    assert not isinstance(OnlyAwaiting(clock), BlockingTransport)
