"""How an error is logged: the first time with its traceback, without the pump's own lines; a repeat in one line."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from pump.clock import Clock, SystemClock
from pump.errors import PumpError
from pump.text import text_of

ErrorInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

REPEAT_SECONDS: Final = 60.0
"""An error from the same line within this time is a repeat."""
MOST_KNOWN: Final = 256
"""How many places of errors are remembered; when there are more, all are forgotten."""
_LONGEST: Final = 200


class ErrorLog:
    """Remembers which errors were logged a short time ago, by their type and the line that raised them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Final = clock or SystemClock()
        self._told: Final[dict[tuple[str, str], tuple[float, int]]] = {}

    def told(self, error: BaseException, level: int) -> tuple[str, ErrorInfo | None]:
        """Return the text to add to a log record about the error, and the record's `exc_info`."""
        key, now = (type(error).__qualname__, place(error) or in_a_line(error)), self._clock.monotonic()
        before = self._told.pop(key, None)
        if before is not None and now - before[0] < REPEAT_SECONDS and level <= before[1]:
            self._told[key] = before
            return f": {in_a_line(error)}, as before", None
        if len(self._told) >= MOST_KNOWN:
            self._told.clear()  # in one step: other threads log errors too
        self._told[key] = now, level
        return "", (type(error), error, cut(error))


def in_a_line(error: BaseException) -> str:
    """The error's type, its text, and where it was raised."""
    text = " ".join(text_of(error).split())[:_LONGEST]
    where = place(error)
    return f"{type(error).__name__}{f': {text}' if text else ''}{f' ({where})' if where else ''}"


def place(error: BaseException) -> str:
    """The file and number of the innermost traceback line outside the pump; "" if there is none."""
    own = [each for each in _frames(error.__traceback__) if not _is_ours(each)]
    return f"{Path(own[-1].tb_frame.f_code.co_filename).name}, line {own[-1].tb_lineno}" if own else ""


def cut(error: BaseException) -> TracebackType | None:
    """The traceback without the pump's own lines; whole at DEBUG, or if it has no others (None for a PumpError)."""
    whole = error.__traceback__
    if logging.getLogger("pump").isEnabledFor(logging.DEBUG):
        return whole
    kept: TracebackType | None = None
    for each in reversed([each for each in _frames(whole) if not _is_ours(each)]):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return whole if kept is None and not isinstance(error, PumpError) else kept


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(traceback: TracebackType) -> bool:
    return f"{traceback.tb_frame.f_globals.get('__name__', '')}.".startswith("pump.")
