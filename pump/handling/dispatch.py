"""How one message gets to its handlers, in both colours: find them, map the body, run each in a context."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pump.attribute import Scope, SwitchProvider, is_decision
from pump.clock import Clock, SystemClock
from pump.context import Context, enter_context, leave_context
from pump.errors import UNMAPPABLE, ConfigurationError, InvalidMessageAction, PumpError, Undecodable
from pump.handling.making import Factory, Run, runner
from pump.handling.pipeline import Pipeline, done
from pump.handling.registry import Registration
from pump.mapping.errors import MappingError
from pump.mapping.mapper import JsonMapper, Mapper
from pump.message import Message
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.own_task import OwnTask, is_cancelled
from pump.subscription import Subscription
from pump.telemetry import Telemetry
from pump.verdict import SetupFault
from pump.wire_name import wire_type

if TYPE_CHECKING:
    from pump.program.processor import CommandProcessor

Result = TypeVar("Result", covariant=True)

_SHOWN: Final = 100
"""How many characters of an unknown type are shown: the sender may have made it long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """The options of a dispatcher that handlers, their attributes and their mappers need."""

    name: str = ""
    factory: Factory | None = None
    """Makes the handler of each message from its class; None calls the class without arguments."""
    mappers: Mapping[type, Mapper[Any]] = field(default_factory=dict)
    switches: SwitchProvider | None = None
    clock: Clock = field(default_factory=SystemClock)
    telemetry: Telemetry = field(default_factory=Telemetry)

    def mapper(self, request: Any) -> Mapper[Any]:  # noqa: ANN401 - a type may be any type form
        """The mapper given for a type, or the default one; a ConfigurationError if the type cannot be mapped."""
        given = self.mappers.get(request) if isinstance(request, type) else None
        return given if given is not None else JsonMapper(request)


@dataclass(frozen=True, slots=True)
class Bound:
    """A handler with the pipeline of its attributes, ready to be called for a message."""

    registration: Registration
    pipeline: Pipeline
    run: Run
    """Runs a request, on a new instance if the handler is a class; a SetupFault if that cannot be made."""


def bind(registration: Registration, settings: DispatchSettings, channel: str) -> Bound:
    """Build the handler's pipeline for one channel; its attributes share no state with other pipelines."""
    scope = Scope(
        clock=settings.clock,
        switches=settings.switches,
        dispatcher=settings.name,
        channel=channel,
        handler=registration.name,
        telemetry=settings.telemetry,
        owner=registration.cls or getattr(registration.handle, "__self__", None),
        request=registration.request if isinstance(registration.request, type) else None,
    )
    pipeline = Pipeline(registration.attributes, registration.colour, scope)
    return Bound(registration, pipeline, runner(registration, pipeline, settings.factory))


@dataclass(frozen=True, slots=True)
class _Route:
    mapper: Mapper[Any]
    handlers: tuple[Bound, ...]


class Router:
    """Finds mapper and handlers for each message of one subscription. Shared by the performers of its channel."""

    def __init__(
        self,
        rules: Subscription,
        registrations: Sequence[Registration],
        settings: DispatchSettings,
        processor: "CommandProcessor",
    ) -> None:
        self.settings: Final = settings
        self.processor: Final = processor
        self._routes: dict[Any, _Route] = {}
        """By the request's type, or by its name on the wire where all messages are of one type."""
        for registration in registrations:
            route = self._routes.get(registration.request)
            bound = bind(registration, settings, rules.channel)
            mapper = settings.mapper(registration.request) if route is None else route.mapper
            self._routes[registration.request] = _Route(mapper, (*(route.handlers if route else ()), bound))
        self._tell_type: Final = None if rules.request_type is not None else rules.request
        if rules.request_type is not None:
            route = self._routes[rules.request]
            self._routes = {wire_type(rules.request_type): route, "": route}

    def names(self, message: Message) -> str:
        """The names of the handlers of a message; "" where there are none."""
        try:
            return ", ".join(each.registration.name for each in self.route(message).handlers)
        except Exception:
            return ""

    def route(self, message: Message) -> _Route:
        """The mapper and the handlers of a message; InvalidMessageAction where there are none."""
        try:
            route = self._routes.get(message.header.type if self._tell_type is None else self._tell_type(message))
        except Exception as error:
            if is_decision(error):
                raise
            raise InvalidMessageAction("its type cannot be determined") from error
        if route is None:
            raise InvalidMessageAction("unknown type") from MappingError(
                f"nothing here handles the type {message.header.type[:_SHOWN]!r}"
            )
        return route


def request_of(mapper: Mapper[Any], message: Message) -> object:
    """The request in a message; Undecodable if it cannot be mapped, SetupFault if the mapper is set up wrongly."""
    try:
        return mapper.decode(message)
    except ConfigurationError as error:
        raise SetupFault(str(error)) from error
    except Exception as error:
        if is_decision(error):
            raise
        raise Undecodable(UNMAPPABLE) from error


