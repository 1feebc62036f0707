"""Promises of SQLite's engine alone: one file for many processes, also when they die."""

import logging
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from pump.errors import SetupError
from pump.queue.errors import Conflict, QueueUnavailable
from pump.queue.sqlite import connection as sqlite_connection
from pump.queue.sqlite import watch as sqlite_watch
from pump.queue.sqlite.connection import file_system_of
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, PopRequest, Push, Settlement, State, Step
from support import queue_worker

WAIT_SECONDS = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    with closing(SqliteEngine(path)) as engine:
        yield engine


def start(path: Path, what: str, output: Path) -> subprocess.Popen[bytes]:
    """A process that pushes or consumes, and prints what was confirmed."""
    with output.open("wb") as file:
        arguments = [sys.executable, queue_worker.__file__, str(path), what, output.stem]
        return subprocess.Popen(arguments, stdout=file, stderr=subprocess.DEVNULL)


def wait_for(condition: object, what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def confirmed(outputs: list[Path]) -> list[str]:
    """The confirmations that processes wrote before they died."""
    return [line for output in outputs for line in output.read_text().splitlines()]


@pytest.mark.requirement("Z-01", "R-41")
def test_what_was_confirmed_survives_the_death_of_every_process(path: Path, tmp_path: Path) -> None:
    pushers, consumers = [], []
    for turn in range(3):
        pushers += [tmp_path / f"p{turn}a", tmp_path / f"p{turn}b"]
        consumers += [tmp_path / f"c{turn}a", tmp_path / f"c{turn}b"]
        outputs = [*pushers[-2:], *consumers[-2:]]
        processes = [start(path, "push" if each in pushers else "consume", each) for each in outputs]
        wait_for(lambda outputs=outputs: all(each.stat().st_size > 300 for each in outputs), "work")
        for process in processes:
            process.kill()
            process.wait()

    with closing(SqliteEngine(path)) as engine:
        states = {each.transaction_id: each.states for each in engine.stored(Filter(queue="jobs", limit=1_000_000))}
        pushed, completed = confirmed(pushers), confirmed(consumers)
        assert set(pushed) <= set(states)
        assert {states[name][DEFAULT_GROUP] for name in completed} == {State.COMPLETED}
        assert max(Counter(completed).values()) == 1
        assert engine.dead_letters(Filter())[1] == 0
        engine.clock_offset += 400
        while (taken := engine.pop(PopRequest(queue="jobs", limit=1000))).messages:
            engine.settle(
                [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
            )
        (group,) = engine.groups()
        assert group.lag == 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.requirement("Q-59", "R-41")
def test_a_push_of_another_process_notifies(path: Path, engine: SqliteEngine, tmp_path: Path) -> None:
    engine.pop(PopRequest(queue="jobs", ordered=False))
    notified = threading.Event()
    end = engine.listen("jobs", notified.set)

    process = start(path, "push", tmp_path / "p")

    assert notified.wait(WAIT_SECONDS)
    process.kill()
    process.wait()
    end()


@pytest.mark.requirement("Q-59")
def test_another_engine_notifies_at_once(path: Path, engine: SqliteEngine) -> None:
    engine.pop(PopRequest(queue="jobs"))
    notified: list[float] = []
    event = threading.Event()

    def ring() -> None:
        notified.append(time.monotonic())
        event.set()

    with closing(SqliteEngine(path)) as other:
        engine.listen("jobs", ring)
        time.sleep(0.1)
        event.clear()
        notified.clear()
        pushed_at = time.monotonic()
        other.push([Push("jobs", b"")])
        assert event.wait(WAIT_SECONDS)

    assert notified[0] - pushed_at < 0.5


@pytest.mark.requirement("Q-59")
def test_a_push_of_ones_own_notifies_before_it_returns(engine: SqliteEngine) -> None:
    notified: list[str] = []
    end = engine.listen("jobs", lambda: notified.append("jobs"))
    engine.listen("other", lambda: notified.append("other"))

    engine.push([Push("jobs", b"")])
    assert "jobs" in notified
    end()
    notified.clear()
    engine.push([Push("jobs", b"")])

    assert notified == []


@pytest.mark.requirement("Q-59")
def test_a_listener_that_fails_harms_nobody(engine: SqliteEngine, caplog: pytest.LogCaptureFixture) -> None:
    notified = threading.Event()

    def fail() -> None:
        raise RuntimeError("no")

    engine.listen("jobs", fail)
    engine.listen("jobs", notified.set)

    assert engine.push([Push("jobs", b"")])

    assert notified.is_set()
    assert "looks by itself later" in caplog.text


def test_a_look_that_finds_nothing_writes_nothing(path: Path, engine: SqliteEngine) -> None:
    engine.push([Push("jobs", b"")])
    engine.pop(PopRequest(queue="jobs"))
    with closing(sqlite3.connect(path)) as connection:
        before = connection.execute("PRAGMA data_version").fetchone()

        for _ in range(10):
            assert not engine.pop(PopRequest(queue="jobs")).messages
            assert not engine.pop(PopRequest(queue="jobs", partition="Default")).messages
            assert not engine.pop(PopRequest(queue="jobs", partition="none")).messages

        assert connection.execute("PRAGMA data_version").fetchone() == before


def test_every_commit_is_on_the_disk_unless_told_otherwise(path: Path, engine: SqliteEngine) -> None:
    def synchronous(engine: SqliteEngine) -> int:
        return int(engine._connections.reading().connection.execute("PRAGMA synchronous").fetchone()[0])

    with closing(SqliteEngine(path, synchronous="normal")) as faster:
        assert (synchronous(engine), synchronous(faster)) == (2, 1)
    with pytest.raises(SetupError):
        SqliteEngine(path, synchronous="off")


def test_no_connection_checkpoints_by_itself_or_maps_the_file(engine: SqliteEngine) -> None:
    connection = engine._connections.reading().connection

    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    assert connection.execute("PRAGMA mmap_size").fetchone() in {None, (0,)}
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_log_of_changes_is_moved_into_the_file(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_watch, "LONG_LOG_BYTES", 100_000)
    log = path.with_name("queue.db-wal")
    engine.push([Push("jobs", b"x" * 10_000) for _ in range(50)])

    wait_for(lambda: log.stat().st_size == 0, "a checkpoint")

    assert len(engine.pop(PopRequest(queue="jobs", limit=100)).messages) == 50


def moved(path: Path) -> tuple[int, int]:
    """The number of log pages that were moved into the file, and of all log pages; read from the log's index."""
    index = path.with_name(f"{path.name}-shm").read_bytes()
    (frames,), (backfilled,) = struct.unpack_from("=I", index, 16), struct.unpack_from("=I", index, 96)
    return backfilled, frames


def test_a_checkpoint_never_begins_when_the_whole_log_was_moved_already(path: Path, engine: SqliteEngine) -> None:
    engine.push([Push("jobs", b"x")])
    opened = engine._connections.open()
    watching = opened.connection
    seen: list[tuple[int, int]] = []
    watching.set_trace_callback(lambda sql: seen.append(moved(path)) if "wal_checkpoint(" in sql else None)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        whole = moved(path)

        assert sqlite_watch.checkpoint(watching)

    assert whole[0] == whole[1] > 0
    ((backfilled, frames),) = seen
    assert backfilled < frames
    assert path.with_name("queue.db-wal").stat().st_size == 0
    opened.close()


def test_no_checkpoint_is_made_while_somebody_writes_for_long(path: Path, engine: SqliteEngine) -> None:
    engine.push([Push("jobs", b"x")])
    opened = engine._connections.open()
    watching = opened.connection
    watching.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")

        assert not sqlite_watch.checkpoint(watching)
        writer.execute("ROLLBACK")
        assert sqlite_watch.checkpoint(watching)
    opened.close()


def test_a_callers_own_connection_makes_no_checkpoints_either(path: Path, engine: SqliteEngine) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with engine.transaction_on(connection) as steps:
            steps.append(Push("jobs", b""))

        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_one_process_is_elected_to_checkpoint_and_another_when_it_is_gone(path: Path) -> None:
    first, second = sqlite_watch.Election(path), sqlite_watch.Election(path)

    assert (first.won(), second.won(), first.won()) == (True, False, True)
    first.leave()
    assert second.won()
    second.leave()


def test_a_child_does_not_keep_its_parents_election(path: Path) -> None:
    mine = sqlite_watch.Election(path)
    assert mine.won()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)

    mine.leave()
    other = sqlite_watch.Election(path)

    wait_for(other.won, "the election")
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)
    other.leave()


