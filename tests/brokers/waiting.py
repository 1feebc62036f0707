"""Waiting for what must come, with a deadline."""

import time
from collections.abc import Callable

LONG = 60.0
"""Seconds; generous, since only a failing test waits that long, and machines are shared."""


def wait_until(condition: Callable[[], object], what: str, *, deadline_seconds: float = LONG) -> None:
    """Return as soon as the condition holds; after the deadline, an error that says what did not happen."""
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_seconds:g} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
