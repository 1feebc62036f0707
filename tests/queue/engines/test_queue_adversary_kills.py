"""Processes are killed while they move messages from queue to queue: each message is moved once."""

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from pump.queue.engine import Engine
from pump.queue.http.command import open_engine
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Filter, Push, State
from support import queue_transfer_worker
from support.queue_races import drained
from support.waiting import eventually

WORKERS = 3
PATIENCE = 60.0


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue.db'}"
    url: str = request.getfixturevalue("own_postgres").url
    return url


@contextlib.contextmanager
def worker(database: str, source: str, target: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that moves messages; it is killed at the end of the block, if not before."""
    with output.open("ab") as file:
        command = [sys.executable, queue_transfer_worker.__file__, database, source, target]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def held(engine: Engine, queue: str) -> int:
    """The number of messages in a queue."""
    return sum(each.messages for info in engine.queues(queue) for each in info.partitions)


@pytest.mark.requirement("Q-49", "Z-01", "Z-08")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize(("messages", "kills"), [(300, 6), pytest.param(3_000, 60, marks=pytest.mark.long)])
def test_what_is_moved_in_a_transaction_is_moved_once_however_many_are_killed(
    database: str, tmp_path: Path, mode: str, messages: int, kills: int
) -> None:
    output = tmp_path / "confirmed"
    source, target = f"jobs-{uuid4()}", f"done-{uuid4()}"
    with closing(open_engine(database)) as engine, ExitStack() as stack:
        options = QueueOptions(ordered=mode == "ordered", lease_time=1.0, retry_limit=None)
        engine.configure(source, options)
        wanted = [f"{number}" for number in range(messages)]
        engine.push([Push(source, each.encode(), each[-1], each) for each in wanted])

        def has(least: int) -> bool:
            return held(engine, target) >= least

        crew = [stack.enter_context(worker(database, source, target, output)) for _ in range(WORKERS)]
        for kill, number in zip(range(kills), cycle(range(WORKERS)), strict=False):
            eventually(partial(has, messages * (kill + 1) // (kills + 1)), PATIENCE)
            crew[number].kill()
            crew[number].wait()
            crew[number] = stack.enter_context(worker(database, source, target, output))
        eventually(partial(has, messages), PATIENCE)
        stack.close()

        states = engine.stored(Filter(queue=source, limit=10_000))
        done = [each.payload.decode() for each in drained(engine, target)]
        assert Counter(done) == Counter(wanted)
        assert {state for each in states for state in each.states.values()} == {State.COMPLETED}
        said = Counter(line.split()[0] for line in output.read_text().splitlines() if line.endswith("True"))
        assert max(said.values()) == 1
