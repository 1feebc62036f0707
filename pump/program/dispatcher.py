"""A program: handlers, subscriptions and publications on one transport; checked, started, controlled and stopped."""

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from pump.attribute import SwitchProvider
from pump.clock import Clock, Signal, SystemClock
from pump.colour import must_not_block
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.handling.dispatch import DispatchSettings, Router
from pump.handling.registry import Registry
from pump.in_hand.folder import default_folder
from pump.in_hand.slots import CrashGuard, guard
from pump.mapping.mapper import Mapper
from pump.process_signals import ENDING, handling
from pump.program.arguments import all_of, check_lists, check_settings, transport_of
from pump.program.performer import Activity, PerformerState
from pump.program.performer_group import PerformerGroup
from pump.program.plan import Plan, plans
from pump.program.processor import CommandProcessor
from pump.program.producers import Producers
from pump.program.validation import Problem, problems, raise_errors
from pump.subscription import Publication, Subscription
from pump.telemetry import Listener, Telemetry, log
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import Observed, Placed, Transport
from pump.verdict import Stopped

_real_clock: Final = SystemClock()
"""Threads and tasks end in real time, whatever clock the pumps use."""
_AFTER_GRACE: Final = 1.0
"""How long a stop waits for a handler after telling it to end, in seconds."""


