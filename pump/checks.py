"""Checks of the numbers, durations, lists and texts that a program gives: in one place, each with one wording.

Each function returns what is wrong, as a text to put after the option's name, or "" if nothing is wrong.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from math import isfinite
from numbers import Integral, Real
from types import FunctionType
from typing import get_origin

from pump.duration import seconds
from pump.errors import ConfigurationError


def named(value: object) -> str:
    """A class or a function by its name, a type such as list[int] as it is written, and all else by its repr."""
    return (
        value.__name__ if isinstance(value, type | FunctionType) else str(value) if get_origin(value) else repr(value)
    )


def wrong_number(value: object, least: int | None = None) -> str:
    """The value must be a whole number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return f"must be a whole number, not {value!r}"
    return f"must be at least {least}, not {value}" if least is not None and int(value) < least else ""


def wrong_amount(value: object, least: float = 0.0) -> str:
    """The value must be a finite number above 0, and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        return f"must be a number, not {value!r}"
    if least and float(value) < least:
        return f"must be at least {least:g}, not {value}"
    return "" if float(value) > 0 else f"must be above 0, not {value}"


def wrong_duration(value: object, *, zero: bool = True) -> str:
    """The value must be a finite time that is not negative, and not 0 unless `zero`."""
    is_time = isinstance(value, timedelta) or (isinstance(value, Real) and not isinstance(value, bool))
    if not is_time or not isfinite(length := seconds(value)):  # type: ignore[arg-type] # mypy does not see that it is one
        return f"must be a number of seconds or a timedelta, not {value!r}"
    if length < 0 and zero:
        return f"must be at least 0, not {value}"
    return "" if length > 0 or zero else f"must be longer than 0 s, not {value}"


def wrong_list(value: object) -> str:
    """The value must be a list or another collection, also for a single item."""
    if isinstance(value, type | str) or not isinstance(value, Iterable):
        is_plain = isinstance(value, type | str | FunctionType)
        return f"is a list: write [{named(value) if is_plain else f'{type(value).__name__}(…)'}]"
    return ""


def wrong_text(value: object) -> str:
    """The value must be text that is not empty."""
    if not isinstance(value, str):
        return f"must be text, not {value!r}"
    return "" if value else "must not be empty"


def wrong_errors(value: object) -> str:
    """The value must be a type of exceptions, or a tuple of such types."""
    kinds = value if isinstance(value, tuple) else (value,)
    if all(isinstance(each, type) and issubclass(each, BaseException) for each in kinds):
        return ""
    return f"must be a type of exceptions, or a tuple of such types, not {value!r}"


def wrong_switches(value: object) -> str:
    """The value must be a mapping or a function that says which feature switches are on, or None."""
    if value is None or isinstance(value, Mapping) or callable(value):
        return ""
    return f"must be a mapping of names to True or False, or a function of a name, not {value!r}"


def refuse(whose: str, **wrongs: str) -> None:
    """Raise a ConfigurationError for the first of these options that is wrong."""
    for name, wrong in wrongs.items():
        if wrong:
            raise ConfigurationError(f"{whose}: {name} {wrong}")
