"""Signals of the operating system, handled within one block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
LOOK_UP_SECONDS = 0.5
"""A thread that handles signals waits no longer than this at a time.

Python calls a signal's handler between two of its instructions. If the signal comes just before a wait begins, the
handler is called only after the wait.
"""


@contextmanager
def handling(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle these signals, by default SIGINT and SIGTERM. Only the main thread can do that; others do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers or ENDING}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)


def asking(ask: Callable[[], object]) -> AbstractContextManager[None]:
    """Within the block, the first SIGINT or SIGTERM calls `ask`. After that each signal acts as before the block.

    But one that was ignored before the block, as in the background of a shell, ends the process when it comes again.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def first(_number: int, _frame: FrameType | None) -> None:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous in {None, signal.SIG_IGN} else previous)
        ask()

    return handling(first)
