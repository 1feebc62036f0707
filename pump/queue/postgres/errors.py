"""The database's errors as ours, by what the caller can do. None of them quotes an address, a statement or a value."""

from typing import Final

import psycopg

from pump.errors import PumpError, SetupError
from pump.queue.errors import BadRequest, QueueUnavailable

UNAVAILABLE: Final = "database connection unavailable"
STALE: Final = "MP001"
"""What this process remembers of a queue is out of date."""
OTHER_MODE: Final = "MP002"
NO_KEY_HERE: Final = "MP003"

AGAIN: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: nothing was done, and the same call may succeed at once."""

PASSING: Final = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of what may pass by itself: connections, read-only stand-ins, resources, locks, operators, the system."""


def ours(error: psycopg.Error) -> PumpError:
    """What is raised in place of a database's error."""
    state = error.sqlstate or ""
    what = f"{type(error).__name__}{f', SQLSTATE {state}' if state else ''}"
    broken = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if broken or state.startswith(PASSING):
        return QueueUnavailable(f"{UNAVAILABLE} ({what})")
    if state == STALE:
        return QueueUnavailable("the queue is being changed all the time: try again")
    if isinstance(error, psycopg.DataError):
        return BadRequest(f"that is a number or a text which the database does not hold ({what})")
    return SetupError(f"the database does not let the queue work ({what})")
