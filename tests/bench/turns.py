"""Turns that are taken by several threads for a while: how many messages a second, and how long a turn takes."""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

SECONDS = 3.0

Turn = Callable[[int], int]
"""Called with the thread's number; returns how many messages it handled, 0 if none was left."""


class Measured(NamedTuple):
    """How fast something was."""

    per_second: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, number: int, seconds: float, waits: Sequence[float]) -> Self:
        """So many messages in so many seconds, and the seconds of each turn."""
        every = sorted(wait * 1000 for wait in waits)
        return cls(number / seconds, statistics.median(every), every[int(len(every) * 0.99)])


def measure(turn: Turn, *, threads: int = 1, seconds: float = SECONDS) -> Measured:
    """Take turns until the time is over, or until there is nothing left for somebody."""
    counts, waits = [0] * threads, [list[float]() for _ in range(threads)]
    errors: list[BaseException] = []
    start = time.perf_counter()

    def work(number: int) -> None:
        try:
            while time.perf_counter() < start + seconds:
                begun = time.perf_counter()
                done = turn(number)
                if not done:
                    return
                waits[number].append(time.perf_counter() - begun)
                counts[number] += done
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    return Measured.of(sum(counts), elapsed, [wait for line in waits for wait in line])


def side_by_side(*turns: Turn, rounds: int, each: int, threads: int = 1) -> list[Measured]:
    """The same number of turns of each, again and again in alternation; the median round of each one.

    What else this machine does falls on all of them alike, and what falls on one of them only is not the median.
    """
    figures: list[list[Measured]] = [[] for _ in turns]
    for _ in range(rounds):
        for turn, found in zip(turns, figures, strict=True):
            found.append(measure(_limited(turn, each), threads=threads, seconds=60))
    return [sorted(found)[len(found) // 2] for found in figures]


def _limited(turn: Turn, number: int) -> Turn:
    left = itertools.count(number, -1)
    return lambda thread: turn(thread) if next(left) > 0 else 0
