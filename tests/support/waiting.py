"""Waits in real time for other threads and processes: always for a condition, never for a fixed time."""

import asyncio
import time
from collections.abc import Callable

LIMIT = 30.0
"""After this many seconds a wait fails."""


def eventually(condition: Callable[[], object], timeout: float = LIMIT) -> None:
    """Return as soon as the condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {timeout:g} s"
        time.sleep(0.002)


async def eventually_async(condition: Callable[[], object], timeout: float = LIMIT) -> None:
    """The same, awaited."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {timeout:g} s"
        await asyncio.sleep(0.002)
