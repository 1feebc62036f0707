"""Makes the handler of each message, runs it in its pipeline, and closes what its factory opened for it.

If the factory returns a context manager of either colour, it is entered for one message and one handler. It is left
before the pump acknowledges, so that an error on leaving, such as a failed commit, fails the message. If the handler
settles the message later, it is left after that. It gets the handler's error and cannot make it a success. It may
raise an error of its own in its place, but not in place of a decision, nor of an end by a stop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final

from pump.attribute import is_decision
from pump.checks import named
from pump.context import current_context
from pump.errors import ConfigurationError
from pump.handling.pipeline import Pipeline, done, is_closing
from pump.handling.registry import Registration
from pump.message import Message
from pump.telemetry import log
from pump.verdict import SetupFault

Factory = Callable[[type], object]
Run = Callable[[Any], Any]
"""Runs a request, and returns the handler's result, or an awaitable of it."""


def runner(registration: Registration, pipeline: Pipeline, factory: Factory | None) -> Run:
    """The function that runs requests: the handler function itself, or one that makes an instance for each."""
    run, handle, cls = pipeline.run, registration.handle, registration.cls
    if cls is None:
        return partial(run, handle)
    if factory is not None:
        if registration.colour == "blocking" and inspect.isasyncgenfunction(inspect.unwrap(factory)):
            raise ConfigurationError(_of_the_wrong_colour(registration.name, named(factory)))
        return _Making(registration, pipeline, factory).run

    def run_new(request: Any) -> Any:  # noqa: ANN401 - of whatever type the handler takes
        try:
            instance = cls()
        except ConfigurationError as error:
            raise SetupFault(str(error)) from error
        return run(instance.handle, request)

    return run_new


class _Making:
    """The handler class of one pipeline, and the factory of its instances."""

    def __init__(self, registration: Registration, pipeline: Pipeline, factory: Factory) -> None:
        assert registration.cls is not None  # noqa: S101 - only a class has a factory
        self._cls: Final = registration.cls
        self._name: Final = registration.name
        self._explicit: Final = registration.explicit
        self._awaits: Final = registration.colour == "awaiting"
        self._run: Final = pipeline.run
        self._factory: Final = factory

    def run(self, request: Any) -> Any:  # noqa: ANN401 - of whatever type the handler takes
        """Run a request on what the factory makes."""
        try:
            made = self._factory(self._cls)
        except ConfigurationError as error:
            raise SetupFault(str(error)) from error
        handle: Callable[..., object] | None = getattr(made, "handle", None)
        if handle is not None:
            return self._run(handle, request)
        if self._awaits and isinstance(made, AbstractAsyncContextManager):
            return self._run_within_async(made, request)
        if isinstance(made, AbstractContextManager):
            return (
                self._run_within_async(_AwaitedManager(made), request)
                if self._awaits
                else self._run_within(made, request)
            )
        raise self._fault(made)

    def _fault(self, made: object) -> SetupFault:
        what = type(made).__name__
        text = f"{self._name}: the factory made {what} of it, which has no handle method and is not a context manager"
        is_async = isinstance(made, AbstractAsyncContextManager)
        error = ConfigurationError(_of_the_wrong_colour(self._name, what) if is_async else f"{text} that gives one")
        fault = SetupFault(str(error))
        fault.__cause__ = error
        return fault

    def _handle_of(self, entered: object) -> Callable[..., object]:
        handle: Callable[..., object] | None = getattr(entered, "handle", None)
        if handle is None:
            raise self._fault(entered)
        return handle

    # -- blocking

    def _run_within(self, manager: AbstractContextManager[Any], request: object) -> object:
        entered = manager.__enter__()
        try:
            result = self._run(self._handle_of(entered), request)
        except BaseException as error:
            self._leave(manager, error)
            raise
        if not self._is_kept(lambda: self._leave_later(manager)):
            manager.__exit__(None, None, None)
        return result

    def _leave(self, manager: AbstractContextManager[Any], error: BaseException) -> None:
        try:
            manager.__exit__(type(error), error, error.__traceback__)
        except BaseException as closing:
            if closing is not error and not self._stands(error, closing):
                raise

    def _leave_later(self, manager: AbstractContextManager[Any]) -> None:
        try:
            manager.__exit__(None, None, None)
        except Exception as error:
            self._log(error)

    # -- awaiting

    async def _run_within_async(self, manager: AbstractAsyncContextManager[Any], request: object) -> object:
        entered = await manager.__aenter__()
        try:
            result = done(await self._run(self._handle_of(entered), request))
        except BaseException as error:
            if not is_closing(error):  # else the task was dropped, and nothing can be awaited
                await self._leave_async(manager, error)
            raise
        loop = asyncio.get_running_loop()
        if not self._is_kept(lambda: self._leave_soon(manager, loop)):
            await manager.__aexit__(None, None, None)
        return result

    async def _leave_async(self, manager: AbstractAsyncContextManager[Any], error: BaseException) -> None:
        try:
            await manager.__aexit__(type(error), error, error.__traceback__)
        except BaseException as closing:
            if closing is not error and not self._stands(error, closing):
                raise

    def _leave_soon(
        self, manager: AbstractAsyncContextManager[Any], loop: asyncio.AbstractEventLoop
    ) -> Awaitable[None]:
        async def leave() -> None:
            try:
                await manager.__aexit__(None, None, None)
            except Exception as error:
                self._log(error)

        leaving = leave()
        try:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(leaving, loop), loop=loop)
        except RuntimeError:  # the loop is closed, and everything on it has ended
            leaving.close()
            return _NOTHING

    # -- either

    def _stands(self, error: BaseException, closing: BaseException) -> bool:
        """Whether the handler's error is raised, although closing raised another one."""
        stands = is_decision(error) or not isinstance(error, Exception)
        if stands:
            self._log(closing)
        return stands

    def _log(self, error: BaseException) -> None:
        log.error("%s: what its factory opened could not be closed: %s", self._name, error, exc_info=error)

    def _is_kept(self, close: Callable[[], object]) -> bool:
        """Whether the handler settles its message later: the manager is closed then, or when the message is lost."""
        message = current_context().message if self._explicit else None
        if message is None or _is_over(message):
            return False
        message.release = release = _Release(message, close)
        if _is_over(message):  # another thread has just settled it
            release()
        return True


def _of_the_wrong_colour(handler: str, made: str) -> str:
    return (
        f"{handler}: what the factory makes for it ({made}) is an async context manager, and its handle method is "
        "`def`: make a blocking one"
    )


def _is_over(message: Message) -> bool:
    return message.settled or message.lost or message.answered


class _AwaitedManager(AbstractAsyncContextManager[Any]):
    """A blocking context manager for awaiting callers: entering and leaving it block the loop."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager: Final = manager

    async def __aenter__(self) -> Any:  # noqa: ANN401 - whatever it gives
        return self._manager.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, trace)


class _Nothing:
    """An awaitable that waits for nothing."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTHING: Final = _Nothing()


class _Release:
    """Closes what was opened for a message, once, however often it is called."""

    def __init__(self, message: Message, close: Callable[[], object]) -> None:
        self._message: Final = message
        self._closes: Final = [close]

    def __call__(self) -> object:
        self._message.release = None
        try:
            close = self._closes.pop()
        except IndexError:  # another thread was faster
            return _NOTHING
        return close()
