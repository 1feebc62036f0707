"""The performers of one channel, and what they share: the router, the ledger and the log."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import ConfigurationError
from pump.handling.dispatch import AsyncDispatch, Dispatch, DispatchSettings, Router
from pump.ledger import Ledger
from pump.program.performer import Performer, PerformerState, ProactorPerformer, ReactorPerformer
from pump.program.plan import Plan
from pump.program.processor import CommandProcessor
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import Transport
from pump.verdict import Judge


class PerformerGroup:
    """All performers of one channel in one dispatcher."""

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        plan: Plan,
        transport: Transport,
        settings: DispatchSettings,
        processor: CommandProcessor,
        loop: asyncio.AbstractEventLoop | None,
        ended: Callable[[], None],
        names: Iterator[int],
    ) -> None:
        self.plan: Final = plan
        self._transport: Final = transport
        self._clock: Final = settings.clock
        self._loop: Final = loop
        self._ended: Final = ended
        self._names: Final = names
        self._log: Final = PumpLog(plan.rules.channel, settings.telemetry)
        self._ledger: Final = Ledger(settings.clock)
        self._router: Final = Router(plan.rules, plan.handlers, settings, processor)
        self._empty_delay: Final = 0.0 if transport.capabilities.waits else seconds(plan.rules.empty_delay)
        self._lock: Final = threading.Lock()
        self._performers: list[Performer[Any]] = []
        self._leaving: list[Performer[Any]] = []
        self._paused = False

    # -- control

    def scale(self, performers: int) -> None:
        """Have this many performers from now on; those that are too many finish what they have in hand."""
        if performers < 0:
            raise ConfigurationError(f"channel {self.plan.rules.channel} cannot have {performers} performers")
        rules = self.plan.rules
        if performers > 1 and rules.ordered and not self._transport.capabilities.shards_by_key:
            raise ConfigurationError(f"channel {rules.channel} is ordered: it can have only one performer")
        with self._lock:
            new = [self._performer() for _ in range(performers - len(self._performers))]
            self._performers += new
            surplus, self._performers = self._performers[performers:], self._performers[:performers]
            self._leaving = [each for each in self._leaving if not each.finished.is_set()] + surplus
        for performer in new:
            performer.start()
        for performer in surplus:
            performer.stop()

    def restart(self) -> None:
        """Replace every performer by a new one."""
        count = len(self._performers)
        self.scale(0)
        self.scale(count)

    def pause(self) -> None:
        """Handle no further message until resumed."""
        self._paused = True
        for performer in self._all:
            performer.pause()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        for performer in self._all:
            performer.resume()

    def stop(self) -> None:
        """Ask every performer to stop."""
        for performer in self._all:
            performer.stop()

    def give_up(self) -> None:
        """The grace is over: tell the handlers that still run to end."""
        for performer in self._all:
            if not performer.finished.is_set():
                performer.give_up()

    # -- what is known

    @property
    def _all(self) -> Sequence[Performer[Any]]:
        with self._lock:
            return (*self._performers, *self._leaving)

    @property
    def states(self) -> Sequence[PerformerState]:
        """What every performer is doing now, without those that are being stopped by `scale`."""
        with self._lock:
            return [performer.state for performer in self._performers]

    @property
    def unfinished(self) -> Sequence[str]:
        """The names of the performers that have not ended."""
        return [performer.name for performer in self._all if not performer.finished.is_set()]

    def finish(self, timeout: float, clock: Clock) -> None:
        """Block until every performer has ended, or the time is over."""
        deadline = clock.monotonic() + timeout
        for performer in self._all:
            clock.wait(performer.finished, deadline - clock.monotonic())

    async def finish_async(self, timeout: float, clock: Clock) -> None:
        """The same, awaited."""
        deadline = clock.monotonic() + timeout
        for performer in self._all:
            await clock.wait_async(performer.finished, deadline - clock.monotonic())

    # -- making

    def _performer(self) -> Performer[Any]:
        rules = self.plan.rules
        name = f"pump-{rules.channel}-{next(self._names)}"
        shared = (self._clock, self._log, self._ended)
        performer: Performer[Any]
        if rules.pump == "reactor":
            performer = ReactorPerformer(name, rules, self._reactor, *shared)
        else:
            performer = ProactorPerformer(name, rules, self._proactor, *shared, self._loop)
        if self._paused:
            performer.pause()
        return performer

    def _reactor(self) -> Reactor:
        transport, rules = blocking(self._transport), self.plan.rules
        channel = Channel(lambda: transport.consumer(rules), self._transport.capabilities, self._judge())
        return Reactor(channel, Dispatch(self._router, channel), empty_delay=self._empty_delay)

    def _proactor(self) -> Proactor:
        transport, rules = awaiting(self._transport), self.plan.rules
        judge = self._judge(cancelled=is_cancelled)
        channel = AsyncChannel(lambda: transport.async_consumer(rules), self._transport.capabilities, judge)
        kind = ConcurrentProactor if rules.in_flight > 1 else Proactor
        return kind(channel, AsyncDispatch(self._router, channel, self._loop), empty_delay=self._empty_delay)

    def _judge(self, **options: Callable[[], bool]) -> Judge:
        plan = self.plan
        return Judge(plan.rules, self._ledger, self._clock, self._log, may_block=plan.may_block, **options)
