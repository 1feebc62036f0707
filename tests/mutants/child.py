"""A copy of this process in which some tests are run with other code.

The copy has all modules loaded and all brokers running, so that a change costs only the tests that run its line.
"""

import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

import pytest
from _pytest.runner import runtestprotocol

SPARE_SECONDS: Final = 8.0
"""How much longer than usual a test may take before it is taken to hang."""
SLOWER: Final = 5
CLEAN_UP_SECONDS: Final = 5
PASSED, FAILED, HUNG = 0, 1, 2


class HungError(BaseException):
    """Ends a test that takes far too long. Tests and code do not catch it by mistake."""


def run_in_child(
    prepare: Callable[[], object], items: Sequence[pytest.Item], seconds: Sequence[float], after: pytest.Item
) -> tuple[str, int]:
    """Run tests, which usually take that long, until one fails: `killed` or `hung` and its index, or `survived`.

    The fixtures that `after` needs are kept.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(prepare, items, seconds, after, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor has no path
        _, status = os.waitpid(child, 0)
        begun = len(pipe.read()) - 1
    if begun < 0:
        raise RuntimeError(f"a child ended before its first test, with the status {status}")
    if os.WIFSIGNALED(status):
        return ("hung" if os.WTERMSIG(status) == signal.SIGALRM else "killed"), begun
    return {PASSED: "survived", HUNG: "hung"}.get(os.WEXITSTATUS(status), "killed"), begun


def be_silent() -> None:
    """Print nothing more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _be_child(
    prepare: Callable[[], object],
    items: Sequence[pytest.Item],
    seconds: Sequence[float],
    after: pytest.Item,
    begun: int,
) -> NoReturn:
    status = FAILED
    try:
        be_silent()
        signal.signal(signal.SIGALRM, _end_test)
        items[0].session._setupstate.teardown_exact(items[0])
        prepare()
        status = _first_failure(items, seconds, [*items[1:], items[-2] if len(items) > 1 else after], begun)
    finally:
        os._exit(status)


def _first_failure(
    items: Sequence[pytest.Item], seconds: Sequence[float], following: Sequence[pytest.Item], begun: int
) -> int:
    for item, usual, after in zip(items, seconds, following, strict=True):
        os.write(begun, b".")
        signal.setitimer(signal.ITIMER_REAL, SPARE_SECONDS + SLOWER * usual)
        reports = runtestprotocol(item, log=False, nextitem=after)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            return HUNG
        if any(report.failed for report in reports):
            return FAILED
    return PASSED


def _end_test(_number: int, _frame: FrameType | None) -> None:
    """End the test, so that what it opened is closed; if that takes long too, this process is killed."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_SECONDS)
    raise HungError
