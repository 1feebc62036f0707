"""The colour of a function, blocking (`def`) or awaiting (`async def`), and what shows that neither has been run."""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final, Literal, TypeAlias

from pump.errors import ConfigurationError

Colour: TypeAlias = Literal["blocking", "awaiting"]

_ITERATED: Final = (GeneratorType, AsyncGeneratorType, map)
"""Work that is done only as far as somebody iterates over it."""


def colour_of(function: Callable[..., object]) -> Colour:
    """The colour of a function, as it is defined."""
    return "awaiting" if any(map(inspect.iscoroutinefunction, _defined(function))) else "blocking"


def has_yield(function: Callable[..., object]) -> bool:
    """Whether calling it runs nothing of it, but makes a generator, `async def` or not."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _defined(function))


def _defined(function: Callable[..., object]) -> tuple[object, object]:
    """Where it may be defined how it is called: in itself, and in the class of an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004 - the method is inspected, not asked for


def undone(result: object) -> str:
    """What is wrong with a result that shows that the work was not done, or failed; "" where it shows nothing."""
    name = type(result).__name__
    if isinstance(result, BaseException):
        return f"returned {name} instead of raising it: write `raise`"
    if isinstance(result, CoroutineType):
        result.close()  # nobody will await it, and Python shall not warn of that
    if inspect.isawaitable(result) or isinstance(result, concurrent.futures.Future):
        return f"returned a {name}, which nobody waits for: await it before the end of an `async def`"
    if isinstance(result, _ITERATED):
        return f"returned a {name}, which nobody iterates over: nothing, or not all, of its work was done"
    return ""


def must_not_block(called: str, twin: str) -> None:
    """Raise on the thread of a running event loop, which a blocking call would stop; name what to call instead."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises, and costs three times as much
        raise ConfigurationError(f"{called} blocks, and this thread runs an event loop: await {twin} instead")
