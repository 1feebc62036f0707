"""`pump queue status`, `dlq`, `backup` and `restore`: what they print, and what they refuse."""

import json
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from pump.queue.options import QueueOptions
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import Filter, PopRequest, Push, Settlement, Status
from support.programs import pump_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pump_run("queue", *arguments, folder=folder)


def filled(path: Path) -> None:
    """A queue with two waiting messages, one leased message and one dead letter."""
    with closing(SqliteEngine(path)) as engine:
        engine.configure("q", QueueOptions(ordered=False))
        engine.push([Push("q", b"1", transaction_id=name) for name in ("dead", "leased", "a", "b")])
        dead, _ = engine.pop(PopRequest(queue="q", group="g", limit=2)).messages
        gone = Settlement(dead.transaction_id, dead.partition_id, dead.lease_id, Status.DEAD, "g", "no use")
        engine.settle([gone])


def stored(path: Path) -> list[str]:
    with closing(SqliteEngine(path)) as engine:
        return sorted(each.transaction_id for each in engine.stored(Filter(queue="q")))


# -- looking


def test_status_says_how_many_messages_are_where(path: Path, tmp_path: Path) -> None:
    filled(path)

    text, data = run(tmp_path, "status"), run(tmp_path, "status", "--json")

    assert (text.returncode, data.returncode) == (0, 0), text.stderr + data.stderr
    assert "group g: 3 not settled" in text.stdout
    [queue] = json.loads(data.stdout)["queues"]
    assert (queue["name"], queue["ordered"], queue["deadLetters"]) == ("q", False, 1)
    assert (queue["messages"]["pending"], queue["messages"]["processing"]) == (2, 1)
    assert [(each["name"], each["lag"]) for each in queue["groups"]] == [("g", 3)]
    assert json.loads(data.stdout)["problem"] is None


def test_a_schema_without_a_queue_gets_none(postgres_url: str, tmp_path: Path) -> None:
    mark = "&" if "?" in postgres_url else "?"

    ended = run(tmp_path, "status", "--database", f"{postgres_url}{mark}schema=no_such_queue")

    assert ended.returncode == 3
    assert "there is no queue in the schema no_such_queue" in ended.stderr


@pytest.mark.parametrize("what", ["nothing", "an empty file", "a text", "another program's"])
@pytest.mark.parametrize("command", ["status", "dlq", "backup"])
def test_where_there_is_no_queue_none_is_made(path: Path, tmp_path: Path, what: str, command: str) -> None:
    prepare(path, what)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    ended = run(tmp_path, command, *(["copy.db"] if command == "backup" else []))

    assert ended.returncode == 3
    assert "there is no queue in" in ended.stderr
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def prepare(path: Path, what: str) -> None:
    if what == "an empty file":
        path.touch()
    elif what == "a text":
        path.write_text("a text that is longer than the head of a database " * 20)
    elif what == "another program's":
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE queue (id INTEGER)")


# -- dead letters


def test_dead_letters_are_listed_and_pushed_again(path: Path, tmp_path: Path) -> None:
    filled(path)

    listed = run(tmp_path, "dlq", "--json")
    again = run(tmp_path, "dlq", "--redrive", "--queue", "q", "--json")
    third = run(tmp_path, "dlq", "--redrive")

    [letter] = json.loads(listed.stdout)["messages"]
    assert (letter["transactionId"], letter["reason"], letter["error"]) == ("dead", "dlq", "no use")
    assert (again.returncode, json.loads(again.stdout)["messages"][0]["outcome"]) == (0, "redriven")
    assert third.returncode == 1
    assert "not redriven: it was redriven before" in third.stdout
    assert "reprocess-dead" in stored(path)


def test_what_its_queue_refuses_is_not_called_redriven(path: Path, tmp_path: Path) -> None:
    filled(path)
    with closing(SqliteEngine(path)) as engine:
        engine.configure("q", QueueOptions(ordered=False, max_size=1))

    ended = run(tmp_path, "dlq", "--redrive", "--json")

    assert ended.returncode == 1
    assert json.loads(ended.stdout)["messages"][0]["outcome"] == "not redriven: queue is full"
    assert "reprocess-dead" not in stored(path)


