"""The colour of a function, blocking (`def`) or awaiting (`async def`), and the signs that it was not really run."""

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
"""Types of results whose work is done only while somebody iterates over them."""


def colour_of(function: Callable[..., object]) -> Colour:
    """The colour of a function, as it is defined."""
    return "awaiting" if any(map(inspect.iscoroutinefunction, _defined(function))) else "blocking"


def has_yield(function: Callable[..., object]) -> bool:
    """Whether a call runs nothing of the function, but makes a generator, `async def` or not."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _defined(function))


def _defined(function: Callable[..., object]) -> tuple[object, object]:
    """The two places that may define the colour: the function itself, and the `__call__` of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004 - the method is inspected, not asked for


def undone(result: object) -> str:
    """How a result shows that the work was not done, or failed; "" if it does not show that."""
    name = type(result).__name__
    if isinstance(result, BaseException):
        return f"returned {name} instead of raising it: write `raise`"
    if isinstance(result, CoroutineType):
        result.close()  # nobody will await it, and Python must not warn about that
    if inspect.isawaitable(result) or isinstance(result, concurrent.futures.Future):
        return f"returned a {name}, which nobody waits for: await it before the end of an `async def`"
    if isinstance(result, _ITERATED):
        return f"returned a {name}, which nobody iterates over: nothing, or not all, of its work was done"
    return ""


def must_not_block(called: str, twin: str) -> None:
    """Raise if this thread runs an event loop, which a blocking call would stop; name what to call instead."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises, and costs three times as much
        raise ConfigurationError(f"{called} blocks, and this thread runs an event loop: await {twin} instead")
