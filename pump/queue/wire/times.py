"""Times as HTTP has them: in UTC, to the microsecond."""

from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from typing import Final, overload

from pump.queue.errors import BadRequest
from pump.queue.limits import check_seconds

_MICROSECONDS: Final = 1_000_000


def moment(what: str, text: str) -> float:
    """The time that a text names, in seconds since the epoch; without an offset it is UTC."""
    try:
        read = datetime.fromisoformat(text)
        found = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{what} must be a time such as 2026-01-31T12:00:00Z") from None
    return check_seconds(what, found)


@overload
def time_text(seconds: float) -> str: ...
@overload
def time_text(seconds: None) -> None: ...
@overload
def time_text(seconds: float | None) -> str | None: ...
def time_text(seconds: float | None) -> str | None:
    """The text of a time; None where there is none."""
    if seconds is None:
        return None
    fraction, whole = modf(seconds)
    microseconds = round(fraction * 1e6)  # as datetime rounds
    if not 0 <= microseconds < _MICROSECONDS:
        whole, microseconds = whole + microseconds // _MICROSECONDS, microseconds % _MICROSECONDS
    return f"{_second_text(whole)}.{microseconds:06}Z"


@lru_cache(maxsize=1024)
def _second_text(whole: float) -> str:
    """Most times of one reply are of few seconds."""
    return datetime.fromtimestamp(whole, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