class _Dispatching(Generic[Result]):
    """The part that both colours share, from a message to running its handlers."""

    __slots__ = ("_channel", "_clock", "_processor", "_router", "_stopping")

    def __init__(self, router: Router, channel: Channel | AsyncChannel) -> None:
        self._router: Final = router
        self._channel: Final = channel
        self._stopping: Final = channel.judge.stopping
        self._processor: Final = router.processor
        self._clock: Final = router.settings.clock

    def __call__(self, message: Message) -> Result:
        """Map the message and run its handlers; an awaiting pump has to await the result to run them."""
        route = self._router.route(message)
        request = request_of(route.mapper, message)
        if len(route.handlers) == 1:
            return self._run(route.handlers[0], message, request)
        return self._run_all(route.handlers, message, request)

    @abstractmethod
    def _run(self, bound: Bound, message: Message, request: object) -> Result: ...
    @abstractmethod
    def _run_all(self, handlers: Sequence[Bound], message: Message, request: object) -> Result: ...


class Dispatch(_Dispatching[object]):
    """Runs the handlers of a message one after another, in this thread. Several errors are raised as one group."""

    __slots__ = ()

    def _run(self, bound: Bound, message: Message, request: object) -> object:
        registration = bound.registration
        context = Context(self._processor, registration.name, message, clock=self._clock, stopping=self._stopping)
        token = enter_context(context)
        try:
            if registration.wrapper is not None:
                message.explicit = True
                request = registration.wrapper(message, request, self._channel)
            message.handler, message.interrupt = registration.name, context.cancel
            return bound.run(request)
        except BaseException:
            message.handler = registration.name
            raise
        finally:
            message.interrupt = None
            leave_context(token)

    def _run_all(self, handlers: Sequence[Bound], message: Message, request: object) -> object:
        errors: list[BaseException] = []
        failed = ""
        for bound in handlers:
            if message.ended:
                errors.append(_not_all_run())
                break
            try:
                self._run(bound, message, request)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                errors.append(error)
                failed = message.handler
        message.handler = failed or message.handler
        return _raised(errors, handlers)


class AsyncDispatch(_Dispatching[Awaitable[object]]):
    """The same, awaited in this task. A lost lease cancels the handler; other cancellations are kept apart."""

    __slots__ = ("_loop",)

    def __init__(self, router: Router, channel: AsyncChannel, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(router, channel)
        self._loop: Final = loop  # if given, it is not looked up for each message, which costs as much as mapping

    async def _run(self, bound: Bound, message: Message, request: object) -> object:
        registration = bound.registration
        context = _TaskContext(self._processor, registration.name, message, clock=self._clock, stopping=self._stopping)
        context.task, context.interrupted = asyncio.current_task(self._loop), False
        token = enter_context(context)
        try:
            if registration.wrapper is not None:
                message.explicit = True
                request = registration.wrapper(message, request, self._channel)
            message.handler, message.interrupt = registration.name, context.interrupt
            result = await bound.run(request)
            return result if result is None else done(result)
        except BaseException:
            message.handler = registration.name
            raise
        finally:
            message.interrupt = None
            if context.interrupted and context.task is not None:
                context.task.uncancel()
            leave_context(token)
            if isinstance(context.task, OwnTask) and context.task.own_cancellations:
                await context.task.recover()

    async def _run_all(self, handlers: Sequence[Bound], message: Message, request: object) -> object:
        errors: list[BaseException] = []
        failed = ""
        for bound in handlers:
            if message.ended:
                errors.append(_not_all_run())
                break
            try:
                await self._run(bound, message, request)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if _cancelled(error):
                    raise
                errors.append(error)
                failed = message.handler
        message.handler = failed or message.handler
        return _raised(errors, handlers)


def _not_all_run() -> PumpError:
    return PumpError("the pump stops: the other handlers run when the message comes again")


def _raised(errors: Sequence[BaseException], handlers: Sequence[Bound]) -> object:
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} of {len(handlers)} handlers failed", errors)
    return None


class _TaskContext(Context):
    """A context that ends its handler by cancelling the task; the cancellation is taken back when the handler ended."""

    __slots__ = ("interrupted", "task")

    task: "asyncio.Task[Any] | None"
    interrupted: bool

    def interrupt(self) -> None:
        """The message is lost: end its handler, whose result no longer matters. Any thread may call it."""
        loop = None if self.task is None else self.task.get_loop()
        if loop is None or _runs_here(loop):
            self._interrupt()
        else:
            with suppress(RuntimeError):  # the loop is closed, and the task with it
                loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        ended = self.message.interrupt != self.interrupt  # the handler ended before the loop got here
        if not ended and not self.interrupted and self.task is not None:
            self.interrupted = True
            self.cancel()
            self.task.cancel()


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs
        return False


def _cancelled(error: BaseException) -> bool:
    """Whether this task itself was cancelled, rather than something that it awaited."""
    return isinstance(error, asyncio.CancelledError) and is_cancelled()
