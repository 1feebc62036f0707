"""What one task of a shift does: it runs the whole dispatcher, as `pump run` does, until the shift is over."""

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pump.clock import Signal, SystemClock
from pump.errors import ConfigurationError, PumpError, SetupError, TransportError
from pump.program.dispatcher import Dispatcher
from pump.spark.cluster.links import DriverAddress, DriverLink, LinkHandler
from pump.text import text_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COLUMNS: Final = (
    "performer long, attempt long, host string, process long, status long, error string, seconds double, "
    "restarts long, stopped string, totals string"
)
"""The row that a task returns. `stopped` and `totals` are JSON: channels, and numbers by channel and verdict."""

_LOOK_SECONDS: Final = 0.05
_clock: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class Shift:
    """What every performer of a shift is told."""

    load: Callable[[], Dispatcher]
    """Makes or finds the dispatcher; it travels to the executors by its name."""
    number: int
    seconds: float
    folder: str
    """The driver's current folder: a performer works there, if its machine has it."""
    driver: DriverAddress
    log_level: str | None = None


def performing(shift: Shift) -> "Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]":
    """The function for `mapInArrow`: each number that comes in is a performer, and its row goes out at its end."""

    def perform_each(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        from pyarrow import RecordBatch  # noqa: PLC0415 - only Spark's workers have to load it
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield RecordBatch.from_pylist([perform(shift, number, attempt)])

    return perform_each


def perform(shift: Shift, number: int, attempt: int) -> dict[str, Any]:
    """Run the dispatcher until the shift's time is over, or the driver stops it; returns the row of COLUMNS.

    A failure of the program itself is told in the row: Spark tries a task again only when its process died.
    """
    began, until = _clock.monotonic(), Signal()
    told = {"performer": number + 1, "attempt": attempt, "host": socket.gethostname(), "process": os.getpid()}
    link = DriverLink(shift.driver, {**told, "shift": shift.number}, until.set)
    _enter(shift, link)
    dispatcher, status, error = None, 0, ""
    try:
        dispatcher = shift.load()
        watching = (shift, dispatcher, until, link)
        threading.Thread(target=_watch, args=watching, name="pump-shift", daemon=True).start()
        status = dispatcher.run(until)
    except Exception as failure:
        status, error = _status(failure), _text(failure)
    finally:
        until.set()
        link.close()
    states = () if dispatcher is None else dispatcher.states
    return {
        **told,
        "status": int(status),
        "error": error,
        "seconds": _clock.monotonic() - began,
        "restarts": sum(each.restarts for each in states),
        "stopped": json.dumps([] if dispatcher is None else list(dispatcher.stopped_channels)),
        "totals": json.dumps({} if dispatcher is None else {k: dict(v) for k, v in dispatcher.totals.items()}),
    }


def _enter(shift: Shift, link: DriverLink) -> None:
    """Work where the driver does, so that modules and relative paths are found; log to the driver."""
    if Path(shift.folder).is_dir():
        os.chdir(shift.folder)
        sys.path[:0] = [each for each in [shift.folder] if each not in sys.path]
    root, handler = logging.getLogger(), LinkHandler(link)
    for before in [each for each in root.handlers if isinstance(each, LinkHandler)]:  # of an earlier shift
        root.removeHandler(before)
    level = logging.getLevelNamesMapping()[(shift.log_level or "info").upper()]
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler])
    if shift.log_level is not None:
        logging.getLogger("pump").setLevel(level)


def _watch(shift: Shift, dispatcher: Dispatcher, until: Signal, link: DriverLink) -> None:
    """Tell the driver when the dispatcher is ready, and end it with the shift."""
    ends = _clock.monotonic() + shift.seconds
    while not until.is_set() and not dispatcher.ready and _clock.monotonic() < ends:
        _clock.wait(until, _LOOK_SECONDS)
    if not until.is_set():
        link.send({"ready": True})
        _clock.wait(until, max(0.0, ends - _clock.monotonic()))
    until.set()


def _status(error: Exception) -> int:
    """The exit status that `pump run` would have."""
    match error:
        case ConfigurationError():
            return 2
        case SetupError() | TransportError():
            return 3
        case PumpError():
            return 70
        case _:  # only the program's own lifespan can raise anything else
            return 3


def _text(error: Exception) -> str:
    return text_of(error) if isinstance(error, PumpError) else f"{type(error).__name__}: {text_of(error)}"
