"""The colour of a function, blocking (`def`) or awaiting (`async def`), and the error for the wrong one."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from pump.errors import ConfigurationError

Colour: TypeAlias = Literal["blocking", "awaiting"]


def colour_of(function: Callable[..., object]) -> Colour:
    """The colour of a function, as it is defined."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method is inspected, not asked for
        return "awaiting"
    return "blocking"


def must_not_block(called: str, twin: str) -> None:
    """Raise on the thread of a running event loop, which a blocking call would stop; name what to call instead."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises, and costs three times as much
        raise ConfigurationError(f"{called} blocks, and this thread runs an event loop: await {twin} instead")
