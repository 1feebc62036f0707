"""The performers of one channel, and what they share: the router, the ledger and the log."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from pump.capabilities import Capabilities
from pump.duration import seconds
from pump.errors import ConfigurationError
from pump.handling.dispatch import AsyncDispatch, Dispatch, DispatchSettings, Router
from pump.in_hand.slots import CrashGuard
from pump.ledger import Ledger
from pump.program.performer import PerformerState, ProactorPerformer, ReactorPerformer
from pump.program.plan import Plan
from pump.program.processor import CommandProcessor
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.subscription import Subscription
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import Transport
from pump.unacceptable import UnacceptableCount
from pump.verdict import Judge

AnyPerformer: TypeAlias = ReactorPerformer | ProactorPerformer


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
        guard: CrashGuard | None = None,
    ) -> None:
        self.plan: Final = plan
        self._transport: Final = transport
        self._clock: Final = settings.clock
        self._loop: Final = loop
        self._ended: Final = ended
        self._names: Final = names
        self._log: Final = PumpLog(plan.rules.channel, settings.telemetry)
        self._guard = guard
        self._ledger: Final = Ledger(settings.clock, book=None if guard is None else guard.book)
        self._router: Final = Router(plan.rules, plan.handlers, settings, processor)
        self._log.handlers_of = self._router.names
        self._empty_delay: Final = 0.0 if transport.capabilities.waits else seconds(plan.rules.empty_delay)
        self._lock: Final = threading.Lock()
        self._performers: list[AnyPerformer] = []
        self._leaving: list[AnyPerformer] = []
        self._paused = False
        self._is_stopped = False
        """Whether it was stopped: no performer begins any more."""
        self._unacceptable = UnacceptableCount(plan.rules, self._clock)
        """The count of all its performers together; a new one when the first performers begin."""

    # -- control

    def start(self) -> None:
        """Start as many performers as the subscription says, unless the group was stopped before."""
        self._have(self.plan.rules.performers)

    def scale(self, performers: int) -> None:
        """Have this many performers from now on; surplus ones finish the messages they have in hand."""
        if performers < 0:
            raise ConfigurationError(f"channel {self.plan.rules.channel} cannot have {performers} performers")
        rules = self.plan.rules
        if performers > 1 and rules.ordered and not self._transport.capabilities.shards_by_key:
            raise ConfigurationError(f"channel {rules.channel} is ordered: it can have only one performer")
        if not self._have(performers):
            raise ConfigurationError(f"channel {rules.channel} is stopped: start the dispatcher again")

    def _have(self, performers: int) -> bool:
        with self._lock:
            if self._is_stopped:
                return False
            if not self._performers:  # the channel begins again
                self._unacceptable = UnacceptableCount(self.plan.rules, self._clock)
            new = [self._performer() for _ in range(performers - len(self._performers))]
            self._performers += new
            surplus, self._performers = self._performers[performers:], self._performers[:performers]
            self._leaving = [each for each in self._leaving if not each.finished.is_set()] + surplus
            for performer in new:  # under the lock, so that a stop comes before or after all of this
                performer.start()
        for performer in surplus:
            performer.stop()
            performer.hand_back()
        return True

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
        """Ask every performer to stop; no other one begins after that."""
        with self._lock:
            self._is_stopped = True
        for performer in self._all:
            performer.stop()

    def give_up(self) -> None:
        """The grace is over: tell the handlers that still run to end."""
        for performer in self.unfinished:
            performer.give_up()

    def close(self) -> None:
        """The process ends in order: note that nothing is in hand, and keep the attempts that the broker does not."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.hand.close()
        self._ledger.keep(attempts=keeps_attempts_itself(self.plan.rules, self._transport.capabilities))

    # -- what is known

    @property
    def _all(self) -> Sequence[AnyPerformer]:
        with self._lock:
            return (*self._performers, *self._leaving)

    @property
    def states(self) -> Sequence[PerformerState]:
        """What every performer is doing now, without those that are being stopped by `scale`."""
        with self._lock:
            return [performer.state for performer in self._performers]

    @property
    def in_hand(self) -> int:
        """How many messages are here: begun, or received and not begun."""
        return sum(performer.in_hand for performer in self._all)

    @property
    def totals(self) -> Mapping[str, int]:
        """How many messages had each verdict, by the log's word for it."""
        return self._log.totals

    @property
    def unfinished(self) -> Sequence[AnyPerformer]:
        """The performers that have not ended."""
        return [performer for performer in self._all if not performer.finished.is_set()]

    # -- making

    def _performer(self) -> AnyPerformer:
        rules = self.plan.rules
        name = f"pump-{rules.channel}-{next(self._names)}"
        shared = (self._clock, self._log, self._ended, self._loop)
        performer = (
            ReactorPerformer(name, rules, self._reactor, *shared)
            if rules.pump == "reactor"
            else ProactorPerformer(name, rules, self._proactor, *shared)
        )
        if rules.ordered:
            performer.follow([each for each in self._leaving if not each.finished.is_set()])
        if self._paused:
            performer.pause()
        return performer

    def _reactor(self) -> Reactor:
        judge = self._judge(lambda: False)
        return make_reactor(self._transport, judge, self._router, self._empty_delay)

    def _proactor(self) -> Proactor:
        judge = self._judge(is_cancelled)
        return make_proactor(self._transport, judge, self._router, self._empty_delay, self._loop)

    def _judge(self, cancelled: Callable[[], bool]) -> Judge:
        return Judge(
            self.plan.rules,
            self._ledger,
            self._clock,
            self._log,
            guard=self._guard,
            unacceptable=self._unacceptable,
            cancelled=cancelled,
        )


def keeps_attempts_itself(rules: Subscription, capabilities: Capabilities) -> bool:
    """Whether a channel has attempts that the broker cannot keep over a restart of its consumer."""
    return (rules.ordered and not capabilities.keeps_held_attempts) or not capabilities.carries_attempts


def make_reactor(transport: Transport, judge: Judge, router: Router, empty_delay: float = 0.0) -> Reactor:
    """The pump of one blocking performer."""
    consumers, rules = blocking(transport), judge.rules
    channel = Channel(lambda: consumers.consumer(rules), transport.capabilities, judge)
    return Reactor(channel, Dispatch(router, channel), empty_delay=empty_delay)


def make_proactor(
    transport: Transport,
    judge: Judge,
    router: Router,
    empty_delay: float = 0.0,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Proactor:
    """The pump of one awaiting performer."""
    consumers, rules = awaiting(transport), judge.rules
    channel = AsyncChannel(lambda: consumers.async_consumer(rules), transport.capabilities, judge)
    kind = ConcurrentProactor if rules.in_flight > 1 else Proactor
    return kind(channel, AsyncDispatch(router, channel, loop), empty_delay=empty_delay)
