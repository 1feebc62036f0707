"""Durations, as users write them: a number of seconds, or a timedelta."""

from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = float | timedelta


def seconds(duration: Duration) -> float:
    """The duration as a number of seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
