"""A file that is full, locked, read-only, gone or replaced, and processes that fork: confirmed data is kept."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pump.errors import PumpError
from pump.queue.errors import QueueUnavailable
from pump.queue.sqlite import connection as sqlite_connection
from pump.queue.sqlite.engine import SqliteEngine, SqliteOperations
from pump.queue.vocabulary import Filter, PopRequest, Push
from support import queue_closing_worker, queue_narrow_worker
from support.queue_child import LIMIT_SECONDS, Child
from support.queue_races import drained, names, settlements
from support.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    with closing(SqliteEngine(path)) as engine:
        yield engine


def push(engine: SqliteEngine, *ids: str) -> None:
    pushed = engine.push([Push("jobs", each.encode(), transaction_id=each) for each in ids])
    assert all(each.message_id for each in pushed)


def stored(path: Path) -> list[str]:
    """The messages that a later reader finds."""
    with closing(SqliteEngine(path)) as engine:
        return sorted(each.transaction_id for each in engine.stored(Filter(queue="jobs", limit=10_000)))


def is_whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        found: tuple[str] = connection.execute("PRAGMA integrity_check").fetchone()
    return found == ("ok",)


# -- closing


class SlowReader:
    """A thread that pauses in the middle of a read until the test lets it go on."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.found: list[int] = []
        self.failed: list[BaseException] = []
        self._engine = engine
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.began.wait(LIMIT_SECONDS)

    def _run(self) -> None:
        try:
            self._engine._read(self._read)
        except BaseException as error:
            self.failed.append(error)

    def _read(self, work: SqliteOperations) -> None:
        for (seq,) in work.execute("SELECT seq FROM message ORDER BY seq"):
            self.found.append(seq)
            self.began.set()
            self.may_go_on.wait(LIMIT_SECONDS)

    def join(self) -> None:
        self.may_go_on.set()
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()


@pytest.mark.requirement("R-41")
def test_closing_waits_for_who_reads(engine: SqliteEngine) -> None:
    push(engine, *map(str, range(100)))
    reader = SlowReader(engine)
    closer = threading.Thread(target=engine.close)

    closer.start()
    eventually(lambda: engine._connections.closed)
    closer.join(0.2)
    waited = closer.is_alive()
    reader.join()
    closer.join(LIMIT_SECONDS)

    assert waited
    assert not closer.is_alive()
    assert not reader.failed
    assert len(reader.found) == 100
    with pytest.raises(QueueUnavailable, match="closed"):
        engine.stored(Filter())


def test_a_process_that_closes_while_threads_read_lives_on(path: Path) -> None:
    with closing(SqliteEngine(path)) as engine:
        for queue in range(20):
            engine.push([Push(f"q{queue}", b"x" * 100) for _ in range(100)])

    ended = subprocess.run(
        [sys.executable, queue_closing_worker.__file__, str(path)], check=False, capture_output=True, text=True,
        timeout=6 * LIMIT_SECONDS,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (0, "closed\n" * queue_closing_worker.TURNS), ended.stderr


# -- forks


@pytest.mark.requirement("Z-01", "Z-14")
def test_what_a_child_stores_after_its_parent_has_closed_is_kept(path: Path, engine: SqliteEngine) -> None:
    push(engine, "parent")
    first = Child(lambda: push(engine, "first"))
    assert first.go().ended() == ""
    second = Child(lambda: push(engine, "second"))

    engine.close()

    assert second.go().ended() == ""
    assert stored(path) == ["first", "parent", "second"]
    assert is_whole(path)


@pytest.mark.requirement("Z-01")
def test_a_childs_connection_keeps_the_log_while_the_last_of_the_others_goes(path: Path, engine: SqliteEngine) -> None:
    push(engine, "1")
    told, tell = os.pipe()
    go_on, go = os.pipe()

    def work() -> None:
        push(engine, "2")
        os.write(tell, b"x")
        os.read(go_on, 1)
        push(engine, "3")
        assert names(drained(engine, "jobs")) == ["1", "2", "3"]

    child = Child(work).go()
    os.read(told, 1)
    engine.close()
    os.write(go, b"x")

    assert child.ended() == ""
    assert stored(path) == ["1", "2", "3"]
    for each in (told, tell, go_on, go):
        os.close(each)


@pytest.mark.requirement("Z-01", "Z-14")
def test_processes_fork_while_their_threads_work(path: Path, engine: SqliteEngine) -> None:
    stop = threading.Event()
    confirmed: list[str] = []
    engine.listen("jobs", lambda: None)

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            push(engine, f"{thread}-{number}")
            engine.settle(settlements(engine.pop(PopRequest(queue="jobs", ordered=False)).messages))
            confirmed.append(f"{thread}-{number}")
            number += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(15):
        eventually(lambda number=number: len(confirmed) > 5 * number, 30)  # type: ignore[misc]
        children.append(Child(lambda number=number: push(engine, f"child-{number}")).go())  # type: ignore[misc]
    failures = [child.ended() for child in children]
    stop.set()
    for thread in threads:
        thread.join(LIMIT_SECONDS)

    assert failures == [""] * 15
    assert stored(path) == sorted([*confirmed, *(f"child-{number}" for number in range(15))])
    assert is_whole(path)


# -- the file


@pytest.mark.requirement("Z-14")
def test_nothing_is_confirmed_that_goes_into_a_file_that_was_removed(path: Path, engine: SqliteEngine) -> None:
    push(engine, "1")
    for each in path.parent.glob("queue.db*"):
        each.unlink()

    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="is gone"):
            push(engine, "2")
    with pytest.raises(QueueUnavailable, match="is gone"):
        engine.stored(Filter())
    assert not engine.healthy()
    assert not path.exists()


