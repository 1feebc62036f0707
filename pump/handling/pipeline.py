"""How attributes stand around a handler: one generator body for `def` and `async def`, one driver a message.

A pipeline is built once for a dispatcher, a channel and a handler, and runs any number of messages after that, in
any number of threads and tasks. It is given the handler with each message, so that may be a new one each time.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import CoroutineType, coroutine
from typing import Final, Generic, Literal, ParamSpec, TypeVar, cast, overload

from pump.attribute import Attribute, Rest, Scope, Steps, Wait
from pump.clock import Clock
from pump.colour import Colour
from pump.context import either, find_context
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PumpError

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class PipelineError(PumpError):
    """An attribute or a handler broke a rule of the pipeline: the message was not handled as it should be."""


class Pipeline(Generic[Result]):
    """The attributes of one handler, ready to run. It gives back what the handler does, or an awaitable of it."""

    def __init__(self, attributes: Sequence[Attribute], colour: Colour, scope: Scope) -> None:
        self.attributes: Final = tuple(_prepared(attribute, scope) for attribute in attributes)
        """What stands around the handler, outermost first."""
        self.colour: Final[Colour] = colour

    def run(self, handle: Callable[..., object], request: object) -> Result:
        """Run a request through the attributes to this handle: a function, or the method of an instance."""
        raise NotImplementedError

    def bind(self, handle: Callable[..., object]) -> Callable[[object], Result]:
        """The pipeline to one handle, for requests to come."""
        return partial(self.run, handle)


@overload
def build(attributes: Sequence[Attribute], colour: Literal["blocking"], scope: Scope) -> Pipeline[object]: ...
@overload
def build(
    attributes: Sequence[Attribute], colour: Literal["awaiting"], scope: Scope
) -> Pipeline[Awaitable[object]]: ...
def build(
    attributes: Sequence[Attribute], colour: Colour, scope: Scope
) -> Pipeline[object] | Pipeline[Awaitable[object]]:
    """The pipeline of these attributes, outermost first. Without any there is no driver: the handle runs bare."""
    if colour == "blocking":
        return (_BlockingPipeline if attributes else _BareBlocking)(attributes, colour, scope)
    return (_AwaitingPipeline if attributes else _BareAwaiting)(attributes, colour, scope)


def checked(result: object) -> object:
    """What a blocking handler returned; a PipelineError if that is a coroutine, which nobody would await."""
    if type(result) is CoroutineType:
        result.close()
        raise PipelineError(f"a handler that is no `async def` returned a coroutine: {result!r}")
    return result


class _BareBlocking(Pipeline[object]):
    def run(self, handle: Callable[..., object], request: object) -> object:
        result = handle(request)
        return result if result is None else checked(result)

    def bind(self, handle: Callable[..., object]) -> Callable[[object], object]:
        return handle


class _BareAwaiting(Pipeline[Awaitable[object]]):
    def run(self, handle: Callable[..., object], request: object) -> Awaitable[object]:
        return cast("Awaitable[object]", handle(request))

    def bind(self, handle: Callable[..., object]) -> Callable[[object], Awaitable[object]]:
        return cast("Callable[[object], Awaitable[object]]", handle)


class _BlockingPipeline(Pipeline[object]):
    def __init__(self, attributes: Sequence[Attribute], colour: Colour, scope: Scope) -> None:
        super().__init__(attributes, colour, scope)
        self._journeys = _Journeys(self.attributes, colour, scope.clock)

    def run(self, handle: Callable[..., object], request: object) -> object:
        journey = self._journeys.begin(handle, request)
        steps = journey.steps()
        try:
            for pause in steps:
                raise PipelineError(f"an attribute yielded {pause!r}: `yield from` was meant")
            return journey.value
        finally:
            steps.close()
            self._journeys.end(journey)


class _AwaitingPipeline(Pipeline[Awaitable[object]]):
    def __init__(self, attributes: Sequence[Attribute], colour: Colour, scope: Scope) -> None:
        super().__init__(attributes, colour, scope)
        self._journeys = _Journeys(self.attributes, colour, scope.clock)

    async def run(self, handle: Callable[..., object], request: object) -> object:
        journey = self._journeys.begin(handle, request)
        try:
            await journey
            return journey.value
        finally:
            self._journeys.end(journey)


class _Journey:
    """One message's way through a pipeline. It is used again for later messages, by one at a time."""

    __slots__ = ("answered", "first", "handle", "value")

    def __init__(self, attributes: Sequence[Attribute], colour: Colour, clock: Clock) -> None:
        self.answered = False
        """Whether the handler was run, or an attribute has said that it answers instead."""
        self.handle: Callable[..., object] = _nobody
        self.value: object = None
        """The request on the way in, the result on the way out."""
        tools = _Tools(self, colour, clock)
        rest = tools.equip(_blocking_leaf(self) if colour == "blocking" else _awaiting_leaf(self))
        for attribute in reversed(attributes):
            rest = tools.equip(_link(attribute.around, rest))
        self.first: Final = rest

    def steps(self) -> Generator[Wait, None, None]:
        self.value = yield from self.first(self.value)
        if not self.answered:
            raise PipelineError(
                "an attribute returned without having run the handler: `yield from rest(request)` is missing, "
                "or `return rest.skip(result)` where that is meant"
            )

    __await__ = steps


