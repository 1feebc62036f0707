"""A channel of either colour over a consumer that works, or fails, as the test says."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from itertools import count
from typing import Any, Final, TypeVar

from pump.capabilities import Capabilities
from pump.clock import Clock, ManualClock, Signal
from pump.colour import Colour
from pump.dead_letter import Rejection
from pump.ledger import Ledger
from pump.message import Message
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.settling import Verdict
from pump.telemetry import Telemetry
from pump.transport_kit.protocol import new_generation
from pump.verdict import Judge
from support.court import message, rules

Result = TypeVar("Result")

COLOURS: Final[tuple[Colour, ...]] = ("blocking", "awaiting")
FEATURES: Final = ("nack", "blocks", "requeue", "nack_keeps_place", "hands_back", "largest_body")
"""The capabilities that a line's options may set."""
REJECTION: Final = Rejection("delivery error", "failed")


def capabilities(**options: Any) -> Capabilities:
    defaults = {
        "system": "script",
        "nack": "releases",
        "blocks": "nothing",
        "requeue": "same",
        "counts_deliveries": True,
        "carries_attempts": True,
        "durable": False,
        "leases": True,
        "delayed_publish": False,
    }
    return Capabilities(**{**defaults, **options})


class Script:
    """A broker: the messages that it holds, the calls that fail next, and a record of all calls."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Final = clock
        self.lease: float | None = 30.0
        self.hands_back_all = False
        self.broker_limit: int | None = None
        self.failures: Final[dict[str, deque[BaseException | None]]] = {}
        self.broken: Final[dict[str, BaseException]] = {}
        """The calls that fail every time, until they are removed here."""
        self.calls: Final[list[str]] = []
        self.consumers: Final[list[ScriptedConsumer]] = []
        self._waiting: Final[deque[tuple[str, dict[str, Any]]]] = deque()
        self._receipts: Final = count(1)

    def put(self, *names: str, **options: Any) -> None:
        """Messages that the next receives bring."""
        self._waiting.extend((name, dict(options)) for name in names)

    def fail(self, call: str, *errors: BaseException | None) -> None:
        """The errors that the next calls of this name raise; None lets one call pass."""
        self.failures.setdefault(call, deque()).extend(errors)

    def open(self) -> "ScriptedConsumer":
        self.note("open")
        self.consumers.append(ScriptedConsumer(self))
        return self.consumers[-1]

    def note(self, call: str, *what: object) -> None:
        """Record a call, and raise if it must fail; then it is not carried out."""
        failures = self.failures.get(call)
        error = failures.popleft() if failures else self.broken.get(call)
        self.calls.append(" ".join([call + ("!" if error else ""), *map(str, what)]))
        if error is not None:
            raise error

    def take(self, limit: int, generation: int) -> list[Message]:
        batch: list[Message] = []
        while self._waiting and len(batch) < limit:
            name, options = self._waiting.popleft()
            lease = options.pop("lease", self.lease)
            expires = None if lease is None else self.clock.monotonic() + lease
            batch.append(
                message(
                    name,
                    **{"receipt": next(self._receipts), "generation": generation, "lease_expires": expires, **options},
                )
            )
        return batch

    def done(self, *calls: str) -> list[str]:
        """The calls with these names; by default all calls that are about messages."""
        quiet = {"open", "receive", "close", "interrupt"}
        return [
            call
            for call in self.calls
            if (call.split()[0].rstrip("!") in calls if calls else call.split()[0] not in quiet)
        ]


class ScriptedConsumer:
    """One life of a consumer."""

    def __init__(self, script: Script) -> None:
        self.script: Final = script
        self.generation = new_generation()
        self.closed = False

    @property
    def broker_limit(self) -> int | None:
        return self.script.broker_limit

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        self.script.note("receive", limit)
        batch = self.script.take(limit, self.generation)
        if not batch:
            self.script.clock.wait(Signal(), timeout)
        return batch

    def acknowledge(self, message: Message) -> None:
        self.script.note("acknowledge", message.id)

    def nack(self, message: Message) -> None:
        self.script.note("nack", message.id)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self.script.note("requeue", message.id, delay, attempts)

    def reject(self, message: Message, rejection: Rejection) -> None:
        self.script.note("reject", message.id, rejection.reason)

    def extend(self, message: Message) -> None:
        self.script.note("extend", message.id)
        message.lease_expires = self.script.clock.monotonic() + (self.script.lease or 0.0)

    def hand_back(self, messages: Sequence[Message]) -> None:
        self.script.note("hand_back", *(each.id for each in messages))
        if self.script.hands_back_all:
            self.generation = new_generation()

    def purge(self) -> int:
        self.script.note("purge")
        return 7

    def interrupt(self) -> None:
        self.script.note("interrupt")

    def close(self) -> None:
        self.closed = True
        self.script.note("close")


class AsyncScriptedConsumer:
    """The same, awaiting: each call lets other tasks run once before it does anything."""

    def __init__(self, consumer: ScriptedConsumer) -> None:
        self._consumer: Final = consumer

    @property
    def generation(self) -> int:
        return self._consumer.generation

    @property
    def broker_limit(self) -> int | None:
        return self._consumer.broker_limit

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        await asyncio.sleep(0)
        return self._consumer.receive(limit, timeout)

    async def acknowledge(self, message: Message) -> None:
        await asyncio.sleep(0)
        self._consumer.acknowledge(message)

    async def nack(self, message: Message) -> None:
        await asyncio.sleep(0)
        self._consumer.nack(message)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        await asyncio.sleep(0)
        self._consumer.requeue(message, delay, attempts)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        await asyncio.sleep(0)
        self._consumer.reject(message, rejection)

    async def extend(self, message: Message) -> None:
        await asyncio.sleep(0)
        self._consumer.extend(message)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        await asyncio.sleep(0)
        self._consumer.hand_back(messages)

    async def purge(self) -> int:
        await asyncio.sleep(0)
        return self._consumer.purge()

    def interrupt(self) -> None:
        self._consumer.interrupt()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._consumer.close()


class Line:
    """A channel of one colour, whose calls look as if they blocked, on a clock that moves when the test waits."""

    def __init__(self, colour: Colour, **options: Any) -> None:
        features = {name: options.pop(name) for name in FEATURES if name in options}
        listeners = options.pop("listeners", ())
        self.colour: Final = colour
        self.clock: Final = ManualClock(automatic=True)
        self.script: Final = Script(self.clock)
        self.events: Final[list[str]] = []
        self.rules: Final = rules(**options)
        self.ledger: Final = Ledger(self.clock)
        self.log: Final = PumpLog("samples", Telemetry(lambda event, _: self.events.append(event), *listeners))
        self.judge: Final = Judge(self.rules, self.ledger, self.clock, self.log, chance=lambda: 0.0)
        self.loop: Final = asyncio.new_event_loop() if colour == "awaiting" else None
        parts = (capabilities(**features), self.judge)
        self.channel: Final[Channel | AsyncChannel] = (
            Channel(self.script.open, *parts) if self.loop is None else AsyncChannel(self._open, *parts)
        )

    async def _open(self) -> AsyncScriptedConsumer:
        await asyncio.sleep(0)
        return AsyncScriptedConsumer(self.script.open())

    def run(self, result: Result | Coroutine[Any, Any, Result]) -> Result:
        """The result of a call, awaited if it has to be."""
        if self.loop is None:
            assert not asyncio.iscoroutine(result)
            return result
        assert asyncio.iscoroutine(result)
        ended: Result = self.loop.run_until_complete(result)
        return ended

    def advance(self, delay: float) -> None:
        """Move the clock, and let everything run that comes due."""
        self.clock.advance(delay)
        if self.loop is not None:
            for _ in range(10):
                self.loop.run_until_complete(asyncio.sleep(0))

    def receive(self, timeout: float = 0.3) -> Message | None:
        return self.run(self.channel.receive(timeout))

    def receive_one(self, within: float = 30.0, timeout: float = 0.3) -> Message:
        """The next message that comes in time."""
        deadline = self.clock.monotonic() + within
        while (received := self.receive(timeout)) is None:
            assert self.clock.monotonic() < deadline
        return received

    def warm_up(self, size: int = 8) -> None:
        """Let the buffer grow: handle some messages with success."""
        while self.channel._intake.size < size:
            self.script.put("warm", lease=None)
            self.acknowledge(self.receive_one())
        self.script.calls.clear()

    def acknowledge(self, message: Message) -> None:
        self.run(self.channel.acknowledge(message))

    def nack(self, message: Message, delay: float = 0.0) -> None:
        self.run(self.channel.nack(message, delay))

    def requeue(self, message: Message, delay: float = 1.0, attempts: int = 1) -> None:
        self.run(self.channel.requeue(message, delay, attempts))

    def reject(self, message: Message) -> None:
        self.run(self.channel.reject(message, REJECTION))

    def hand_back(self, message: Message) -> None:
        self.run(self.channel.hand_back(message))

    def leave_unsettled(self, message: Message) -> None:
        self.run(self.channel.leave_unsettled(message))

    def extend(self, message: Message) -> None:
        self.run(self.channel.extend(message))

    def settle(self, verdict: str, message: Message) -> None:
        """One of the verdicts, by name."""
        getattr(self, verdict)(message)

    def carry_out(self, verdict: Verdict, message: Message) -> None:
        if isinstance(self.channel, Channel):
            verdict.settle(self.channel, message)
        else:
            assert self.loop is not None
            self.loop.run_until_complete(_awaited(verdict.settle(self.channel, message)))

    def purge(self) -> int:
        return self.run(self.channel.purge())

    def finish(self, timeout: float) -> None:
        self.run(self.channel.finish(timeout))

    def close(self) -> None:
        self.run(self.channel.close())

    @property
    def in_hand(self) -> str:
        return " ".join(each.id for each in self.channel.in_hand)

    @property
    def waiting(self) -> str:
        return " ".join(each.id for each in self.channel._intake.waiting)

    def end(self) -> None:
        """Close everything."""
        self.close()
        if self.loop is not None:
            for _ in range(3):
                self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


async def _awaited(settling: Awaitable[None]) -> None:
    await settling
