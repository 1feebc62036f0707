"""Transports of one colour each. They work or fail as the test says, and note each call and its thread."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.clock import Signal, SystemClock
from pump.dead_letter import Rejection
from pump.message import Message
from pump.subscription import Publication, Subscription
from support.channels import capabilities
from support.waiting import LIMIT

CLOCK: Final = SystemClock()


class Peer:
    """The base of both fakes: what comes, what fails, and each call with its thread."""

    generation = 7
    broker_limit: int | None = 20

    def __init__(self) -> None:
        self.batches: list[Sequence[Message]] = []
        self.failures: dict[str, BaseException] = {}
        self.calls: list[tuple[object, ...]] = []
        self.threads: dict[str, str] = {}
        self.interrupted = Signal()
        self.waiting = Signal()
        self.holds: set[str] = set()
        """The names of calls that do not end before `may_go_on` is set."""
        self.may_go_on = Signal()

    def record(self, call: str, *what: object) -> None:
        self.calls.append((call, *what))
        self.threads[call] = threading.current_thread().name
        if call in self.failures:
            raise self.failures[call]

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]


class BlockingPeer(Peer):
    """A consumer, a producer and a transport that block."""

    capabilities: Capabilities = capabilities()

    @classmethod
    def from_url(cls, url: str) -> Self:
        del url
        return cls()

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.record("prepare", subscriptions, publications)

    def consumer(self, subscription: Subscription) -> "BlockingPeer":
        self.record("consumer", subscription)
        return self

    def producer(self) -> "BlockingPeer":
        self.record("producer")
        return self

    def _hold(self, call: str) -> None:
        if call in self.holds:
            CLOCK.wait(self.may_go_on, LIMIT)

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        self.record("receive", limit, timeout)
        self.waiting.set()
        if not self.batches:
            CLOCK.wait(self.interrupted, timeout)
        self.interrupted.clear()
        self._hold("receive")
        return self.batches.pop(0) if self.batches else ()

    def acknowledge(self, message: Message) -> None:
        self._hold("acknowledge")
        self.record("acknowledge", message.id)

    def nack(self, message: Message) -> None:
        self.record("nack", message.id)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self.record("requeue", message.id, delay, attempts)

    def reject(self, message: Message, rejection: Rejection) -> None:
        self.record("reject", message.id, rejection)

    def extend(self, message: Message) -> None:
        self.record("extend", message.id)

    def hand_back(self, messages: Sequence[Message]) -> None:
        self.record("hand_back", *(each.id for each in messages))

    def purge(self) -> int:
        self.record("purge")
        return 3

    def interrupt(self) -> None:
        self.record("interrupt")
        self.interrupted.set()

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        self.record("send", *(each.id for each in messages), delay)

    def close(self) -> None:
        self._hold("close")
        self.record("close")


class AwaitingPeer(Peer):
    """A consumer, a producer and a transport that await."""

    capabilities: Capabilities = capabilities()

    @classmethod
    def from_url(cls, url: str) -> Self:
        del url
        return cls()

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        self.record("prepare", subscriptions, publications)

    async def async_consumer(self, subscription: Subscription) -> "AwaitingPeer":
        self.record("consumer", subscription)
        return self

    async def async_producer(self) -> "AwaitingPeer":
        self.record("producer")
        return self

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        self.record("receive", limit, timeout)
        self.waiting.set()
        if not self.batches:
            await CLOCK.wait_async(self.interrupted, timeout)
        return self.batches.pop(0) if self.batches else ()

    async def acknowledge(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.record("acknowledge", message.id)

    async def nack(self, message: Message) -> None:
        self.record("nack", message.id)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self.record("requeue", message.id, delay, attempts)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        self.record("reject", message.id, rejection)

    async def extend(self, message: Message) -> None:
        self.record("extend", message.id)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        self.record("hand_back", *(each.id for each in messages))

    async def purge(self) -> int:
        self.record("purge")
        return 3

    def interrupt(self) -> None:
        self.record("interrupt")
        self.interrupted.set()

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        self.record("send", *(each.id for each in messages), delay)

    async def close(self) -> None:
        self.record("close")
