"""Reads the headers that a pump writes as text. Anybody may have written them, so everything is checked."""

from math import isfinite
from typing import Final, cast, get_args

from pump.message import Kind

KINDS: Final = frozenset(get_args(Kind))
"""The kinds of messages."""
_LONGEST_COUNT: Final = 9
_MOST_SHOWN: Final = 80


def kind_of(name: str, text: str) -> Kind:
    """The kind of a message, of the header of this name; ValueError if there is no such kind."""
    if text not in KINDS:
        raise _wrong(name, text, f"one of {', '.join(sorted(KINDS))}")
    return cast("Kind", text)


def is_count(text: str) -> bool:
    """Whether the text is a whole number below a billion, such as a number of attempts."""
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_COUNT


def count_of(name: str, text: str) -> int:
    """The number in a header; ValueError if it is not a whole number below a billion."""
    if not is_count(text):
        raise _wrong(name, text, "a whole number")
    return int(text)


def time_of(name: str, text: str) -> float:
    """The time in a header, in seconds since the epoch; ValueError if it is not a finite number."""
    try:
        time = float(text)
    except ValueError:
        time = float("nan")
    if not isfinite(time):
        raise _wrong(name, text, "a time in seconds")
    return time


def _wrong(name: str, text: str, expected: str) -> ValueError:
    return ValueError(f"its header {name} must be {expected}, not {text[:_MOST_SHOWN]!r}")
