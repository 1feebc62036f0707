"""Durations, as users write them: a number of seconds, or a timedelta."""

from datetime import timedelta
from math import isfinite
from numbers import Real
from typing import Final, TypeAlias

LONGEST_DELAY: Final = 100 * 365.25 * 24 * 3600
"""A hundred years, in seconds: every broker can count that far."""

Duration: TypeAlias = float | timedelta


def seconds(duration: Duration) -> float:
    """The duration as a number of seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def delay_seconds(delay: Duration) -> float:
    """The delay as a number of seconds; ValueError if the value cannot be a delay."""
    if isinstance(delay, bool) or not isinstance(delay, Real | timedelta):
        raise ValueError(f"a delay must be a number of seconds or a timedelta, not {delay!r}")  # noqa: TRY004 - as for others
    length = seconds(delay)
    if length < 0:
        raise ValueError(f"a delay cannot be negative: {length} s")
    if not isfinite(length) or length > LONGEST_DELAY:
        raise ValueError(f"a delay must be at most a hundred years, not {length} s")
    return length
