"""Runs a handler inside its attributes: one generator for `def` and `async def` handlers, driven once per message.

A pipeline is built once for a dispatcher, a channel and a handler, and then runs any number of messages, in any number
of threads and tasks. The handler is given with each message, since it may be a new instance each time.
"""

import inspect
import operator
from collections.abc import Callable, Generator, Sequence
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, Final, Literal, ParamSpec, cast

from pump.attribute import Attribute, Rest, Scope, Steps, Wait
from pump.colour import Colour, undone
from pump.context import either, find_context
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PumpError

Arguments = ParamSpec("Arguments")


class PipelineError(PumpError):
    """An attribute or a handler broke a rule of pipelines: the message was perhaps not handled."""


class Pipeline:
    """The attributes of one handler, ready to run. Without attributes the handler is called directly."""

    def __init__(self, attributes: Sequence[Attribute], colour: Colour, scope: Scope) -> None:
        self.attributes: Final = tuple(_prepared(attribute, scope) for attribute in attributes)
        """The attributes around the handler, outermost first."""
        blocking, bare = colour == "blocking", not attributes
        calls = (_call if bare else self._run) if blocking else (operator.call if bare else self._run_async)
        self.run: Final[Callable[[Callable[..., object], object], Any]] = calls
        """Runs a request through the attributes and the given handle: a function, or the method of an instance. Returns
        the handler's result, or an awaitable of it; the code that awaits it passes the result through `done`."""
        self._make: Final = partial(_Run, self.attributes, colour, scope)
        self._idle: Final[list[_Run]] = []
        """The runs that no message uses now. Threads may share the list: append and pop are atomic."""

    def _run(self, handle: Callable[..., object], request: object) -> object:
        run = self._begin(handle, request)
        steps = run.steps()
        try:
            for pause in steps:
                raise PipelineError(f"an attribute yielded {pause!r}: `yield from` was meant")
            return run.value
        finally:
            steps.close()
            self._end(run)

    async def _run_async(self, handle: Callable[..., object], request: object) -> object:
        run = self._begin(handle, request)
        try:
            await run
            return run.value
        finally:
            self._end(run)

    def _begin(self, handle: Callable[..., object], request: object) -> "_Run":
        try:
            run = self._idle.pop()
        except IndexError:
            run = self._make()
        run.handle = handle
        run.value = request
        run.answered = ""
        return run

    def _end(self, run: "_Run") -> None:
        run.handle = _no_handler
        run.value = None
        self._idle.append(run)


def _call(handle: Callable[..., object], request: object) -> object:
    result = handle(request)
    return result if result is None else done(result)


def done(result: object, whose: str = "the handler") -> object:
    """The result; a PipelineError if it shows that the work was not done, so that the message is not acknowledged."""
    why = undone(result)
    if why:
        raise PipelineError(f"{whose} {why}") from (result if isinstance(result, BaseException) else None)
    return result


class _Run:
    """The generators of one message in a pipeline. Later messages use them again, one at a time."""

    __slots__ = ("answered", "call", "clock", "colour", "first", "handle", "scope", "value", "wait")

    def __init__(self, attributes: Sequence[Attribute], colour: Colour, scope: Scope) -> None:
        self.answered: Literal["", "by the handler", "by an attribute"] = ""
        """Who answered last: the handler, by being called, or an attribute in its place, by `skip`."""
        self.handle: Callable[..., object] = _no_handler
        self.value: object = None
        """The request on the way in, the result on the way out."""
        blocking = colour == "blocking"
        self.clock: Final = scope.clock
        self.colour: Final[Colour] = colour
        self.scope: Final = scope
        self.call: Final = _steps if blocking else _awaiting_steps
        self.wait: Final[Callable[..., object]] = scope.clock.wait if blocking else scope.clock.wait_async
        rest = self._rest(_blocking_handler(self) if blocking else _awaiting_handler(self))
        for attribute in reversed(attributes):
            rest = self._rest(_link(attribute.around, rest))
        self.first: Final = rest

    def steps(self) -> Generator[Wait, None, None]:
        self.value = yield from self.first(self.value)
        if self.answered != "by the handler":
            self._not_by_the_handler()

    __await__ = steps

    def _rest(self, function: Callable[[object], Steps]) -> Rest:
        for name in ("call", "clock", "colour", "instance", "scope", "skip", "sleep"):
            setattr(function, name, getattr(self, name))
        return cast("Rest", function)

    def _not_by_the_handler(self) -> None:
        if not self.answered:
            raise PipelineError(
                "an attribute returned without having run the handler: `yield from rest(request)` is missing, "
                "or `return rest.skip(result)` where that is meant"
            )
        context = find_context()
        if context is not None:
            context.answered()

    # -- what `rest` can do besides being called

    def skip(self, result: object = None, /) -> object:
        self.answered = "by an attribute"
        return result

    def sleep(self, duration: Duration, /) -> Generator[Wait, None, bool]:
        context = find_context()
        signals = () if context is None else (context.cancelled, context.stopping)
        with either(*signals) as signal:
            ended = bool((yield from self.call(self.wait, signal, seconds(duration))))
        if ended and context is not None:
            context.end()
        return ended

    def instance(self) -> object | None:
        return getattr(self.handle, "__self__", None)