class Dispatcher:
    """Handlers, subscriptions and publications on one transport. Making one opens nothing.

    `with dispatcher:` consumes (Proactors on a loop in a thread of its own), `async with` too (on the caller's loop),
    `with dispatcher.publishing():` only publishes, `run()` consumes until a signal.

    * `transport`: A URL, or a transport object.
    * `handlers`: Handler classes, instances with a `handle` method, or functions with one annotated parameter.
    * `subscriptions`: What is consumed.
    * `publications`: Where each type of request is posted to.
    * `name`: The service's name; an Event's channel needs it.
    * `factory`: Makes the handler of each message from its class; by default the class is called without arguments.
    * `switches`: Says which feature switches are on: a mapping, or a function from name to True, False or None.
    * `mappers`: A mapper for each type that is not mapped by default.
    * `clock`: The time that pumps and attributes go by; by default the machine's.
    * `listeners`: Functions that are told of events, each with a name and its fields.
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
        switches: SwitchProvider | None = None,
        mappers: Mapping[type, Mapper[Any]] | None = None,
        clock: Clock | None = None,
        listeners: Iterable[Listener] = (),
        state_folder: str | Path | None = None,
    ) -> None:
        check_lists(handlers=handlers, subscriptions=subscriptions, publications=publications, listeners=listeners)
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
            telemetry=Telemetry(*listeners),
        )
        self.registry: Final = Registry(handlers)
        default = self.transport.capabilities.default_dead_letter
        self.plans: Final[tuple[Plan, ...]] = plans(subscriptions, self.registry, name, default)
        if isinstance(self.transport, Observed):
            self.transport.observe(self.settings.telemetry)
        self._producers: Final = Producers(self.transport)
        every = self.registry.joined_by(handler for each in self.plans for handler in each.handlers)
        self.processor: Final = CommandProcessor(every, self.publications, self.settings, self._producers)
        """Sends and publishes in this process, and posts to the broker."""
        self.post: Final = self.processor.post
        self.post_async: Final = self.processor.post_async
        self.post_many: Final = self.processor.post_many
        self.post_many_async: Final = self.processor.post_many_async
        self._state_folder: Final = None if state_folder is None else Path(state_folder)
        self._groups: dict[str, PerformerGroup] = {}
        self._loop_thread: LoopThread | None = None
        self._wake: Final = Signal()
        self._running = False
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
                if each.handlers:  # only building mappers and pipelines shows these problems; it opens nothing either
                    Router(each.rules, each.handlers, self.settings, self.processor)
            except ConfigurationError as error:
                found.append(Problem("error", f"channel {each.rules.channel}: {error}"))
        return found

    # -- consuming

    def __enter__(self) -> Self:
        must_not_block("`with dispatcher:`", "`async with dispatcher:`")
        return self._enter(self._start_consuming)

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await self._enter_async(partial(self._start, asyncio.get_running_loop()))

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()

    def _enter(self, start: Callable[[], None]) -> Self:
        self._begin()
        try:
            blocking(self.transport).prepare(self.subscriptions, self.publications)
            start()
        except BaseException:
            self._close()
            raise
        return self

    async def _enter_async(self, start: Callable[[], None]) -> Self:
        self._begin()
        try:
            await awaiting(self.transport).async_prepare(self.subscriptions, self.publications)
            start()
        except BaseException:
            await self._producers.close_async()
            self._close()
            raise
        return self

    def _begin(self) -> None:
        if self._running:
            raise ConfigurationError("this dispatcher is running already")
        found = self.check()
        for problem in found:
            if problem.level == "warning":
                log.warning("%s", problem.text)
        raise_errors(found)
        self._running = True
        self._wake.clear()

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The subscriptions with every default filled in."""
        return tuple(each.rules for each in self.plans)

    def _start_consuming(self) -> None:
        if any(each.rules.pump == "proactor" for each in self.plans):
            self._loop_thread = LoopThread("pump-loop")
        self._start(None if self._loop_thread is None else self._loop_thread.loop)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._producers.open()
        self._groups = {
            each.rules.channel: PerformerGroup(
                each,
                self.transport,
                self.settings,
                self.processor,
                loop,
                self._wake.set,
                self._names,
                self._guard(each),
            )
            for each in self.plans
        }
        for group in self._groups.values():
            group.scale(group.plan.rules.performers)

    def _guard(self, each: Plan) -> CrashGuard | None:
        """What notes the messages in hand; nothing, where they end with this process anyway."""
        capabilities = self.transport.capabilities
        if not capabilities.durable and not capabilities.between_processes:
            return None
        place = self.transport.place if isinstance(self.transport, Placed) else ""
        return guard(self._state_folder or default_folder(), capabilities.system, place, each.rules.channel)

    def stop(self, grace: Duration | None = None) -> None:
        """Stop every performer: receive nothing more, finish what is in hand within the grace, give back the rest."""
        must_not_block("stop", "stop_async")
        for finished, left in self._stopping(grace):
            _real_clock.wait(finished, left)
        self._close()

    async def stop_async(self, grace: Duration | None = None) -> None:
        """The same, awaited."""
        for finished, left in self._stopping(grace):
            await _real_clock.wait_async(finished, left)
        await self._producers.close_async()
        self._close()

    def _stopping(self, grace: Duration | None) -> Iterator[tuple[Signal, float]]:
        """Ask every performer to stop; yield the end of each with how long to wait, and tell it to end after that."""
        began = _real_clock.monotonic()
        for group in self._groups.values():
            group.stop()
        for group in self._groups.values():
            allowed = seconds(group.plan.rules.grace if grace is None else grace)
            for performer in group.unfinished:
                yield performer.finished, began + allowed - _real_clock.monotonic()
            group.give_up()
            given_up = _real_clock.monotonic()
            for performer in group.unfinished:
                yield performer.finished, given_up + _AFTER_GRACE - _real_clock.monotonic()
            for performer in group.unfinished:
                log.error(
                    "performer %s: its handler still runs after the grace of %g s; its message was not settled, and "
                    "comes again when this process ends",
                    performer.name,
                    allowed,
                )

    def _close(self) -> None:
        self._running = False
        for group in self._groups.values():
            group.close()
        try:
            self._producers.close()
        finally:
            thread, self._loop_thread = self._loop_thread, None
            if thread is not None:
                thread.close()

    # -- publishing

    def publishing(self) -> "Publishing":
        """Only publish, in a `with` or `async with`. The subscriptions' channels are created too: nothing is lost."""
        return Publishing(self._producers, self._enter, self._enter_async, self._close)

    # -- running

    def run(self) -> int:
        """Consume until SIGINT or SIGTERM, or until every performer of some channel has stopped.

        Returns what the process should exit with: 1 where they stopped by themselves, else 0. A second signal ends the
        grace.
        """
        stop = Signal()
        with _signals(stop, self._wake), self:
            while not stop.is_set() and not self._is_over:
                self._wake.clear()
                if not stop.is_set() and not self._is_over:
                    _real_clock.wait(self._wake, None)
            failed = self.stopped_channels
            for channel in failed:
                log.critical("channel %s: every performer has stopped", channel)
        return 1 if failed else 0

    @property
    def _is_over(self) -> bool:
        """Whether every performer of some channel has stopped, by itself or asked to."""
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
    def ready(self) -> bool:
        """Whether every performer runs, or is paused."""
        states = self.states
        return bool(states) and all(each.state in {Activity.RUNNING, Activity.PAUSED} for each in states)

    def scale(self, channel: str, performers: int) -> None:
        """Have this many performers on a channel from now on; those that are too many finish what they have in hand."""
        self._group(channel).scale(performers)

    def pause(self, channel: str) -> None:
        """Handle no further message of a channel; what waits here goes back to the broker."""
        self._group(channel).pause()

    def resume(self, channel: str) -> None:
        """Handle the messages of a channel again."""
        self._group(channel).resume()

    def restart(self, channel: str) -> None:
        """Replace a channel's performers by new ones, also where they stopped by themselves."""
        self._group(channel).restart()

    def _group(self, channel: str) -> PerformerGroup:
        group = self._groups.get(channel)
        if group is None:
            known = ", ".join(self._groups) or "none; the dispatcher is not running"
            raise ConfigurationError(f"there is no channel {channel!r}; there is {known}")
        return group


class Publishing:
    """A dispatcher that only publishes, inside a `with` or `async with`."""

    def __init__(
        self,
        producers: Producers,
        enter: Callable[[Callable[[], None]], Dispatcher],
        enter_async: Callable[[Callable[[], None]], Awaitable[Dispatcher]],
        close: Callable[[], None],
    ) -> None:
        self._producers: Final = producers
        self._enter: Final = enter
        self._enter_async: Final = enter_async
        self._close: Final = close

    def __enter__(self) -> Dispatcher:
        must_not_block("`with dispatcher.publishing():`", "`async with dispatcher.publishing():`")
        return self._enter(self._producers.open)

    def __exit__(self, *_: object) -> None:
        self._close()

    async def __aenter__(self) -> Dispatcher:
        return await self._enter_async(self._producers.open)

    async def __aexit__(self, *_: object) -> None:
        await self._producers.close_async()
        self._close()


def _signals(stop: Signal, wake: Signal) -> AbstractContextManager[None]:
    """The first SIGINT or SIGTERM asks to stop; a second one does what it did before. Only in the main thread."""
    before = {number: signal.getsignal(number) for number in ENDING}

    def ask(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop.set()
        wake.set()

    return handling(ask)
