"""A signal wakes everybody who waits for it, once, whoever sets it and whenever."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pump.clock import Signal, SystemClock
from support.waiting import LIMIT


def test_a_signal_is_set_until_it_is_cleared() -> None:
    flag, seen = Signal(), []

    seen.append(flag.is_set())
    flag.set()
    seen.append(flag.is_set())
    flag.set()
    seen.append(flag.is_set())
    flag.clear()
    seen.append(flag.is_set())

    assert seen == [False, True, True, False]


def test_a_callback_is_called_once_however_often_it_is_set() -> None:
    flag, calls = Signal(), list[str]()
    flag.add_callback(lambda: calls.append("first"))
    flag.add_callback(lambda: calls.append("second"))

    flag.set()
    flag.clear()
    flag.set()

    assert calls == ["first", "second"]


def test_a_callback_on_a_set_signal_is_called_at_once() -> None:
    flag, calls = Signal(), list[str]()
    flag.set()

    flag.add_callback(lambda: calls.append("now"))

    assert calls == ["now"]
    flag.set()
    assert calls == ["now"]


def test_a_callback_that_was_removed_is_not_called_and_may_be_removed_again() -> None:
    flag, calls = Signal(), list[str]()
    key = flag.add_callback(lambda: calls.append("never"))

    flag.remove_callback(key)
    flag.remove_callback(key)
    flag.set()

    assert calls == []


def test_a_callback_may_use_the_signal() -> None:
    flag, calls = Signal(), list[str]()

    def again() -> None:
        calls.append("called")
        flag.clear()
        flag.remove_callback(flag.add_callback(again))

    flag.add_callback(again)
    flag.set()

    assert calls == ["called"]


def test_many_threads_may_set_it_at_once_and_every_callback_is_called_once() -> None:
    for _ in range(50):
        flag, calls = Signal(), list[int]()
        barrier = threading.Barrier(4)

        def set_it(flag: Signal = flag, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            flag.set()

        threads = [threading.Thread(target=set_it) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        for number in range(20):
            flag.add_callback(lambda number=number, calls=calls: calls.append(number))  # type: ignore[misc] # bound now
        for thread in threads:
            thread.join()

        assert sorted(calls) == list(range(20))


class Interrupting:
    """Sets a signal between any two lines of another call of it, as a handler of a real signal may."""

    def __init__(self, flag: Signal, at: int) -> None:
        self.flag, self.left = flag, at
        self.interrupted = False

    def __call__(self, frame: object, event: str, arg: object) -> "Interrupting | None":
        if event != "line" or self.interrupted:
            return self
        self.left -= 1
        if self.left < 0:
            self.interrupted = True
            sys.settrace(None)
            self.flag.set()
            return None
        return self


def interrupted(flag: Signal, at: int, act: Callable[[], object]) -> bool:
    """Do it, setting the signal before its line number `at`; whether there was such a line."""
    tracer = Interrupting(flag, at)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        act()
    finally:
        sys.settrace(before)
    return tracer.interrupted


@pytest.mark.parametrize("at", range(12))
def test_a_signal_handler_that_sets_it_while_a_callback_is_added_calls_that_callback_once(at: int) -> None:
    flag, calls = Signal(), list[str]()

    happened = interrupted(flag, at, lambda: flag.add_callback(lambda: calls.append("called")))

    assert calls == (["called"] if happened else [])


@pytest.mark.parametrize("at", range(16))
def test_a_signal_handler_that_sets_it_while_it_is_being_set_calls_nothing_twice(at: int) -> None:
    flag, calls = Signal(), list[int]()
    for number in range(3):
        flag.add_callback(lambda number=number: calls.append(number))  # type: ignore[misc] # bound now

    interrupted(flag, at, flag.set)

    assert sorted(calls) == [0, 1, 2]


@pytest.fixture
def usr1() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def on(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: act())

    yield on
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_set_it_and_ends_a_wait(usr1: Callable[[Callable[[], None]], None]) -> None:
    flag, clock = Signal(), SystemClock()
    usr1(flag.set)
    cancel = clock.alarm(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1))

    assert clock.wait(flag, LIMIT)
    cancel()
