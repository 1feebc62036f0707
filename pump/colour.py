"""Blocking or awaiting: which one a caller is, and the error for the wrong one."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from pump.errors import ConfigurationError

Colour: TypeAlias = Literal["blocking", "awaiting"]


def colour_of(function: Callable[..., object]) -> Colour:
    """Whether calling it gives an awaitable, as its definition says."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - the method is inspected, not asked for
        return "awaiting"
    return "blocking"


def must_not_block(called: str, twin: str) -> None:
    """Raise when called on a running loop, which a blocking call would stop; names what to call instead."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public one raises, and costs three times as much
        raise ConfigurationError(f"{called} blocks, and this thread runs an event loop: await {twin} instead")
