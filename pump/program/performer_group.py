"""The performers of one channel, and what they share: the router with its pipelines, and the ledger."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pump.clock import Clock
from pump.context import Processor
from pump.duration import seconds
from pump.errors import ConfigurationError
from pump.handling.delivery import Settler
from pump.handling.dispatch import AsyncDispatch, Dispatch, Router
from pump.handling.dispatch_settings import Surroundings
from pump.ledger import Ledger
from pump.program.performer import Performer, PerformerState, ProactorPerformer, ReactorPerformer, Running
from pump.program.plan import Plan
from pump.pump_log import Report
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import Transport
from pump.verdict import Judge


class Group:
    """All performers of one channel in one dispatcher."""

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        plan: Plan,
        transport: Transport,
        surroundings: Surroundings,
        processor: Processor,
        loop: asyncio.AbstractEventLoop | None,
        ended: Callable[[], None],
        names: Iterator[int],
    ) -> None:
        self.plan: Final = plan
        self._transport: Final = transport
        self._clock: Final = surroundings.clock
        self._loop: Final = loop
        self._ended: Final = ended
        self._names: Final = names
        self._report: Final = Report(plan.rules.channel, surroundings.telemetry)
        self._ledger: Final = Ledger(surroundings.clock)
        self._router: Final = Router(plan.rules, plan.handlers, surroundings, processor)
        self._empty_delay: Final = 0.0 if transport.capabilities.waits else seconds(plan.rules.empty_delay)
        self._lock: Final = threading.Lock()
        self._performers: list[Performer[Any, Any]] = []
        self._leaving: list[Performer[Any, Any]] = []
        self._paused = False

    # -- control

    def scale(self, performers: int) -> None:
        """Have so many performers from now on."""
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
        """Begin no further message."""
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
        """Tell the handlers that still run to end."""
        for performer in self._all:
            if not performer.finished.is_set():
                performer.give_up()

    # -- what is known

    @property
    def _all(self) -> Sequence[Performer[Any, Any]]:
        with self._lock:
            return (*self._performers, *self._leaving)

    @property
    def states(self) -> Sequence[PerformerState]:
        """Every performer that belongs here, as it is now."""
        with self._lock:
            return [performer.state for performer in self._performers]

    @property
    def unfinished(self) -> Sequence[str]:
        """The names of the performers that have not ended."""
        return [performer.name for performer in self._all if not performer.finished.is_set()]

    @property
    def finished(self) -> bool:
        """Whether every performer has ended."""
        return not self.unfinished

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

    def _performer(self) -> Performer[Any, Any]:
        rules = self.plan.rules
        name = f"pump-{rules.channel}-{next(self._names)}"
        performer: Performer[Any, Any]
        if rules.pump == "reactor":
            performer = ReactorPerformer(name, rules, self._reactor, self._clock, self._report, self._ended)
        else:
            assert self._loop is not None  # noqa: S101 - the dispatcher gives one wherever there is a Proactor
            performer = ProactorPerformer(
                name, rules, self._proactor, self._clock, self._report, self._ended, self._loop
            )
        if self._paused:
            performer.pause()
        return performer

    def _reactor(self) -> Running[Channel, Reactor]:
        rules, clock, transport = self.plan.rules, self._clock, blocking(self._transport)
        judge = Judge(rules, self._ledger, clock, self._report, may_block=self.plan.may_block)
        channel = Channel(
            lambda: transport.consumer(rules),
            rules,
            self._transport.capabilities,
            judge,
            self._ledger,
            clock,
            self._report,
        )
        dispatch = Dispatch(self._router, Settler(judge, channel), judge.stopping)
        pump = Reactor(channel, dispatch, judge, rules, clock, empty_delay=self._empty_delay)
        return Running(judge, channel, pump)

    def _proactor(self) -> Running[AsyncChannel, Proactor]:
        rules, clock, transport = self.plan.rules, self._clock, awaiting(self._transport)
        judge = Judge(rules, self._ledger, clock, self._report, may_block=self.plan.may_block, cancelled=is_cancelled)
        channel = AsyncChannel(
            lambda: transport.async_consumer(rules),
            rules,
            self._transport.capabilities,
            judge,
            self._ledger,
            clock,
            self._report,
        )
        dispatch = AsyncDispatch(self._router, Settler(judge, channel), judge.stopping, self._loop)
        kind = ConcurrentProactor if rules.in_flight > 1 else Proactor
        return Running(judge, channel, kind(channel, dispatch, judge, rules, clock, empty_delay=self._empty_delay))
