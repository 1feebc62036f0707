"""Signals of the operating system, handled within one block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handling(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle these signals, by default SIGINT and SIGTERM. Outside the main thread, which alone can, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers or ENDING}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
