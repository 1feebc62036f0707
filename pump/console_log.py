"""The log of the commands on standard error: coloured on a terminal."""

import logging
import os
import sys
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error", "critical")

_FORMAT: Final = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"
_COLOURS: Final = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
"""INFO has the terminal's own colour."""
_END: Final = "\x1b[0m"


def log_to_stderr(level: str | None) -> None:
    """Log to standard error, unless the program has set up logging itself. A given level is set in either case.

    Other packages never log at DEBUG here: the level is for pump alone.
    """
    wanted = logging.getLevelNamesMapping()[(level or "info").upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter(colours=has_colours(sys.stderr)))
    logging.basicConfig(level=max(wanted, logging.INFO), handlers=[handler])
    if level is not None:
        logging.getLogger("pump").setLevel(wanted)


def has_colours(stream: TextIO) -> bool:
    """Whether the stream is a terminal that shows colours, and the environment does not forbid them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class ConsoleFormatter(logging.Formatter):
    """One line for each record; the whole line has the colour of its level."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__(_FORMAT)
        self._colours: Final = _COLOURS if colours else {}

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, with its traceback, if any, in the terminal's own colour."""
        text = super().format(record)
        colour = self._colours.get(record.levelno)
        if colour is None:
            return text
        line, newline, rest = text.partition("\n")
        return f"{colour}{line}{_END}{newline}{rest}"