@pytest.mark.requirement("Z-14")
def test_a_file_that_is_removed_just_before_it_is_opened_is_not_made_anew(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in path.parent.glob("queue.db*"):
        each.unlink()
    monkeypatch.setattr(sqlite_connection, "file_at", lambda _: (0, 0))

    with pytest.raises(QueueUnavailable, match="unable to open"):
        push(engine, "1")
    assert not path.exists()


@pytest.mark.requirement("Z-14")
def test_an_engine_goes_on_with_the_file_that_took_the_place_of_its_own(path: Path, engine: SqliteEngine) -> None:
    push(engine, "lost")
    backup = path.with_name("backup.db")
    with closing(SqliteEngine(backup)) as other:
        push(other, "restored")
    notified = threading.Event()
    engine.listen("jobs", notified.set)

    for each in path.parent.glob("queue.db*"):
        each.unlink()
    backup.rename(path)
    push(engine, "new")

    assert names(drained(engine, "jobs")) == ["restored", "new"]
    assert stored(path) == ["new", "restored"]
    eventually(notified.is_set)
    notified.clear()
    with closing(SqliteEngine(path)) as other:
        push(other, "another")
    eventually(notified.is_set)


def test_what_waits_in_a_file_that_took_the_place_of_the_watched_one_is_notified(path: Path) -> None:
    backup = path.with_name("backup.db")
    for each in (path, backup):
        with closing(SqliteEngine(each)) as other:
            drained(other, "jobs")  # makes the group
            push(other, "waiting")
    notified = threading.Event()
    with closing(SqliteEngine(path)) as engine:
        engine.listen("jobs", notified.set)
        eventually(notified.is_set)
        notified.clear()

        for each in path.parent.glob("queue.db-*"):
            each.unlink()
        backup.replace(path)

        eventually(notified.is_set)


@pytest.mark.requirement("Z-14")
def test_a_file_that_was_away_for_a_moment_is_found_again(path: Path, engine: SqliteEngine) -> None:
    push(engine, "1")
    away = path.with_name("away")
    away.mkdir()
    files = list(path.parent.glob("queue.db*"))
    for each in files:
        each.rename(away / each.name)
    with pytest.raises(QueueUnavailable):
        push(engine, "2")

    for each in files:
        (away / each.name).rename(each)
    push(engine, "2")

    assert names(drained(engine, "jobs")) == ["1", "2"]


@pytest.mark.requirement("Z-14", "Z-01")
def test_on_a_full_disk_nothing_is_confirmed_and_afterwards_all_is_well(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, queue_narrow_worker.__file__, str(path)],
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 20
    assert stored(path) == sorted(done.stdout.split())
    assert is_whole(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become somebody who may not write")
def test_a_file_that_may_not_be_written_is_named_and_left_as_it_was() -> None:
    folder = Path(tempfile.mkdtemp())
    path = folder / "queue.db"
    try:
        folder.chmod(0o755)
        with closing(SqliteEngine(path)) as engine:
            push(engine, "1")
        path.chmod(0o444)

        def look() -> None:
            os.setuid(NOBODY)
            with pytest.raises(PumpError, match=r"queue\.db"):
                SqliteEngine(path)

        assert Child(look).go().ended() == ""
        assert stored(path) == ["1"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.requirement("Z-14", "Z-09")
def test_while_a_stranger_has_the_file_callers_are_told_so_and_may_repeat(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_MS", 50)
    with closing(SqliteEngine(path)) as engine, closing(sqlite3.connect(path, isolation_level=None)) as stranger:
        push(engine, "1", "2")
        taken = engine.pop(PopRequest(queue="jobs"))
        stranger.execute("BEGIN EXCLUSIVE")

        for act in (
            lambda: push(engine, "3"),
            lambda: engine.settle(settlements(taken.messages)),
            lambda: engine.extend(taken.lease_id, 1000),
            lambda: engine.delete_queue("jobs"),
            engine.maintain,
        ):
            with pytest.raises(QueueUnavailable, match="database connection unavailable"):
                act()
        assert engine.healthy()
        stranger.execute("ROLLBACK")

        push(engine, "3")
        assert [each.message for each in engine.settle(settlements(taken.messages))] == ["acknowledged"]
        assert names(drained(engine, "jobs")) == ["2", "3"]


@pytest.mark.requirement("Z-14")
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"a text, and nothing else" * 100)

    with pytest.raises(PumpError, match=r"queue\.db"):
        SqliteEngine(path)

    assert path.read_bytes() == b"a text, and nothing else" * 100
