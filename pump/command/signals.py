"""SIGINT and SIGTERM handled by a function, within one block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of every SIGINT and SIGTERM. Outside the main thread, which alone can, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        act(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
