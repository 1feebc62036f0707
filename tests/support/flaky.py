"""The memory bus as a broker that fails, and counts, as the test says."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Message
from pump.transport_kit.protocol import new_generation
from pump.transports.memory import MemoryConsumer
from support.fates import Crash

if TYPE_CHECKING:
    from support.performers import Performer


class WatchedConsumer(MemoryConsumer):
    """The bus's consumer; it notes messages that were taken back from a consumer that had not given them back."""

    performer: "Performer"

    def _give_back(self, channel: Any, receipts: Sequence[object], unexplained: int) -> int:
        world = self.performer.world
        for receipt in receipts:
            fate = world.fates[self._locked[receipt].header.id]
            fate.unexplained += unexplained
            fate.known_here = fate.known_here or not self.performer.process.dead
        if unexplained and receipts:
            world.calm = False
            world.steady = world.steady and self.performer.process.dead
        return super()._give_back(channel, receipts, unexplained)


class FlakyConsumer:
    """A consumer that fails as the world says, and counts as brokers of its style do."""

    broker_limit: int | None = None

    def __init__(self, performer: "Performer") -> None:
        self.performer: Final = performer
        self.world: Final = performer.world
        self._call("open")
        self._connect()

    def _connect(self) -> None:
        self.generation = new_generation()
        self.inner = WatchedConsumer(self.world.transport.bus, self.world.rules, self.world.lease)
        self.inner.performer = self.performer
        self.inner.generation = self.generation

    def _call(self, call: str, act: Any = None, *arguments: Any) -> Any:
        if self.performer.process.dead:
            raise Crash
        failures = self.world.failures.get(call)
        failure = failures.pop(0) if failures else None
        if failure is not None:
            self.world.trouble()
        if failure == "before":
            raise TransportError(f"{call} failed")
        result = act(*arguments) if act is not None else None
        if failure == "after":
            raise TransportError(f"{call} failed, or did it?")
        return result

    def _settle(self, call: str, act: Callable[..., None], *arguments: Any) -> None:
        for message in arguments[0] if call == "hand_back" else arguments[:1]:
            expires = message.lease_expires
            live = expires is None or self.world.clock.monotonic() < expires
            if message.generation != self.generation or not live:
                alone = self.world.settings.in_flight == 1  # else another task may have come between check and call
                self.world.must(call == "extend" or not alone, f"{call} sent on a void receipt")
                raise LeaseLost("the receipt is void")
        self._call(call, act, *arguments)

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        self._call("receive")
        batch = self.inner.receive(limit, timeout)
        for message in batch:
            self._restyle(message)
        return batch

    def _restyle(self, message: Message) -> None:
        settings = self.world.settings
        if not settings.leases:
            message.lease_expires = None
        if settings.style == "copying":
            message.deliveries -= self.world.copied.get(message.identity, 0)
        if settings.style in {"counting", "copying"}:
            message.unexplained = message.deliveries - 1
        if settings.style == "counting":
            message.attempts = 0
        if settings.style == "uncounted":
            message.deliveries, message.unexplained = 1, 0

    def acknowledge(self, message: Message) -> None:
        self._settle("acknowledge", self._acknowledged, message)

    def _acknowledged(self, message: Message) -> None:
        self.inner.acknowledge(message)
        fate = self.world.fates[message.id]
        ignored = self.world.settings.on_unhandled == "acknowledge" and fate.failed
        self.world.must(fate.completed or ignored, "acknowledged without a run")
        self.world.must(not fate.acknowledged, "acknowledged twice")
        self.world.must(fate.rejection is None, "acknowledged though given up")
        fate.acknowledged = True

    def nack(self, message: Message) -> None:
        self._settle("nack", self.inner.nack, message)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self._settle("requeue", self._requeued, message, delay, attempts)

    def _requeued(self, message: Message, delay: float, attempts: int) -> None:
        behind = message.deliveries + self.world.copied.get(message.identity, 0)
        self.inner.requeue(message, delay, attempts)
        self.world.copied[message.identity] = behind

    def reject(self, message: Message, rejection: Rejection) -> None:
        if self.world.clock.monotonic() < self.world.dead_letters_down_until:
            self.world.trouble()
            raise PublishError("nobody stores dead letters")
        self._settle("reject", self._rejected, message, rejection)

    def _rejected(self, message: Message, rejection: Rejection) -> None:
        self.inner.reject(message, rejection)
        fate = self.world.fates[message.id]
        self.world.must(not fate.acknowledged, "given up though acknowledged")
        self.world.must(fate.rejection is None, "given up twice")
        fate.rejection = rejection

    def extend(self, message: Message) -> None:
        if self.world.clock.monotonic() < self.world.renewal_down_until:
            raise TransportError("renewal failed")
        self._settle("extend", self.inner.extend, message)

    def hand_back(self, messages: Sequence[Message]) -> None:
        self._settle("hand_back", self._handed_back, messages)

    def _handed_back(self, messages: Sequence[Message]) -> None:
        self.inner.hand_back(messages)
        if self.world.settings.hands_back_all:
            self.inner.close()
            self._connect()

    def purge(self) -> int:
        return self.inner.purge()

    def interrupt(self) -> None:
        self.inner.interrupt()

    def close(self) -> None:
        self.inner.close()
        self._call("close")


class AsyncFlakyConsumer:
    """The same, awaiting."""

    def __init__(self, consumer: FlakyConsumer) -> None:
        self._consumer: Final = consumer

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._consumer, name)
        if name in {"generation", "broker_limit", "interrupt"}:
            return member

        async def call(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            return member(*arguments)

        return call
