"""Signals of the operating system, handled within one block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)
LOOK_UP_SECONDS = 0.5
"""Whoever handles signals waits no longer than this at a time.

Python calls a handler between two of its instructions. For a signal that comes when a wait has been decided on, and has
not begun, that is after the wait.
"""


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
            signal.signal(number, previous or signal.SIG_DFL)


def asking(ask: Callable[[], object]) -> AbstractContextManager[None]:
    """Within a block, the first SIGINT or SIGTERM calls this. From then on each does what it did before.

    One that was ignored before, as in the background of a shell, ends the process: somebody insists.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def first(_number: int, _frame: FrameType | None) -> None:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous in {None, signal.SIG_IGN} else previous)
        ask()

    return handling(first)
