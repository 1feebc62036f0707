"""A supervised pump: started, started again with back-off when it dies, and stopped.

There are two kinds: a Reactor on a thread of its own, and a Proactor in a task of an event loop.
"""

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from pump.clock import Clock, Signal
from pump.duration import seconds
from pump.pump_log import PumpLog
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import OwnTask, is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.subscription import Subscription
from pump.text import text_of
from pump.verdict import Stopped

AnyPump = TypeVar("AnyPump", bound=Reactor | Proactor)


class Activity(Enum):
    """What a performer is doing."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PerformerState:
    """What a performer was doing at one moment."""

    name: str
    channel: str
    state: Activity
    stopped: Stopped | None
    """Why it stopped; None while it has not."""
    restarts: int
    unacceptable: int
    """How many messages of its channel were unacceptable, within the window where there is one."""
    error: str
    """The error that its pump died of last."""


class Performer(Generic[AnyPump]):
    """What both kinds share. A pump that dies is replaced by a new one; the performer stays the same."""

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        name: str,
        rules: Subscription,
        make: Callable[[], AnyPump],
        clock: Clock,
        log: PumpLog,
        ended: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.name: Final = name
        self.finished: Final = Signal()
        """Set when it has stopped for good."""
        self._rules: Final = rules
        self._make: Final = make
        self._clock: Final = clock
        self._log: Final = log
        self._ended: Final = ended
        self._loop: Final = loop
        self._stopping: Final = Signal()
        self._follows: Sequence[Performer[Reactor] | Performer[Proactor]] = ()
        self._running: AnyPump | None = None
        """The present pump, or the last one."""
        self._state = Activity.STARTING
        self._paused = False
        self._stopped: Stopped | None = None
        self._restarts = 0
        self._deaths = 0
        self._began = 0.0
        self._error = ""

    @property
    def state(self) -> PerformerState:
        """What it is doing now."""
        running = self._running
        state = Activity.PAUSED if self._paused and self._state is Activity.RUNNING else self._state
        unacceptable = 0 if running is None else running.judge.unacceptable
        return PerformerState(
            self.name, self._rules.channel, state, self._stopped, self._restarts, unacceptable, self._error
        )

    def follow(self, others: "Sequence[Performer[Reactor] | Performer[Proactor]]") -> None:
        """Begin only when these have ended, so that no message overtakes those that they had in hand."""
        self._follows = others

    @property
    def waits_for(self) -> str:
        """A text that says what keeps it from ending, as far as that is known."""
        running = self._running
        if running is not None and any(each.interrupt is not None for each in running.channel.in_hand):
            return "its handler, which still runs"
        return "the broker, which does not answer"

    @property
    def comes_again(self) -> str:
        """A text that says when other consumers get the messages that it has not settled."""
        running = self._running
        return "it has no messages" if running is None else running.channel.comes_again

    @property
    def in_hand(self) -> int:
        """How many messages its pump has in hand."""
        running = self._running
        return 0 if running is None else len(running.channel.in_hand)

    def stop(self) -> None:
        """Handle no further message. The messages in hand are handled to their end."""
        self._stopping.set()
        if not self.finished.is_set():
            self._state = Activity.STOPPING
        if self._running is not None:
            self._running.judge.stop()
            self._running.channel.stop()

    def pause(self) -> None:
        """Handle no further message until resumed; messages that wait here go back to the broker."""
        self._paused = True
        if self._running is not None:
            self._running.channel.pause()
            self.hand_back()

    @abstractmethod
    def hand_back(self) -> None:
        """Give back the messages that no handler has begun, while a handler runs. It does not wait."""

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        if self._running is not None:
            self._running.channel.resume()

    def _begin(self) -> AnyPump:
        self._began = self._clock.monotonic()
        pump = self._running = self._make()
        if self._paused:
            pump.channel.pause()
        if self._stopping.is_set():  # a stop was requested while the pump was being made
            pump.judge.stop()
        else:
            self._state = Activity.RUNNING
        return pump

    def _died(self, error: BaseException) -> float:
        """Its pump died; returns how long to wait before the next one is started."""
        first, longest = (seconds(each) for each in self._rules.failure_backoff)
        if self._clock.monotonic() - self._began > 2 * longest:
            self._deaths = 0
        delay = min(longest, first * 2.0 ** min(self._deaths, 64))
        self._deaths += 1
        self._restarts += 1
        self._error = f"{type(error).__name__}: {text_of(error)}"
        if not self._stopping.is_set():
            self._state = Activity.RESTARTING
        self._log.performer_died(self.name, error, delay)
        return delay

    def _end(self) -> None:
        self._stopped = (self._running and self._running.judge.stopped) or Stopped.REQUESTED
        self._state = Activity.STOPPED
        self.finished.set()
        self._ended()


class ReactorPerformer(Performer[Reactor]):
    """A Reactor on a thread of its own."""

    def start(self) -> None:
        """Begin. From any thread."""
        threading.Thread(target=self._supervise, name=self.name, daemon=True).start()

    def hand_back(self) -> None:
        """As any performer's. By a thread, since the pump's own may be in a handler, and the broker may not answer."""
        running = self._running
        if running is not None and running.channel.in_hand:  # without, the pump does it itself
            threading.Thread(target=running.channel.hand_back_waiting, name=f"{self.name}-back", daemon=True).start()

    def give_up(self) -> None:
        """Set `context.cancelled` for the handlers that run: a thread cannot be stopped."""
        if self._running is not None:
            self.hand_back()
            self._running.channel.give_up()
            for message in self._running.channel.in_hand:
                message.ended = True
                if message.interrupt is not None:
                    message.interrupt()

    def _supervise(self) -> None:
        try:
            for other in self._follows:
                self._clock.wait(_either(other.finished, self._stopping), None)
            self._follows = ()
            while not self._stopping.is_set():
                try:
                    self._begin().run()
                except BaseException as error:
                    self._clock.wait(self._stopping, self._died(error))
                else:
                    return
        finally:
            self._end()


class ProactorPerformer(Performer[Proactor]):
    """A Proactor in a task of a loop."""

    _task: asyncio.Task[None] | None = None
    _handing_back: asyncio.Task[None] | None = None
    _is_given_up = False
    """Whether the loop has come to ending its handlers."""

    @property
    def waits_for(self) -> str:
        """As of any performer, and perhaps for the loop."""
        waits_for = super().waits_for
        return waits_for if self._is_given_up or "handler" in waits_for else "its event loop, which a handler blocks"

    def start(self) -> None:
        """Begin. From any thread."""
        self._soon(self._start)

    def hand_back(self) -> None:
        """As any performer's."""
        self._soon(self._hand_back)

    def _hand_back(self) -> None:
        running = self._running
        if running is not None and running.channel.in_hand:  # without, the pump does it itself
            self._handing_back = asyncio.ensure_future(running.channel.hand_back_waiting())

    def give_up(self) -> None:
        """Cancel the handlers; their messages are handed back."""
        self._soon(self._cancel)

    def _soon(self, call: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101 - the dispatcher has one wherever there is a Proactor
        with suppress(RuntimeError):  # the loop is closed, and its tasks with it
            self._loop.call_soon_threadsafe(call)

    def _start(self) -> None:
        self._task = OwnTask(self._supervise(), name=self.name)

    def _cancel(self) -> None:
        running, task, self._is_given_up = self._running, self._task, True
        if running is not None:
            running.channel.give_up()
            self._hand_back()
        if isinstance(running, ConcurrentProactor):
            running.cancel()
        elif running is not None and task is not None and (in_hand := running.channel.in_hand):
            for message in in_hand:
                message.ended = True
            task.cancel()

    async def _supervise(self) -> None:
        try:
            for other in self._follows:
                await self._clock.wait_async(_either(other.finished, self._stopping), None)
            self._follows = ()
            while not self._stopping.is_set():
                try:
                    await self._begin().run()
                except BaseException as error:
                    if is_cancelled():
                        raise
                    await self._clock.wait_async(self._stopping, self._died(error))
                else:
                    return
        finally:
            self._end()


def _either(*signals: Signal) -> Signal:
    """A signal that is set as soon as one of these is."""
    either = Signal()
    for signal in signals:
        signal.add_callback(either.set)
    return either
