"""Real pumps that run for a few turns at a time, and handlers that do as the test says."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pump.message import Message
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.settling import Verdict
from pump.telemetry import Telemetry
from pump.verdict import Judge
from support.fates import ERRORS, FAILING, Crash, Outcome
from support.flaky import AsyncFlakyConsumer, FlakyConsumer

if TYPE_CHECKING:
    from support.world import Process

NATURE: Final = {"k": "crash", "p": "error"}
"""What a handler always does with messages whose names begin with this letter."""
LONGEST_STEP: Final = 60
"""How often a pump may check, in one step, whether it still runs."""


class Performer:
    """A judge, a channel and a pump, which run for a few turns at a time."""

    def __init__(self, process: "Process") -> None:
        world = self.world = process.world
        self.process: Final = process
        self.busy = False
        self.turns = self.spins = 0
        self.script: list[Outcome] = []
        self.consumers: Final[list[FlakyConsumer]] = []
        self.judge: Final = StepwiseJudge(self)
        parts = (world.capabilities, self.judge)
        self.channel: Final = (
            StepwiseChannel(self._open, *parts)
            if world.loop is None
            else AsyncStepwiseChannel(self._open_async, *parts)
        )
        self.channel.performer = self
        self.pump: Final = self._pump()

    def _pump(self) -> Reactor | Proactor:
        world = self.world
        if isinstance(self.channel, StepwiseChannel):
            return Reactor(self.channel, self.dispatch)
        kind = ConcurrentProactor if world.settings.pump == "concurrent" else Proactor
        return kind(self.channel, self.dispatch_async)

    def _open(self) -> "FlakyConsumer":
        self.consumers.append(FlakyConsumer(self))
        return self.consumers[-1]

    async def _open_async(self) -> "AsyncFlakyConsumer":
        return AsyncFlakyConsumer(self._open())

    # -- stepping

    def _begin(self, outcomes: Sequence[Outcome]) -> None:
        self.busy, self.script = True, list(outcomes)
        self.turns, self.spins = len(outcomes), LONGEST_STEP

    def goes_on(self) -> bool:
        self.spins -= 1
        return not self.process.dead and self.turns > 0 and self.spins > 0

    def step(self, outcomes: Sequence[Outcome]) -> None:
        self._begin(outcomes)
        try:
            assert isinstance(self.pump, Reactor)
            self.pump.run()
        except Crash:
            assert self.process.dead
        finally:
            self.busy = False

    async def step_async(self, outcomes: Sequence[Outcome]) -> None:
        self._begin(outcomes)
        try:
            assert isinstance(self.pump, Proactor)
            await self.pump.run()
        except Crash:
            assert self.process.dead
        finally:
            self.busy = False

    # -- handling

    def dispatch(self, message: Message) -> object:
        outcome = self._started(message)
        self.world.clock.advance(outcome.takes)
        other = self.process.other_than(self)
        if outcome.meanwhile and other is not None:
            other.step(outcome.meanwhile)
        return self._ended(message, outcome)

    async def dispatch_async(self, message: Message) -> object:
        outcome = self._started(message)
        for _ in range(outcome.gives_way):
            await asyncio.sleep(0)
        self.world.clock.advance(outcome.takes)
        self._note_stood()
        other = self.process.other_than(self)
        if outcome.meanwhile and other is not None:
            await other.step_async(outcome.meanwhile)
        return self._ended(message, outcome)

    def _note_stood(self) -> None:
        """The loop stood still: no lease of any performer's message could be renewed meanwhile."""
        now = self.world.clock.monotonic()
        for performer in self.process.performers:
            for message in performer.channel.in_hand:
                stood = self.world.fates[message.id].stood
                if (message.lease_expires or now + 1) <= now and not any(each is message for each in stood):
                    stood.append(message)

    def _started(self, message: Message) -> Outcome:
        if self.process.dead:
            raise Crash
        world, fate = self.world, self.world.fates[message.id]
        now = world.clock.monotonic()
        alone = world.settings.in_flight == 1
        world.must(not fate.acknowledged, "what was acknowledged comes again")
        world.must(fate.rejection is None, "what was given up comes again")
        world.must(
            not alone or message.lease_expires is None or message.lease_expires > now, "begun when it had lapsed"
        )
        world.must(message.generation == self.consumers[-1].generation, "begun though another connection brought it")
        fate.runs += 1
        world.starts.append(message.id)
        outcome = self.script.pop(0) if self.script else Outcome()
        kind = message.id[0]
        return outcome if world.healed and kind == "p" else replace(outcome, ends=NATURE.get(kind, outcome.ends))

    def _ended(self, message: Message, outcome: Outcome) -> object:
        if self.process.dead:
            raise Crash
        fate = self.world.fates[message.id]
        if outcome.ends == "return":
            fate.completed += 1
            return None
        if outcome.ends == "crash":
            fate.crashes += 1
            self._must_be_alone(message)
            self.world.calm = False
            self.process.die()
            raise Crash
        fate.failed += outcome.ends in FAILING
        fate.decisions.add(outcome.ends)
        if outcome.ends == "KeyboardInterrupt":
            self.world.trouble()
        make = ERRORS[outcome.ends]
        raise make()

    def _must_be_alone(self, message: Message) -> None:
        if message.unexplained and self.judge.suspect(message):
            self.world.must(self.channel.in_hand == (message,), "a suspect was not alone in hand")
            self.world.must(len(self.channel._intake) == 1, "something waited beside a suspect")
            hand = None if self.process.guard is None else self.process.guard.hand
            self.world.must(hand is None or hand.full <= 1, "another performer's message was in hand beside a suspect")

    # -- ending

    def vanish(self) -> None:
        """End this life without clean-up; its messages stay locked until their locks lapse."""
        if self.channel._stop_renewing is not None:
            self.channel._stop_renewing()
        if not self.world.settings.leases:
            for consumer in self.consumers:
                consumer.inner.close()

    def end(self) -> None:
        """End it as a stop ends a pump."""
        if isinstance(self.channel, StepwiseChannel):
            self.channel.really_close()
        else:
            self.world.run(self.channel.really_close())


class StepwiseJudge(Judge):
    """The judge of a pump that pauses after a number of turns."""

    def __init__(self, performer: Performer) -> None:
        world = performer.world
        process, log = performer.process, PumpLog("orders", Telemetry())
        super().__init__(world.rules, process.ledger, world.clock, log, guard=process.guard)
        self.performer: Final = performer

    @property
    def running(self) -> bool:
        return super().running and self.performer.goes_on()

    def failed(self, message: Message, error: BaseException) -> Verdict:
        if isinstance(error, Crash) or self.performer.process.dead:
            raise Crash
        return super().failed(message, error)


class StepwiseChannel(Channel):
    """A channel that stays open between the steps."""

    performer: Performer

    def take(self) -> Message | None:
        message = super().take()
        self.performer.turns -= message is not None
        return message

    def finish(self, timeout: float) -> None:
        """Not yet."""

    def close(self) -> None:
        """Not yet."""

    def really_close(self) -> None:
        super().close()


class AsyncStepwiseChannel(AsyncChannel):
    """The same, awaiting."""

    performer: Performer

    def take(self) -> Message | None:
        message = super().take()
        self.performer.turns -= message is not None
        return message

    async def finish(self, timeout: float) -> None:
        """Not yet."""

    async def close(self) -> None:
        """Not yet."""

    async def really_close(self) -> None:
        await super().close()
