"""A program's own context: entered before the first message, and left after the last."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Final, TypeAlias

from pump.clock import Signal
from pump.context import either
from pump.errors import ConfigurationError
from pump.program.stopping import Waits, real_clock
from pump.telemetry import log

ContextManager: TypeAlias = AbstractContextManager[object] | AbstractAsyncContextManager[object]
GivenLifespan: TypeAlias = ContextManager | Callable[[], ContextManager]

LAST_MOMENT: Final = 0.15
"""How many seconds a lifespan may take to end after it was cancelled because its time was over."""


_KINDS: Final = (AbstractContextManager, AbstractAsyncContextManager)


def checked_lifespan(given: GivenLifespan) -> GivenLifespan:
    """The given lifespan; a ConfigurationError if it cannot be one."""
    if isinstance(given, _KINDS):
        return given
    name = name_of(given)
    if not callable(given):
        raise ConfigurationError(f"lifespan={name} is neither a context manager nor a function that makes one")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        decorator = "asynccontextmanager" if inspect.isasyncgenfunction(given) else "contextmanager"
        raise ConfigurationError(f"lifespan={name} is a generator: put @contextlib.{decorator} on it")
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise ConfigurationError(f"lifespan={name} has to be called without arguments: {error}") from error
    except ValueError:  # its parameters are unknown: the call will show
        pass
    return given


def name_of(value: object) -> str:
    """The name of a function or class; for other objects, the name of the type."""
    return getattr(value, "__qualname__", None) or type(value).__qualname__


class Lifespan:
    """One entering and leaving of the context. One thread, or one task, does both, and nothing else."""

    def __init__(self, given: GivenLifespan) -> None:
        self._name: Final = name_of(given)
        made = given if isinstance(given, _KINDS) else given()
        if not isinstance(made, _KINDS):
            raise ConfigurationError(
                f"lifespan={self._name} returned {type(made).__name__}, which is not a context manager: put "
                "@contextlib.contextmanager or asynccontextmanager on it"
            )
        self._context: Final[ContextManager] = made
        self.awaits: Final = isinstance(made, AbstractAsyncContextManager)
        """Whether it needs a loop."""
        self._begun: Final = Signal()
        """Set when it has been entered, or has failed to be."""
        self._leave: Final = Signal()
        self._ended: Final = Signal()
        self._is_entered = False
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def enter(self, loop: asyncio.AbstractEventLoop | None, asked: Signal) -> Waits:
        """Enter the context, and raise what it raises. If a stop is requested first, give it up."""
        if self.awaits and loop is not None:
            self._loop = loop
            loop.call_soon_threadsafe(self._begin_task)
        else:
            threading.Thread(target=self._run, name="pump-lifespan", daemon=True).start()
        with either(self._begun, asked) as first:
            yield first, None
        if not self._begun.is_set():
            self._cancel()
        elif self._error is not None:
            raise self._error

    def leave(self, until: float) -> Waits:
        """Leave the context by this time. One that does not end is cancelled, if it can be, and abandoned."""
        self._leave.set()
        yield self._ended, until - LAST_MOMENT - real_clock.monotonic()
        if not self._ended.is_set():
            self._cancel()
            yield self._ended, until - real_clock.monotonic()
        if not self._ended.is_set():
            log.error("the lifespan %s has not ended in time; the stop does not wait for it any longer", self._name)

    @property
    def failure(self) -> BaseException | None:
        """The error that it raised when it was left."""
        return self._error if self._is_entered else None

    # -- the thread, or the task

    def _run(self) -> None:
        assert isinstance(self._context, AbstractContextManager)  # noqa: S101 - one that does not await blocks
        try:
            with self._context:
                self._entered()
                real_clock.wait(self._leave, None)
        except BaseException as error:
            self._failed(error)
        finally:
            self._end()

    async def _run_async(self) -> None:
        assert isinstance(self._context, AbstractAsyncContextManager)  # noqa: S101 - see `awaits`
        try:
            async with self._context:
                self._entered()
                await real_clock.wait_async(self._leave, None)
        except BaseException as error:
            self._failed(error)
        finally:
            self._end()

    def _begin_task(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_async(), name="pump-lifespan")

    def _entered(self) -> None:
        self._is_entered = True
        self._begun.set()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and (self._is_cancelled or self._is_entered):
            return  # by us, or by the end of the loop
        error.add_note(f"raised by the dispatcher's lifespan, {self._name}")
        self._error = error

    def _end(self) -> None:
        self._begun.set()
        self._ended.set()

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and its tasks with it
                self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
