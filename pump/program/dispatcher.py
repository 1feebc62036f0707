"""A program: handlers, subscriptions and publications on one transport; checked, started, controlled and stopped."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final, Self

from pump.attribute import Attribute, SwitchProvider, checked_attributes
from pump.clock import Clock, Signal, SystemClock
from pump.colour import must_not_block
from pump.context import find_context
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.handling.dispatch import DispatchSettings, Router
from pump.handling.registry import Registry
from pump.in_hand.folder import default_folder
from pump.in_hand.slots import CrashGuard, guard
from pump.mapping.mapper import Mapper
from pump.process_signals import asking
from pump.program.arguments import all_of, check_lists, check_settings, transport_of
from pump.program.life import Life, Phase, StopAsked
from pump.program.life_log import LifeLog
from pump.program.lifespan import GivenLifespan, Lifespan, checked_lifespan
from pump.program.performer import Activity, PerformerState
from pump.program.performer_group import PerformerGroup
from pump.program.plan import Plan, plans
from pump.program.processor import CommandProcessor
from pump.program.producers import Producers
from pump.program.stopping import (
    AFTER_GRACE,
    CLOSING,
    PROCESS_END,
    Waits,
    end_performers,
    go_through,
    go_through_async,
    hurry,
    real_clock,
)
from pump.program.validation import Problem, problems, raise_errors
from pump.subscription import Publication, Subscription
from pump.telemetry import Listener, Telemetry, log
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import Observed, Placed, Transport
from pump.verdict import Stopped


class Dispatcher:
    """Handlers, subscriptions and publications on one transport. Making one opens nothing.

    `with dispatcher:` consumes (Proactors on a loop in a thread of its own), `async with` too (on the caller's loop),
    `with dispatcher.publishing():` only publishes, `run()` and `run_async()` consume until a signal.

    * `transport`: A URL, or a transport object.
    * `handlers`: Handler classes, instances with a `handle` method, or functions with one annotated parameter.
    * `subscriptions`: What is consumed.
    * `publications`: Where each type of request is posted to.
    * `name`: The service's name; an Event's channel needs it.
    * `factory`: Makes the handler of each message from its class, itself or as a context manager that is then closed.
    * `attributes`: The attributes around every handler, above those of its subscription and its own.
    * `switches`: Says which feature switches are on: a mapping, or a function from name to True, False or None.
    * `mappers`: A mapper for each type that is not mapped by default.
    * `lifespan`: A context manager, or a function that makes one: entered before the first message, left after all.
    * `clock`: The clock that pumps and attributes use; by default the machine's.
    * `listeners`: Functions that are called for each event, with its name and its fields.
    * `state_folder`: Where the next process finds what this one had in hand when it died; by default a folder of this
      user's among the machine's temporary files.
    """

    def __init__(
        self,
        transport: str | Transport,
        *,
        handlers: Iterable[object] = (),
        subscriptions: Iterable[Subscription] = (),
        publications: Iterable[Publication] = (),
        name: str = "",
        factory: Callable[[type], object] | None = None,
        attributes: Iterable[Attribute] = (),
        switches: SwitchProvider | None = None,
        mappers: Mapping[type, Mapper[Any]] | None = None,
        lifespan: GivenLifespan | None = None,
        clock: Clock | None = None,
        listeners: Iterable[Listener] = (),
        state_folder: str | Path | None = None,
    ) -> None:
        check_lists(
            handlers=handlers,
            subscriptions=subscriptions,
            publications=publications,
            attributes=attributes,
            listeners=listeners,
        )
        subscriptions, listeners = tuple(subscriptions), tuple(listeners)
        check_settings(name, factory, switches, mappers, listeners)
        self.name: Final = name
        self.transport: Final = transport_of(transport)
        self.publications: Final = tuple(publications)
        all_of(Subscription, subscriptions)
        all_of(Publication, self.publications)
        self.settings: Final = DispatchSettings(
            name=name,
            factory=factory,
            mappers=dict(mappers or {}),
            switches=switches,
            clock=clock or SystemClock(),
            telemetry=Telemetry(*listeners, clock=clock),
        )
        self.registry: Final = Registry(handlers, checked_attributes("Dispatcher", attributes))
        default = self.transport.capabilities.default_dead_letter
        self.plans: Final[tuple[Plan, ...]] = plans(subscriptions, self.registry, name, default)
        if isinstance(self.transport, Observed):
            self.transport.observe(self.settings.telemetry)
        self._producers: Final = Producers(self.transport, self.settings.telemetry)
        every = self.registry.joined_by(handler for each in self.plans for handler in each.handlers)
        self.processor: Final = CommandProcessor(
            every, self.publications, self.settings, self._producers, self.request_stop
        )
        """Sends and publishes in this process, and posts to the broker."""
        self.post: Final = self.processor.post
        self.post_async: Final = self.processor.post_async
        self.post_many: Final = self.processor.post_many
        self.post_many_async: Final = self.processor.post_many_async
        self._state_folder: Final = None if state_folder is None else Path(state_folder)
        self._given_lifespan: Final = None if lifespan is None else checked_lifespan(lifespan)
        self._lifespan: Lifespan | None = None
        self._life: Final = Life()
        self._asked_grace: Duration | None = None
        self._life_log: LifeLog | None = None
        self._groups: dict[str, PerformerGroup] = {}
        self._loop_thread: LoopThread | None = None
        self._wake: Final = Signal()
        """Set when a performer ends, or when a stop is requested."""
        self.ends_by = inf
        """The monotonic time by which a process that ends with this dispatcher must be gone, once it is stopped."""
        self._names: Final = itertools.count(1)

    # -- checks

    def check(self) -> Sequence[Problem]:
        """Every problem of these settings, without connecting to anything."""
        has_factory = self.settings.factory is not None
        found = problems(
            self.plans,
            self.publications,
            self.transport.capabilities,
            has_factory=has_factory,
            handlers=self.registry.registrations,
        )
        for each in self.plans:
            try:
                if each.handlers:  # only by building mappers and pipelines are these found; that opens nothing
                    Router(each.rules, each.handlers, self.settings, self.processor)
            except ConfigurationError as error:
                found.append(Problem("error", f"channel {each.rules.channel}: {error}"))
        return found

    # -- starting

    def start(self) -> Self:
        """Consume until `stop`: for programs in which a `with` has no place."""
        must_not_block("start", "start_async")
        return self._start(Signal())

    async def start_async(self) -> Self:
        """The same on this loop, until `stop_async`."""
        return await self._start_async(Signal())

    def __enter__(self) -> Self:
        must_not_block("`with dispatcher:`", "`async with dispatcher:`")
        return self._start(Signal())

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self._start_async(Signal())

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()

    def _start(self, asked: Signal, phase: Phase = Phase.CONSUMING) -> Self:
        self._life.start(asked)
        try:
            self._begin()
            blocking(self.transport).prepare(self.subscriptions, self.publications)
            go_through(self._starting(phase))
        except BaseException:
            self._stop_waiting(self._stopping(None))
            raise
        return self

    async def _start_async(self, asked: Signal, phase: Phase = Phase.CONSUMING) -> Self:
        self._life.start(asked)
        try:
            self._begin()
            await awaiting(self.transport).async_prepare(self.subscriptions, self.publications)
            await go_through_async(self._starting(phase, asyncio.get_running_loop()))
        except BaseException:
            await self._stop_awaiting(self._stopping(None))
            raise
        return self

    def _begin(self) -> None:
        self._groups, self._asked_grace, self._life_log = {}, None, None
        self._wake.clear()
        found = self.check()
        for problem in found:
            if problem.level == "warning":
                log.warning("%s", problem.text)
        raise_errors(found)

    def _starting(self, phase: Phase, loop: asyncio.AbstractEventLoop | None = None) -> Waits:
        self._producers.open()
        if phase is Phase.CONSUMING:
            self._life_log = LifeLog(self.plans, self.transport)
            lifespan = self._lifespan = None if self._given_lifespan is None else Lifespan(self._given_lifespan)
            awaits = any(each.rules.pump == "proactor" for each in self.plans)
            if loop is None and (awaits or (lifespan is not None and lifespan.awaits)):
                self._loop_thread = LoopThread("pump-loop")
                loop = self._loop_thread.loop
            if lifespan is not None:
                yield from lifespan.enter(loop, self._life.asked)
            self._groups = {each.rules.channel: self._group_of(each, loop) for each in self.plans}
        self._life.reach(phase)
        for group in self._groups.values():  # only now: a handler may request a stop before the last group has begun
            group.start()
        if self._life_log is not None:
            self._life_log.ready()

    def _group_of(self, each: Plan, loop: asyncio.AbstractEventLoop | None) -> PerformerGroup:
        guard = self._guard(each)
        return PerformerGroup(
            each, self.transport, self.settings, self.processor, loop, self._wake.set, self._names, guard
        )

    def _guard(self, each: Plan) -> CrashGuard | None:
        """The guard that notes the messages in hand; None where the messages end with this process anyway."""
        capabilities = self.transport.capabilities
        if not capabilities.durable and not capabilities.between_processes:
            return None
        place = self.transport.place if isinstance(self.transport, Placed) else ""
        return guard(self._state_folder or default_folder(), capabilities.system, place, each.rules.channel)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The subscriptions with every default filled in."""
        return tuple(each.rules for each in self.plans)

    # -- stopping

    def request_stop(self, grace: Duration | None = None) -> None:
        """Request a stop, as a signal does, without waiting: handlers and any thread may call it.

        Nothing more is received; `run` returns once the messages in hand are done. A program that started it in another
        way still has to stop it.
        """
        self._asked_grace = grace
        if self._life.ask():
            for group in self._groups.values():
                group.stop()

    def stop(self, grace: Duration | None = None) -> None:
        """Stop every performer: receive nothing more, finish what is in hand within the grace, give back the rest.

        If a handler calls it, it only requests the stop: it would have to wait for that handler.
        """
        if self._is_handling:
            return self.request_stop(grace)
        must_not_block("stop", "stop_async")
        if self._life.stop():
            self._stop_waiting(self._stopping(grace))
        else:
            real_clock.wait(self._life.ended, self._longest_stop(grace))
        return None

    async def stop_async(self, grace: Duration | None = None) -> None:
        """The same, awaited. A cancellation ends the grace."""
        if self._is_handling:
            return self.request_stop(grace)
        if self._life.stop():
            await self._stop_awaiting(self._stopping(grace))
        else:
            await real_clock.wait_async(self._life.ended, self._longest_stop(grace))
        return None

    @property
    def _is_handling(self) -> bool:
        """Whether the caller is one of its handlers."""
        context = find_context()
        return context is not None and context.has_message and context.processor is self.processor

    @staticmethod
    def _stop_waiting(stopping: Waits) -> None:
        try:
            go_through(stopping)
        except BaseException:
            hurry(stopping)
            raise

    @staticmethod
    async def _stop_awaiting(stopping: Waits) -> None:
        try:
            await go_through_async(stopping)
        except BaseException:
            hurry(stopping)
            raise

    def _stopping(self, grace: Duration | None) -> Waits:
        """End the performers, leave the lifespan, and close the rest; each wait has a limit."""
        began, given = real_clock.monotonic(), self._asked_grace if grace is None else grace
        graces = {each: seconds(each.plan.rules.grace if given is None else given) for each in self._groups.values()}
        until = began + self._longest_stop(given)
        self.ends_by = until - AFTER_GRACE - CLOSING + PROCESS_END
        lifespan, self._lifespan = self._lifespan, None
        if self._life_log is not None:
            self._life_log.stopping(graces, max(graces.values(), default=0.0))
        try:
            yield from end_performers(graces, began)
            for group in graces:
                _close(group)
            if lifespan is not None:
                yield from lifespan.leave(until - CLOSING / 4)
            for closed in self._producers.closing():
                yield closed, until - CLOSING / 8 - real_clock.monotonic()
            for finished in self.settings.telemetry.finishing():
                yield finished, until - CLOSING / 8 - real_clock.monotonic()
            thread, self._loop_thread = self._loop_thread, None
            if thread is not None:
                thread.stop()
                yield thread.ended, until - real_clock.monotonic()
        finally:
            if self._life_log is not None:
                self._life_log.stopped(graces)
            self._life.end()
        if lifespan is not None and lifespan.failure is not None:
            raise lifespan.failure

    def _longest_stop(self, grace: Duration | None) -> float:
        """How long a stop lasts at most, in seconds."""
        graces = [each.rules.grace for each in self.plans] or [Subscription.grace]
        return max(map(seconds, graces if grace is None else [grace])) + AFTER_GRACE + CLOSING

    # -- publishing

    def publishing(self) -> "Publishing":
        """Only publish, in a `with` or `async with`. The subscriptions' channels are created too: nothing is lost."""
        return Publishing(self)

    # -- running

    def run(self, until: Signal | None = None) -> int:
        """Consume until SIGINT or SIGTERM, a request to stop, or until every performer of some channel has stopped.

        Returns the exit status for the process: 1 if performers stopped by themselves, else 0. A second signal, of
        either kind, ends the grace. `until` is for a program that decides by itself: when it is set, also before the
        start, that is a request to stop.
        """
        must_not_block("run", "run_async")
        asked = until or Signal()
        with asking(asked.set), suppress(StopAsked):
            self._start(asked)
            try:
                go_through(self._running(asked))
                return self._exit_status()
            finally:
                self.stop()
        return 0

    async def run_async(self, until: Signal | None = None) -> int:
        """The same on this loop. A cancellation stops the dispatcher within its grace, and is then raised."""
        asked = until or Signal()
        with asking(asked.set), suppress(StopAsked):
            await self._start_async(asked)
            try:
                await go_through_async(self._running(asked))
                return self._exit_status()
            finally:
                await self.stop_async()
        return 0

    def _running(self, asked: Signal) -> Waits:
        key = asked.add_callback(self._wake.set)
        try:
            while True:
                self._wake.clear()
                if asked.is_set() or self._is_over:
                    return
                yield self._wake, None
        finally:
            asked.remove_callback(key)

    def _exit_status(self) -> int:
        failed = self.stopped_channels
        for channel in failed:
            log.critical("channel %s: every performer has stopped", channel)
        return 1 if failed else 0

    @property
    def _is_over(self) -> bool:
        """Whether every performer of some channel has stopped, by itself or on request."""
        every = (group.states for group in self._groups.values())
        return any(states and all(each.state is Activity.STOPPED for each in states) for states in every)

    @property
    def stopped_channels(self) -> Sequence[str]:
        """The channels whose performers all stopped by themselves; `states` says why each one did."""
        groups = ((channel, group.states) for channel, group in self._groups.items())
        by_itself = {Stopped.LIMIT_EXCEEDED, Stopped.CONFIGURATION_ERROR, Stopped.INTERRUPTED}
        return [channel for channel, states in groups if states and all(each.stopped in by_itself for each in states)]

    # -- control

    @property
    def states(self) -> Sequence[PerformerState]:
        """What every performer is doing now."""
        return [state for group in self._groups.values() for state in group.states]

    @property
    def totals(self) -> Mapping[str, Mapping[str, int]]:
        """How many messages of each channel had each verdict, by the log's word for it, since the last start."""
        return {channel: group.totals for channel, group in self._groups.items()}

    @property
    def ready(self) -> bool:
        """Whether every performer runs, or is paused."""
        states = self.states
        return bool(states) and all(each.state in {Activity.RUNNING, Activity.PAUSED} for each in states)

    def scale(self, channel: str, performers: int) -> None:
        """Have this many performers on a channel from now on; surplus ones finish the messages they have in hand."""
        self._group(channel).scale(performers)

    def pause(self, channel: str) -> None:
        """Handle no further message of a channel; messages that wait here go back to the broker."""
        self._group(channel).pause()

    def resume(self, channel: str) -> None:
        """Handle the messages of a channel again."""
        self._group(channel).resume()

    def restart(self, channel: str) -> None:
        """Replace a channel's performers by new ones, also if they stopped by themselves."""
        self._group(channel).restart()

    def _group(self, channel: str) -> PerformerGroup:
        self._life.must_consume()
        group = self._groups.get(channel)
        if group is None:
            raise ConfigurationError(f"there is no channel {channel!r}; there is {', '.join(self._groups) or 'none'}")
        return group


def _close(group: PerformerGroup) -> None:
    try:
        group.close()
    except Exception as error:  # keeping the attempts for the next start failed; the rest must be closed anyway
        log.error("channel %s: the attempts of messages could not be stored: %s", group.plan.rules.channel, error)


class Publishing:
    """A dispatcher that only publishes, inside a `with` or `async with`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher: Final = dispatcher

    def __enter__(self) -> Dispatcher:
        must_not_block("`with dispatcher.publishing():`", "`async with dispatcher.publishing():`")
        return self._dispatcher._start(Signal(), Phase.PUBLISHING)  # noqa: SLF001 - it is a part of it

    def __exit__(self, *_: object) -> None:
        self._dispatcher.stop()

    async def __aenter__(self) -> Dispatcher:
        return await self._dispatcher._start_async(Signal(), Phase.PUBLISHING)  # noqa: SLF001 - it is a part of it

    async def __aexit__(self, *_: object) -> None:
        await self._dispatcher.stop_async()
