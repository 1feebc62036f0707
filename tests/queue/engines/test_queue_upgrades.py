"""Databases of each earlier version are upgraded by the first process, and keep all their messages."""

import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pump.errors import SetupError
from pump.queue.engine import Engine
from pump.queue.postgres import migrations
from pump.queue.sqlite import schema
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import PopRequest, Push, Trace
from support.queue_child import LIMIT_SECONDS

FIRST_THAT_WORKS = 7
"""The SQL files before this number are only parts of the first version."""


def opened_together(make: Callable[[], Engine]) -> list[Engine]:
    """Two servers that start at the same time."""
    barrier, engines, errors = threading.Barrier(2), list[Engine](), list[BaseException]()

    def start() -> None:
        barrier.wait(LIMIT_SECONDS)
        try:
            engines.append(make())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(2 * LIMIT_SECONDS)
    assert errors == []
    return engines


def works_with_what_was_there(engines: list[Engine]) -> None:
    first, second = engines
    taken = first.pop(PopRequest(queue="q", limit=5))
    assert [each.transaction_id for each in taken.messages] == ["old"]
    (pushed,) = second.push([Push("q", b"new", transaction_id="new")])
    note = Trace(transaction_id="new", partition_id=pushed.partition_id, data=b"1", event="info", names=["n"])
    second.add_trace(note)
    assert [each.data for each in first.traces(name="n")] == [b"1"]
    for each in engines:
        each.close()


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_a_file_of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    path = tmp_path / "queue.db"
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with closing(SqliteEngine(path)) as engine:
            engine.push([Push("q", b"old", transaction_id="old")])

    works_with_what_was_there(opened_together(lambda: SqliteEngine(path)))

    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with pytest.raises(SetupError, match="update it"):
            SqliteEngine(path)


@pytest.mark.parametrize("version", range(FIRST_THAT_WORKS, len(migrations.migrations())))
def test_a_schema_of_an_earlier_version(postgres_url: str, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    from pump.queue.postgres.engine import PostgresEngine

    name, known = f"upgrade_{uuid.uuid4().hex[:12]}", migrations.migrations()
    with monkeypatch.context() as earlier:
        earlier.setattr(migrations, "migrations", lambda: known[:version])
        with closing(PostgresEngine(postgres_url, schema=name)) as engine:
            engine.push([Push("q", b"old", transaction_id="old")])

    works_with_what_was_there(opened_together(lambda: PostgresEngine(postgres_url, schema=name)))


def test_what_was_published_is_never_changed() -> None:
    """A database remembers the migrations that made it: a changed one makes it unusable. Add a new file instead."""
    assert [migrations.digest(each) for each in migrations.migrations()] == PUBLISHED_FOR_POSTGRESQL
    assert [migrations.digest(each) for each in schema.MIGRATIONS] == PUBLISHED_FOR_SQLITE


PUBLISHED_FOR_POSTGRESQL = [
    "9c648fb6a66838f46226eed058929ab0",
    "a04f023b5c6b1befb0576ccaa340acac",
    "05953c08893f4fb277fe604e8c6a2af4",
    "a86058838b17f102b952b527423bae3d",
    "70d5f85ed6bb141a3f3c7e47ca2e6a1a",
    "391b60452f828af90a01456d8885108d",
    "b15e337d576dc34f4fa1fa2cf6141527",
    "2e7ce81318e4e0a90f2d1fd3b0bab655",
]
PUBLISHED_FOR_SQLITE = [
    "47aee7c7e055cdf7a4a27e7908920279",
    "a9bd412680adb777aa72113932d65f58",
]