def _no_handler(_: object) -> object:
    raise PipelineError("an attribute kept its `rest` and used it after the message was done")


def _link(around: Callable[[object, Rest], Steps], inner: Rest) -> Callable[[object], Steps]:
    # A function, not an object with __call__: that would cost a quarter more.
    def rest(request: object) -> Steps:
        return around(request, inner)

    return rest


def _blocking_handler(run: _Run) -> Callable[[object], Steps]:
    def handled(request: object) -> Steps:
        run.answered = "by the handler"
        try:
            result = run.handle(request)
            return result if result is None else done(result)
        except (StopIteration, GeneratorExit) as error:
            raise _unfit(error) from error
        yield Wait()  # type: ignore[unreachable]  # pragma: no cover - it makes this a generator

    return handled


def _awaiting(function: Callable[Arguments, Steps]) -> Callable[Arguments, Steps]:
    """Allow a generator function to `yield from` coroutines."""
    return cast("Callable[Arguments, Steps]", coroutine(function))


def _awaiting_handler(run: _Run) -> Callable[[object], Steps]:
    @_awaiting
    def handled(request: object) -> Steps:
        run.answered = "by the handler"
        try:
            waiting = run.handle(request)
            steps = cast("Steps", waiting) if type(waiting) is CoroutineType else _waiting(waiting)
            result = yield from steps
            return result if result is None else done(result)
        except (StopIteration, GeneratorExit) as error:
            if is_closing(error):
                raise
            raise _unfit(error) from error

    return handled


def _waiting(awaitable: object) -> Steps:
    """The iterator that a generator has to `yield from` to await this."""
    if not inspect.isawaitable(awaitable):
        raise PipelineError(f"an async handler returned what cannot be awaited: {awaitable!r}")
    begin = getattr(awaitable, "__await__", None)  # a generator marked by types.coroutine has none
    return cast("Steps", awaitable if begin is None else begin())


def _unfit(error: BaseException) -> PipelineError:
    return PipelineError(f"the handler raised {type(error).__name__}, which means something else to a generator")


def is_closing(error: BaseException) -> bool:
    """Whether Python raised the error at our own `yield from` because the task was dropped; else the handler did."""
    trace = error.__traceback__
    return isinstance(error, GeneratorExit) and trace is not None and trace.tb_next is None


def _steps(function: Callable[..., object], /, *arguments: object) -> Steps:
    return done(function(*arguments), _name(function))
    yield Wait()  # type: ignore[unreachable]  # pragma: no cover - it makes this a generator


@_awaiting
def _awaiting_steps(function: Callable[..., object], /, *arguments: object) -> Steps:
    result = function(*arguments)
    return done((yield from _waiting(result)) if inspect.isawaitable(result) else result, _name(function))


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", function))


def _prepared(attribute: Attribute, scope: Scope) -> Attribute:
    """The attribute to put into the pipeline. Its mistakes are found at start, not at the first message."""
    prepared = attribute.prepare(scope)
    if not isinstance(prepared, Attribute):
        raise ConfigurationError(f"{attribute!r}: prepare has to return an Attribute, not {prepared!r}")
    if inspect.iscoroutinefunction(prepared.around) or inspect.isasyncgenfunction(prepared.around):
        raise ConfigurationError(f"{attribute!r}: around is a `def` with `yield from`, for async handlers too")
    return prepared
