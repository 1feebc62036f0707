"""Times in their HTTP form: in UTC, to the microsecond."""

from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from typing import Final, Self

from pump.queue.limits import FARTHEST_SECONDS

A_TIME: Final = "a time such as 2026-01-31T12:00:00Z"

_MICROSECONDS: Final = 1_000_000


class Time(float):
    """A time in seconds since the epoch; in JSON it is a text such as 2026-01-31T12:00:00Z."""

    __slots__ = ()

    @classmethod
    def read(cls, text: object) -> Self:
        """The time that a text names; without an offset it is in UTC. ValueError if the text is no time."""
        try:
            read = datetime.fromisoformat(text)  # type: ignore[arg-type]  # anything but a text is a TypeError
            found = cls((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
        except (TypeError, ValueError, OverflowError):
            found = cls(-1.0)
        if not 0 <= found <= FARTHEST_SECONDS:
            raise ValueError("Expected `time`")
        return found


def time_text(seconds: float | None) -> str | None:
    """The text of a time; None for None."""
    if seconds is None:
        return None
    fraction, whole = modf(seconds)
    microseconds = round(fraction * 1e6)  # rounds as datetime does
    if not 0 <= microseconds < _MICROSECONDS:
        whole, microseconds = whole + microseconds // _MICROSECONDS, microseconds % _MICROSECONDS
    return f"{_second_text(whole)}.{microseconds:06}Z"


@lru_cache(maxsize=1024)
def _second_text(whole: float) -> str:
    """The text of a whole second; cached, as the times of one reply fall into few seconds."""
    return datetime.fromtimestamp(whole, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
