"""Threads for blocking calls: as many as are wanted, and no process waits for them at its end."""

import subprocess
import sys
import threading

import pytest

from pump.transport_kit.call_threads import CallThreads
from support.waiting import LIMIT


def test_a_call_gives_what_it_returns_or_raises() -> None:
    def fail(what: str) -> None:
        raise ValueError(what)

    threads = CallThreads(1, "pump-settle")

    assert threads.submit(divmod, 7, 2).result(LIMIT) == (3, 1)
    with pytest.raises(ValueError, match="odd"):
        threads.submit(fail, what="odd").result(LIMIT)
    with pytest.raises(SystemExit):
        threads.submit(sys.exit, 3).result(LIMIT)
    assert threads.submit(str, 5).result(LIMIT) == "5"
    threads.close()


def test_one_thread_makes_the_calls_in_turn() -> None:
    threads, seen = CallThreads(1, "pump-settle"), list[int]()

    for number in range(50):
        threads.submit(seen.append, number)
    threads.close()
    threads.join()

    assert seen == list(range(50))


def test_several_calls_are_under_way_at_once_and_no_more_than_allowed() -> None:
    threads, gate, begun = CallThreads(3, "pump-publish"), threading.Event(), threading.Semaphore(0)

    def call() -> str:
        begun.release()
        assert gate.wait(LIMIT)
        return threading.current_thread().name

    futures = [threads.submit(call) for _ in range(5)]
    assert all(begun.acquire(timeout=LIMIT) for _ in range(3))
    assert not begun.acquire(blocking=False)
    gate.set()

    assert {future.result(LIMIT) for future in futures} == {"pump-publish"}
    threads.close()
    threads.join()


def test_after_the_end_nothing_is_taken_and_what_was_taken_is_done() -> None:
    threads, gate = CallThreads(1, "pump-settle"), threading.Event()
    first = threads.submit(gate.wait, LIMIT)
    second = threads.submit(str, 2)

    threads.close()
    with pytest.raises(RuntimeError, match="pump-settle is closed"):
        threads.submit(str, 3)
    gate.set()
    threads.join()

    assert first.result(0)
    assert second.result(0) == "2"


def test_a_cancelled_call_is_not_made() -> None:
    threads, gate = CallThreads(1, "pump-settle"), threading.Event()
    threads.submit(gate.wait, LIMIT)
    cancelled = threads.submit(pytest.fail, "it was made")

    assert cancelled.cancel()
    gate.set()
    threads.close()
    threads.join()

    assert cancelled.cancelled()


HANGING = """
import threading
from pump.transport_kit.call_threads import CallThreads
begun = threading.Event()
CallThreads(1, "pump-receive").submit(lambda: (begun.set(), threading.Event().wait(600)))
begun.wait()
"""


def test_a_process_ends_although_a_call_hangs() -> None:
    assert subprocess.run([sys.executable, "-c", HANGING], check=False, timeout=120).returncode == 0
