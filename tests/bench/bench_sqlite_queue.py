"""The queue in a SQLite file: against bare statements on the same rows, by batches, merged, and from two processes."""

import itertools
import multiprocessing
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.disk import fdatasync_per_second
from bench.queues import BATCH, PAYLOAD, Bench, Line, acks, cycles, figures, flat, pops_and_acks, pushes, run
from bench.table import Row
from bench.turns import SECONDS, Measured, measure, side_by_side
from pump.queue.ids import mint_many
from pump.queue.sqlite.engine import SqliteEngine

pytestmark = pytest.mark.requirement("Q-24", "Q-25")

LINES = (
    Line(f"push, pop and ack by {BATCH}", cycles, 15_000),
    Line(f"push by {BATCH}", lambda bench: pushes(bench, 1)),
    Line(f"pop and ack by {BATCH}, ordered", lambda bench: pops_and_acks(bench, 1, ordered=True)),
    Line(f"pop and ack by {BATCH}, unordered", lambda bench: pops_and_acks(bench, 1, ordered=False)),
    Line(f"ack by {BATCH}", lambda bench: acks(bench, 1)),
)


class Bare:
    """The same rows in the same transactions, by bare sqlite3: inserted, marked and deleted."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE bare (seq INTEGER PRIMARY KEY, id UNIQUE, lease, payload) WITHOUT ROWID")
        self._places = itertools.count()

    def cycle(self) -> int:
        """Push, pop and acknowledge a hundred."""
        rows = [(next(self._places), each, PAYLOAD) for each in mint_many(BATCH)]
        ids = [(row[1],) for row in rows]
        for statement, values in (
            ("INSERT INTO bare VALUES (?, ?, NULL, ?)", rows),
            ("UPDATE bare SET lease = 1 WHERE id = ?", ids),
            ("DELETE FROM bare WHERE id = ?", ids),
        ):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, values)
            self._connection.execute("COMMIT")
        return BATCH

    def close(self) -> None:
        self._connection.close()


@contextmanager
def bench_in(folder: Path, **options: Any) -> Iterator[Bench]:
    """An engine on a file of its own."""
    with closing(SqliteEngine(folder / f"{mint_many(1)[0]}.db", **options)) as engine:
        yield Bench(engine, fdatasync_per_second(folder))


def beside_bare(folder: Path) -> Row:
    """All three by hundreds, against the bare statements."""
    with bench_in(folder) as bench, closing(Bare(folder / "bare.db")) as bare:
        queue = bench.queue(ordered=True)
        theirs, ours = side_by_side(lambda _: bare.cycle(), lambda _: bench.cycle(queue), rounds=9, each=50)
    note = f"{ours.per_second:,.0f} and {theirs.per_second:,.0f} msg/s"
    return Row(
        f"push, pop and ack by {BATCH}, against bare sqlite3", ours.per_second / theirs.per_second, "×", 0.2, note=note
    )


def beside_normal(folder: Path) -> Row:
    """What it costs that a power cut loses nothing."""
    with bench_in(folder) as full, bench_in(folder, synchronous="NORMAL") as normal:
        queues = full.queue(ordered=True), normal.queue(ordered=True)
        safe, fast = side_by_side(lambda _: full.cycle(queues[0]), lambda _: normal.cycle(queues[1]), rounds=9, each=50)
    note = f"{safe.per_second:,.0f} and {fast.per_second:,.0f} msg/s"
    return Row(f"push, pop and ack by {BATCH}, FULL against NORMAL", safe.per_second / fast.per_second, "×", note=note)


# -- two processes on one file

_start: Any = None


def _meet(start: Any) -> None:
    global _start  # noqa: PLW0603 - how a process of a pool is given what only inheritance can give it
    _start = start


def _cycle_alone(path: Path, queue: str, partition: str) -> Measured:
    with closing(SqliteEngine(path)) as engine:
        bench = Bench(engine, 0.0)
        bench.cycle(queue, partition)
        _start.wait(60)
        return measure(lambda _: bench.cycle(queue, partition), seconds=SECONDS)


def two_processes(folder: Path) -> Row:
    """Push, pop and ack in two processes, each on whatever is ready."""
    path = folder / "two.db"
    with closing(SqliteEngine(path)) as engine:
        queue = Bench(engine, 0.0).queue(ordered=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn, _meet, (spawn.Barrier(2),)) as pool:
        running = [pool.submit(_cycle_alone, path, queue, partition) for partition in ("a", "b")]
        found = [each.result() for each in running]
    note = " and ".join(f"{each.per_second:,.0f} (p99 {each.p99_ms:.1f} ms)" for each in found)
    total = sum(each.per_second for each in found)
    return Row(f"push, pop and ack by {BATCH}, 2 processes, 1 file", total, "msg/s", 15_000, note=note)


def rows() -> Iterator[Row]:
    """Every figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with bench_in(folder) as bench:
            found = run(bench, LINES)
            flatness = flat(bench)
        yield from figures(bench, LINES, found)
        yield flatness
        yield beside_bare(folder)
        yield beside_normal(folder)
        yield two_processes(folder)
