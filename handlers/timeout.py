"""Limit how long a handler may take. A task can be cancelled and a thread cannot, so here the colours differ."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from pump.attribute import Attribute, Rest, Scope, Steps
from pump.checks import refuse, wrong_duration
from pump.clock import Clock, Signal
from pump.context import Context, find_context
from pump.duration import Duration, seconds
from pump.errors import HandlerTimeout, PumpError


class Timeout(Attribute):
    """Sets `context.cancelled` when the rest takes longer than the duration.

    An `async def` handler is then cancelled, and HandlerTimeout is raised. A `def` handler goes on, since nothing can
    stop a thread: a warning is logged, and the handler's outcome counts. It may read `context.cancelled`.
    """

    def __init__(self, duration: Duration) -> None:
        refuse("Timeout", duration=wrong_duration(duration, zero=False))
        self.duration = seconds(duration)

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the rest; an awaiting one for at most the duration."""
        context = find_context()
        with nullcontext(Signal()) if context is None else context.narrowed() as signal:
            if rest.colour == "blocking":
                with _alarm(rest.clock, self.duration, partial(self._warn, rest.scope, signal, context)):
                    return (yield from rest(request))
            deadline = _Deadline(signal, self.duration)
            with deadline, _alarm(rest.clock, self.duration, deadline.expire):
                return (yield from rest(request))

    def _warn(self, scope: Scope, signal: Signal, context: Context | None) -> None:
        signal.set()
        text = f"Handler takes longer than {self.duration:g} s; a thread cannot be stopped, context.cancelled is set"
        scope.log(logging.WARNING, text, context=context)


class _Deadline:
    """Cancels the current task when the time is over. Only that cancellation becomes a HandlerTimeout."""

    def __init__(self, signal: Signal, duration: float) -> None:
        self._signal = signal
        self._duration = duration
        self._loop = asyncio.get_running_loop()
        self._task = _current_task()
        self._before = self._task.cancelling()
        self._expired = False
        self._exited = False

    def expire(self) -> None:
        """Cancel the task. Called from any thread."""
        with suppress(RuntimeError):  # the loop is closed: there is no task to cancel
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._exited:
            self._expired = True
            self._signal.set()
            self._task.cancel()

    def __enter__(self) -> None:
        """Do nothing: the time runs since the object was made."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._exited = True
        if not self._expired:
            return
        asked_by_others = self._task.uncancel() > self._before
        if isinstance(error, asyncio.CancelledError) and not asked_by_others:
            raise HandlerTimeout(f"the handler took longer than {self._duration:g} s") from error


def _current_task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    if task is None:
        raise PumpError("a Timeout needs an asyncio task to cancel, and there is none here")
    return task


@contextmanager
def _alarm(clock: Clock, delay: float, ring: Callable[[], None]) -> Iterator[None]:
    cancel = clock.alarm(delay, ring)
    try:
        yield
    finally:
        cancel()