def test_a_child_has_connections_of_its_own(engine: SqliteEngine) -> None:
    engine.push([Push("jobs", b"", transaction_id="parent")])
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        pushed = engine.push([Push("jobs", b"", transaction_id="child")])
        os._exit(0 if pushed[0].message_id else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    found = engine.pop(PopRequest(queue="jobs", limit=5)).messages
    assert [each.transaction_id for each in found] == ["parent", "child"]


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared", "file:x?mode=memory"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(SetupError, match="needs a file"):
        SqliteEngine(path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no directory"):
        SqliteEngine(tmp_path / "none" / "queue.db")


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_connection, "file_system_of", lambda _: "nfs4")

    with pytest.raises(SetupError, match="nfs4"):
        SqliteEngine(path)
    assert not path.exists()


def test_the_kind_of_a_file_system_is_that_of_its_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/a / ext4 rw 0 0\nserver:/x /srv/my\\040data nfs4 rw 0 0\n/dev/b /srv tmpfs rw 0 0\n")

    assert file_system_of(Path("/srv/my data/deep"), mounts) == "nfs4"
    assert file_system_of(Path("/srv/other"), mounts) == "tmpfs"
    assert file_system_of(Path("/home"), mounts) == "ext4"
    assert file_system_of(Path("/home"), tmp_path / "none") == ""


def test_whatever_sqlite_it_is_nothing_is_said_at_the_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), closing(SqliteEngine(path)) as engine:
        engine.push([Push("jobs", b"")])

        assert engine.warnings() == []
    assert caplog.records == []


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    SqliteEngine(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")

    with pytest.raises(SetupError, match="version 99"):
        SqliteEngine(path)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE queue ADD COLUMN colour TEXT",
        "DROP INDEX dead_by_time",
        "DROP TABLE trace_name",
        "PRAGMA user_version = 0",
    ],
)
def test_a_file_of_another_build_is_refused_with_what_to_do_and_left_alone(path: Path, change: str) -> None:
    SqliteEngine(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        before = connection.execute("SELECT * FROM sqlite_master").fetchall()

        with pytest.raises(SetupError, match="another build") as raised:
            SqliteEngine(path)

        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == before
    assert str(path) in str(raised.value)
    assert "give the queue a file of its own" in str(raised.value)


@pytest.mark.parametrize("statement", ["CREATE TABLE message (text)", "PRAGMA user_version = 7"])
def test_a_file_in_which_another_program_has_what_the_queue_needs_is_refused(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)

    with pytest.raises(SetupError, match="by another program"):
        SqliteEngine(path)


def test_a_file_may_hold_the_tables_of_its_program_too(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (name TEXT)")

    SqliteEngine(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE INDEX dead_by_reason ON dead (reason)")

    with closing(SqliteEngine(path)) as engine:
        assert [each.refused for each in engine.push([Push("q", b"1")])] == [""]


def test_who_cannot_write_in_time_is_told_that_it_may_help_to_try_again(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_MS", 50)
    with closing(SqliteEngine(path)) as hasty, closing(sqlite3.connect(path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")

        with pytest.raises(QueueUnavailable, match="database connection unavailable"):
            hasty.push([Push("jobs", b"")])
        assert hasty.healthy()
        blocker.execute("ROLLBACK")

        assert hasty.push([Push("jobs", b"")])[0].message_id


def test_threads_wait_for_each_other_and_none_is_refused(path: Path) -> None:
    with closing(SqliteEngine(path)) as one, closing(SqliteEngine(path)) as two:
        failures: list[Exception] = []

        def work(engine: SqliteEngine, name: str) -> None:
            try:
                for number in range(40):
                    engine.push([Push("jobs", b"", transaction_id=f"{name}-{number}")])
                    engine.pop(PopRequest(queue="jobs", limit=1, auto_ack=True))
            except QueueUnavailable as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(each, f"{n}")) for n, each in enumerate([one, two] * 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert failures == []
        assert len(one.stored(Filter(queue="jobs", limit=1000))) == 240


def together(engine: SqliteEngine, connection: sqlite3.Connection, name: str | None, *queued: Step) -> None:
    with engine.transaction_on(connection) as steps:
        connection.execute("INSERT INTO own VALUES (?)", (name,))
        steps.extend(queued)


def own_rows(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM own")]


@pytest.mark.requirement("Q-49")
@pytest.mark.parametrize("isolation", [None, "DEFERRED", "IMMEDIATE"])
def test_a_callers_own_statements_and_the_queues_are_one_transaction(
    path: Path, engine: SqliteEngine, isolation: Literal["IMMEDIATE", "DEFERRED"] | None
) -> None:
    engine.push([Push("jobs", b"", transaction_id="1")])
    (message,) = engine.pop(PopRequest(queue="jobs")).messages
    said = Settlement("1", message.partition_id, message.lease_id)
    with closing(sqlite3.connect(path, isolation_level=isolation)) as connection:
        connection.execute("CREATE TABLE own (name TEXT NOT NULL)")
        connection.commit()

        together(engine, connection, "done", said, Push("next", b""))
        with pytest.raises(Conflict):
            together(engine, connection, "done again", Push("next", b""), said)
        with pytest.raises(sqlite3.Error):
            together(engine, connection, None, Push("next", b""))

        assert own_rows(connection) == ["done"]
    assert len(engine.stored(Filter(queue="next"))) == 1
    assert engine.pop(PopRequest(queue="next")).messages


@pytest.mark.requirement("Q-49")
def test_a_callers_open_transaction_goes_on(path: Path, engine: SqliteEngine) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE own (name TEXT)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO own VALUES ('mine')")

        together(engine, connection, "ours", Push("kept", b""))
        with pytest.raises(Conflict):
            together(engine, connection, "ours too", *[Push("gone", b"", transaction_id="1")] * 2)

        assert engine.stored(Filter()) == []
        connection.execute("COMMIT")
        assert own_rows(connection) == ["mine", "ours", "ours too"]
    assert [each.queue for each in engine.stored(Filter())] == ["kept"]


def test_a_connection_to_another_file_is_refused(engine: SqliteEngine, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, pytest.raises(SetupError):
        together(engine, connection, "mine")


def test_an_engine_that_is_closed_says_so(engine: SqliteEngine) -> None:
    engine.close()

    assert not engine.healthy()
    with pytest.raises(QueueUnavailable, match="closed"):
        engine.push([Push("jobs", b"")])
    engine.close()


def test_what_was_ready_before_the_clock_was_put_back_is_ready_still(engine: SqliteEngine) -> None:
    engine.clock_offset = 5000.0
    engine.pop(PopRequest(queue="jobs"))
    engine.push([Push("jobs", b"", transaction_id="1"), Push("jobs", b"", transaction_id="2")])
    (first,) = engine.pop(PopRequest(queue="jobs")).messages
    engine.settle([Settlement(first.transaction_id, first.partition_id, first.lease_id)])

    engine.clock_offset = 0.0

    assert [each.transaction_id for each in engine.pop(PopRequest(queue="jobs")).messages] == ["2"]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_statement_of_the_daily_work_scans_a_table(engine: SqliteEngine, ordered: bool) -> None:
    statements: list[str] = []
    for number in range(3):
        engine.push([Push("jobs", b"", partition=str(number % 2), delay=float(number == 2)) for _ in range(5)])
    engine.pop(PopRequest(queue="jobs", ordered=ordered))
    connection = engine._connections.reading().connection
    connection.set_trace_callback(statements.append)

    engine.push([Push("jobs", b"", transaction_id=str(number)) for number in range(3)])
    taken = engine.pop(PopRequest(queue="jobs", limit=3, ordered=ordered))
    engine.extend(taken.lease_id, 500)
    engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages])
    engine.pop(PopRequest(queue="jobs", limit=3, auto_ack=True))
    engine.pop(PopRequest(queue="jobs", partition="none"))
    connection.set_trace_callback(None)

    daily = [each for each in statements if each.split()[0] in {"SELECT", "UPDATE", "DELETE", "INSERT"}]
    assert len(daily) > 20
    for statement in daily:
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement)]
        scans = [step for step in plan if step.startswith("SCAN") and not allowed(step)]
        assert not scans, (statement, plan)


def allowed(step: str) -> bool:
    """A statement may scan only its parameters, its own intermediate results, or constants."""
    return any(word in step for word in ("given", "json_each", "(subquery", "CONSTANT ROW", "VIRTUAL TABLE"))
