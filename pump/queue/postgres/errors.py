"""Turns the database's errors into ours, by what the caller can do. None quotes an address, a statement or a value."""

from typing import Final

import psycopg

from pump.errors import PumpError
from pump.queue.causes import OTHER, of_state
from pump.queue.errors import BadRequest, QueueUnavailable, QueueUnusable

UNAVAILABLE: Final = "database connection unavailable"
STALE: Final = "MP001"
"""A cached lookup of this process is out of date."""
OTHER_MODE: Final = "MP002"
NO_KEY_HERE: Final = "MP003"

TRANSIENT: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: nothing was done, and the same call may succeed at once."""

TEMPORARY: Final = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of errors that may end by themselves: connections, read-only servers, resources, locks, operators, system."""


def as_ours(error: psycopg.Error) -> PumpError:
    """The error to raise in place of the database's error."""
    state = error.sqlstate or ""
    what = f"{type(error).__name__}{f', SQLSTATE {state}' if state else ''}"
    cause = of_state(state, "" if state else str(error))
    why = "" if cause is OTHER else f": {cause.words}"
    broken = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if broken or state.startswith(TEMPORARY):
        return QueueUnavailable(f"{UNAVAILABLE}{why} ({what})", cause)
    if state == STALE:
        return QueueUnavailable("the queue has changed meanwhile: try again")
    if isinstance(error, psycopg.DataError):
        return BadRequest(f"a number or a text that the database cannot store ({what})")
    return QueueUnusable(f"the database does not let the queue work{why} ({what})", cause)


def is_about_connecting(error: psycopg.Error) -> bool:
    """Whether the error quotes at most an address without its password, but no statement or value."""
    return not error.sqlstate or error.sqlstate.startswith(("08", "28", "3D", "57P"))
