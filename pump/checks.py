"""What is wrong with a number, a duration, a list or a text that a program gave: found in one place, in one wording.

Each function returns what to say after the thing's name, or "" where nothing is wrong.
"""

from collections.abc import Iterable
from datetime import timedelta
from math import isfinite
from numbers import Integral, Real

from pump.duration import seconds


def wrong_number(value: object, least: int | None = None) -> str:
    """A whole number, of at least that much."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return f"must be a whole number, not {value!r}"
    return f"must be at least {least}, not {value}" if least is not None and int(value) < least else ""


def wrong_duration(value: object, *, zero: bool = True) -> str:
    """A finite time that is not negative, and not 0 unless `zero`."""
    is_time = isinstance(value, timedelta) or (isinstance(value, Real) and not isinstance(value, bool))
    if not is_time or not isfinite(length := seconds(value)):  # type: ignore[arg-type] # mypy does not see that it is one
        return f"must be a number of seconds or a timedelta, not {value!r}"
    if length < 0 and zero:
        return f"must be at least 0, not {value}"
    return "" if length > 0 or zero else f"must be longer than 0 s, not {value}"


def wrong_list(value: object) -> str:
    """Several things, even if it is only one."""
    if isinstance(value, type | str) or not isinstance(value, Iterable):
        return f"is a list: write [{getattr(value, '__name__', None) or repr(value)}]"
    return ""


def wrong_text(value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str):
        return f"must be text, not {value!r}"
    return "" if value else "must not be empty"
