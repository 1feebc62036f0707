"""Waiting for a condition, with a deadline."""

import time
from collections.abc import Callable

LONG = 120.0
"""Seconds. It is generous: only a failing test waits that long, and other programs may load the machine."""


def wait_until(condition: Callable[[], object], what: str, *, deadline_seconds: float = LONG) -> None:
    """Return when the condition is true; after the deadline, raise an error that says what did not happen."""
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_seconds:g} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