class _Journeys:
    """Those of one pipeline that nobody is on. Safe with threads: appending and popping are single steps."""

    __slots__ = ("_idle", "_make")

    def __init__(self, attributes: Sequence[Attribute], colour: Colour, clock: Clock) -> None:
        self._idle: list[_Journey] = []
        self._make = partial(_Journey, attributes, colour, clock)

    def begin(self, handle: Callable[..., object], request: object) -> _Journey:
        try:
            journey = self._idle.pop()
        except IndexError:
            journey = self._make()
        journey.handle = handle
        journey.value = request
        journey.answered = False
        return journey

    def end(self, journey: _Journey) -> None:
        journey.handle = _nobody
        journey.value = None
        self._idle.append(journey)


def _nobody(_: object) -> object:
    raise PipelineError("an attribute kept its `rest` and used it after the message was done")


def _link(around: Callable[[object, Rest], Steps], inner: Rest) -> Callable[[object], Steps]:
    # A function, not an object with __call__: that would cost a quarter more.
    def rest(request: object) -> Steps:
        return around(request, inner)

    return rest


def _blocking_leaf(journey: _Journey) -> Callable[[object], Steps]:
    def leaf(request: object) -> Steps:
        journey.answered = True
        try:
            result = journey.handle(request)
            return result if result is None else checked(result)
        except (StopIteration, GeneratorExit) as error:
            raise _unfit(error) from error
        yield Wait()  # type: ignore[unreachable]  # pragma: no cover - it makes this a generator

    return leaf


def _awaiting(function: Callable[Arguments, Steps]) -> Callable[Arguments, Steps]:
    """Let a generator function `yield from` coroutines."""
    return cast("Callable[Arguments, Steps]", coroutine(function))


def _awaiting_leaf(journey: _Journey) -> Callable[[object], Steps]:
    @_awaiting
    def leaf(request: object) -> Steps:
        journey.answered = True
        try:
            waiting = journey.handle(request)
            steps = cast("Steps", waiting) if type(waiting) is CoroutineType else _waiting(waiting)
            return (yield from steps)
        except (StopIteration, GeneratorExit) as error:
            if _is_closing(error):
                raise
            raise _unfit(error) from error

    return leaf


def _waiting(awaitable: object) -> Steps:
    """What an awaiting generator may `yield from` to await it."""
    if not inspect.isawaitable(awaitable):
        raise PipelineError(f"an async handler returned what cannot be awaited: {awaitable!r}")
    begin = getattr(awaitable, "__await__", None)  # a generator marked by types.coroutine has none
    return cast("Steps", awaitable if begin is None else begin())


def _unfit(error: BaseException) -> PipelineError:
    return PipelineError(f"the handler raised {type(error).__name__}, which means something else to a generator")


def _is_closing(error: BaseException) -> bool:
    """Whether Python raised it at our own `yield from`, as the task is dropped, rather than the handler."""
    trace = error.__traceback__
    return isinstance(error, GeneratorExit) and trace is not None and trace.tb_next is None


class _Tools:
    """What `rest` can do besides being called."""

    def __init__(self, journey: _Journey, colour: Colour, clock: Clock) -> None:
        self.colour: Final[Colour] = colour
        self.clock: Final = clock
        self.call: Final = _call if colour == "blocking" else _call_awaiting
        self._wait: Final[Callable[..., object]] = clock.wait if colour == "blocking" else clock.wait_async
        self._journey: Final = journey

    def equip(self, function: Callable[[object], Steps]) -> Rest:
        for name in ("call", "clock", "colour", "instance", "skip", "sleep"):
            setattr(function, name, getattr(self, name))
        return cast("Rest", function)

    def skip(self, result: object = None, /) -> object:
        self._journey.answered = True
        return result

    def sleep(self, duration: Duration, /) -> Generator[Wait, None, bool]:
        context = find_context()
        signals = () if context is None else (context.cancelled, context.stopping)
        with either(*signals) as signal:
            return bool((yield from self.call(self._wait, signal, seconds(duration))))

    def instance(self) -> object | None:
        return getattr(self._journey.handle, "__self__", None)


def _call(function: Callable[..., object], /, *arguments: object) -> Steps:
    return checked(function(*arguments))
    yield Wait()  # type: ignore[unreachable]  # pragma: no cover - it makes this a generator


@_awaiting
def _call_awaiting(function: Callable[..., object], /, *arguments: object) -> Steps:
    result = function(*arguments)
    return (yield from _waiting(result)) if inspect.isawaitable(result) else result


def _prepared(attribute: Attribute, scope: Scope) -> Attribute:
    """What stands in the pipeline for an attribute. Its mistakes show at start, not at the first message."""
    prepared = attribute.prepare(scope)
    if not isinstance(prepared, Attribute):
        raise ConfigurationError(f"{attribute!r}: prepare has to return an Attribute, not {prepared!r}")
    if inspect.iscoroutinefunction(prepared.around) or inspect.isasyncgenfunction(prepared.around):
        raise ConfigurationError(f"{attribute!r}: around is a `def` with `yield from`, for async handlers too")
    return prepared