# -- backups


def test_a_backup_of_a_queue_in_use_has_what_a_plain_copy_lacks(path: Path, tmp_path: Path) -> None:
    filled(path)
    with closing(SqliteEngine(path)) as engine:
        engine.push([Push("q", b"1", transaction_id="last")])
        shutil.copy(path, tmp_path / "plain.db")  # the log of changes is beside it

        ended = run(tmp_path, "backup", "copy.db")

        assert ended.returncode == 0, ended.stderr
    copy = tmp_path / "copy.db"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir() if "copy" in each.name) == ["copy.db"]
    assert "last" in stored(copy)
    with closing(sqlite3.connect(tmp_path / "plain.db")) as plain:
        names = plain.execute("SELECT count(*) FROM sqlite_master WHERE name = 'message'").fetchone()[0]
        found = plain.execute("SELECT transaction_id FROM message").fetchall() if names else []
    assert ("last",) not in found


def test_a_backup_takes_nobody_s_place(path: Path, tmp_path: Path) -> None:
    filled(path)
    (tmp_path / "copy.db").write_text("mine")

    ended = run(tmp_path, "backup", "copy.db")

    assert ended.returncode == 3
    assert "copy.db is there already" in ended.stderr
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_backup_is_restored_and_what_was_there_is_kept(path: Path, tmp_path: Path) -> None:
    filled(path)
    assert run(tmp_path, "backup", "copy.db").returncode == 0
    with closing(SqliteEngine(path)) as engine:
        engine.push([Push("q", b"1", transaction_id="later")])

    refused = run(tmp_path, "restore", "copy.db")
    restored = run(tmp_path, "restore", "copy.db", "--replace", "--json")
    fresh = run(tmp_path, "restore", "copy.db", "--database", "sqlite:///new.db")

    assert (refused.returncode, restored.returncode, fresh.returncode) == (3, 0, 0), restored.stderr
    assert "--replace" in refused.stderr
    assert stored(path) == stored(tmp_path / "new.db") == ["a", "b", "dead", "leased"]
    assert "later" in stored(Path(json.loads(restored.stdout)["kept"]))


def test_a_file_in_use_is_not_replaced(path: Path, tmp_path: Path) -> None:
    filled(path)
    assert run(tmp_path, "backup", "copy.db").returncode == 0

    with closing(SqliteEngine(path)) as engine:
        engine.push([Push("q", b"1", transaction_id="later")])
        ended = run(tmp_path, "restore", "copy.db", "--replace")

        assert ended.returncode == 3
        assert "is in use: stop the server" in ended.stderr
    assert "later" in stored(path)


@pytest.mark.parametrize("what", ["an empty file", "a text", "another program's"])
def test_no_file_of_another_program_is_replaced(path: Path, tmp_path: Path, what: str) -> None:
    filled(tmp_path / "source.db")
    prepare(path, what)
    before = path.read_bytes()

    ended = run(tmp_path, "restore", "source.db", "--replace")

    assert ended.returncode == 3
    assert path.read_bytes() == before


def test_what_is_damaged_is_not_restored(path: Path, tmp_path: Path) -> None:
    with closing(SqliteEngine(path)) as engine:
        engine.push([Push("q", b"x" * 3000, transaction_id=str(number)) for number in range(50)])
    assert run(tmp_path, "backup", "copy.db").returncode == 0
    copy = tmp_path / "copy.db"
    pages = bytearray(copy.read_bytes())
    pages[len(pages) // 2 : len(pages) // 2 + 8192] = b"\xff" * 8192
    copy.write_bytes(pages)

    ended = run(tmp_path, "restore", "copy.db", "--database", "sqlite:///new.db")

    assert ended.returncode == 3
    assert "damaged" in ended.stderr
    assert not (tmp_path / "new.db").exists()


def test_postgresql_has_programs_of_its_own_for_that(tmp_path: Path) -> None:
    ended = run(tmp_path, "backup", "x", "--database", "postgresql://nobody@127.0.0.1/nothing?schema=shop")

    assert ended.returncode == 2
    assert "pg_dump --schema=shop " in ended.stderr
