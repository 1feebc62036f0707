"""Ends a process in time, whatever still runs in it."""

import logging
import os
import threading
from typing import Final

from pump.clock import Signal, SystemClock

log: Final = logging.getLogger("pump.cli")


def end_by(moment: float, status: int) -> None:
    """Make the process end by this monotonic time: Python itself waits for threads without a limit.

    A handler that was cancelled may have left such a thread behind, by `asyncio.to_thread` for example.
    """
    threading.Thread(target=_end, args=(moment, status), name="pump-process-end", daemon=True).start()


def _end(moment: float, status: int) -> None:
    clock = SystemClock()
    clock.wait(Signal(), moment - clock.monotonic())
    waits_for = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    log.error("the process ends, although this still runs: %s", ", ".join(waits_for) or "a function called at its exit")
    logging.shutdown()
    os._exit(status)
