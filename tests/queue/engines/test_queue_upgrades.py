"""Databases of each earlier version are upgraded by the first process, and keep all their messages."""

import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from brokers.postgres import Postgres
from brokers.waiting import wait_until
from pump.errors import SetupError
from pump.queue.engine import Engine
from pump.queue.options import QueueOptions
from pump.queue.postgres import migrations
from pump.queue.sqlite import schema
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import Filter, PopRequest, Push, Settlement, Status, Trace
from support.programs import DEADLINE, PUMP, Program
from support.queue_child import LIMIT_SECONDS
from support.queue_http import Served

FIRST_THAT_WORKS = 7
"""The SQL files before this number are only parts of the first version: no engine ever ran on them."""


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


def filled(engine: Engine) -> None:
    """A message in each state."""
    engine.configure("q", QueueOptions(ordered=False))
    names = ("completed", "leased", "dead", "released")
    engine.push([Push("q", name.encode(), transaction_id=name) for name in names])
    taken = engine.pop(PopRequest(queue="q", limit=10)).messages
    statuses = {"completed": Status.COMPLETED, "dead": Status.DEAD, "released": Status.RETRY}
    engine.settle([
        Settlement(each.transaction_id, each.partition_id, each.lease_id, statuses[each.transaction_id])
        for each in taken
        if each.transaction_id in statuses
    ])  # fmt: skip
    engine.push([Push("q", b"old", transaction_id="old"), Push("q", b"later", transaction_id="later", delay=3600.0)])


def works_with_what_was_there(engines: list[Engine]) -> None:
    first, second = engines
    taken = first.pop(PopRequest(queue="q", limit=5))
    assert sorted((each.transaction_id, each.payload) for each in taken.messages) == [
        ("old", b"old"),
        ("released", b"released"),
    ]
    assert [each.transaction_id for each in second.dead_letters(Filter(queue="q"))[0]] == ["dead"]
    states = {each.transaction_id: str(*each.states.values()) for each in second.stored(Filter(queue="q"))}
    assert states == {
        "completed": "completed", "leased": "processing", "dead": "dead_letter", "released": "processing",
        "old": "processing", "later": "pending",
    }  # fmt: skip
    second.maintain()
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
            filled(engine)

    works_with_what_was_there(opened_together(lambda: SqliteEngine(path)))

    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with pytest.raises(SetupError, match="update it"):
            SqliteEngine(path)


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_a_file_of_an_earlier_version_is_kept_by_two_servers_that_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with closing(SqliteEngine(tmp_path / "queue.db")) as engine:
            filled(engine)

    with ExitStack() as stack:
        servers, places = started_together(stack, tmp_path, f"sqlite:///{tmp_path}/queue.db")
        taken = [
            httpx.get(f"{place}/api/v1/pop/queue/q", timeout=DEADLINE).json()["messages"][0]["transactionId"]
            for place in places
        ]

        assert sorted(taken) == ["old", "released"]
        [dead] = httpx.get(f"{places[0]}/api/v1/dlq", timeout=DEADLINE).json()["messages"]
        assert dead["transactionId"] == "dead"
        assert [each.output.count("ERROR") for each in servers] == [0, 0]
    with sqlite3.connect(tmp_path / "queue.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
    connection.close()


def started_together(stack: ExitStack, folder: Path, database: str) -> tuple[list[Program], list[str]]:
    """Two servers of one database that start at the same time, and where they listen."""
    command = [*PUMP, "queue", "serve", "--port", "0", "--database", database]
    servers = [stack.enter_context(Program(command, folder)) for _ in range(2)]
    return servers, [each.says("listening on ").rpartition("listening on ")[2].split()[0] for each in servers]


@pytest.mark.parametrize("version", range(FIRST_THAT_WORKS, len(migrations.migrations())))
def test_a_schema_of_an_earlier_version(postgres_url: str, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    from pump.queue.postgres.engine import PostgresEngine

    name, known = f"upgrade_{uuid.uuid4().hex[:12]}", migrations.migrations()
    with monkeypatch.context() as earlier:
        earlier.setattr(migrations, "migrations", lambda: known[:version])
        with closing(PostgresEngine(postgres_url, schema=name)) as engine:
            filled(engine)

    works_with_what_was_there(opened_together(lambda: PostgresEngine(postgres_url, schema=name)))


@pytest.mark.parametrize("version", range(1, len(migrations.migrations())))
def test_rows_of_each_earlier_schema_are_kept_by_two_servers_that_start_at_once(
    own_postgres: Postgres, tmp_path: Path, version: int
) -> None:
    name = f"rows_{version}_{uuid.uuid4().hex[:8]}"
    make_schema(own_postgres, name, version)

    with ExitStack() as stack:
        servers, places = started_together(stack, tmp_path, f"{own_postgres.url}?schema={name}")

        for place in places:
            assert httpx.get(f"{place}/health", timeout=DEADLINE).json()["status"] == "healthy"
        found: list[Any] = []
        for place in (*places, *places):
            answer = httpx.get(f"{place}/api/v1/pop/queue/q?batch=2", timeout=DEADLINE)
            found += answer.json()["messages"] if answer.status_code == 200 else []
        assert sorted((each["transactionId"], each["data"]) for each in found) == [("due", 4), ("old", 2), ("older", 1)]
        [dead] = httpx.get(f"{places[0]}/api/v1/dlq", timeout=DEADLINE).json()["messages"]
        assert (dead["transactionId"], dead["data"]) == ("dead", 3)
        assert [each.output.count("ERROR") for each in servers] == [0, 0]


def make_schema(server: Postgres, name: str, version: int) -> None:
    """A schema of that version with rows as an engine leaves them: two messages, a dead letter, and one that is due."""
    with server.connect() as connection, connection.transaction():
        connection.execute(f"create schema {name}")
        for number, text in enumerate(migrations.migrations()[:version], start=1):
            connection.execute(migrations.in_schema(name, text))
            connection.execute(migrations.in_schema(name, migrations.RECORD), (number, migrations.digest(text)))
        connection.execute(migrations.in_schema(name, ROWS))


ROWS = """
with q as (
    insert into message_pump.queue (name, namespace, task, created_at, partitions, ordered)
        values ('q', 'q', '', now(), 1, false) returning id
), p as (
    insert into message_pump.partition (queue_id, name, created_at, last_seq, last_at)
        select id, 'Default', now(), 3, now() from q returning id, uid
), g as (
    insert into message_pump.consumer_group (queue_id, name, subscription, created_at)
        select id, '__QUEUE_MODE__', 'all', now() from q returning id
), m as (
    insert into message_pump.message (part_id, seq, at, id, transaction_id, sealed, payload)
        select p.id, v.seq, now(), gen_random_uuid(), v.name, false, v.payload::bytea
        from p, (values (1, 'dead', '3'), (2, 'older', '1'), (3, 'old', '2')) v (seq, name, payload)
        returning id, seq
), s as (
    insert into message_pump.scheduled (id, part_id, queue_id, due_at, pushed_at, transaction_id, sealed, payload)
        select gen_random_uuid(), p.id, q.id, now(), now(), 'due', false, '4'::bytea from p, q
), f as (
    insert into message_pump.progress (group_id, part_id, claimed, base, ready_at)
        select g.id, p.id, 1, 0, now() from g, p
)
insert into message_pump.dead (
    group_id, part_id, seq, message_id, transaction_id, partition_uid, partition_name, queue_name, group_name, sealed,
    payload, reason, error, retries, crashes, deliveries, created_at, moved_at
) select g.id, p.id, 1, m.id, 'dead', p.uid, 'Default', 'q', '__QUEUE_MODE__', false, '3'::bytea, 'dlq', '', 0, 0, 1,
    now(), now()
    from g, p, m where m.seq = 1
"""


def test_a_server_killed_amidst_an_upgrade_leaves_all_to_the_next(own_postgres: Postgres, tmp_path: Path) -> None:
    name = f"killed_{uuid.uuid4().hex[:8]}"
    make_schema(own_postgres, name, FIRST_THAT_WORKS)
    url = f"{own_postgres.url}?schema={name}"
    command = [*PUMP, "queue", "serve", "--port", "0", "--database", url]

    with own_postgres.connect(application_name="reader") as connection, connection.transaction():
        connection.execute(f"select from {name}.trace")  # the upgrade waits for the end of this transaction
        with Program(command, tmp_path) as server:
            wait_until(lambda: is_upgrading(own_postgres), "it has begun to upgrade")
            assert server.pid
        assert applied(own_postgres, name) == FIRST_THAT_WORKS
    own_postgres.kill_backends("message-pump")

    with Served(tmp_path, "--database", url) as next_server:
        answer = httpx.get(f"{next_server.url}/api/v1/pop/queue/q?batch=5", timeout=DEADLINE).json()
        assert len(answer["messages"]) == 3
    assert applied(own_postgres, name) == len(migrations.migrations())


def is_upgrading(server: Postgres) -> bool:
    with server.connect() as connection:
        waiting = (
            "select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0 and query ~ 'alter table'"
        )
        return connection.execute(waiting).fetchone() is not None


def applied(server: Postgres, name: str) -> int:
    with server.connect() as connection:
        latest = migrations.in_schema(name, "select max(v.number) from message_pump.schema_version v")
        return int(connection.execute(latest).fetchone()[0])


def test_a_file_whose_upgrade_was_killed_is_upgraded_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.db"
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        with closing(SqliteEngine(path)) as engine:
            filled(engine)

    ended = subprocess.run([sys.executable, "-c", KILLED_AMIDST, path], check=False, timeout=DEADLINE)

    assert ended.returncode == -9
    works_with_what_was_there(opened_together(lambda: SqliteEngine(path)))


KILLED_AMIDST = """
import os, signal, sys
from pump.queue.sqlite import schema
from pump.queue.sqlite.engine import SqliteEngine

split = schema.statements


def killed(migration):
    first, *others = split(migration)
    yield first
    if migration is schema.KEYS:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from others


schema.statements = killed
SqliteEngine(sys.argv[1])
"""


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
    "1014d01a403203e7d3da091fe7080f3d",
    "3a37d7dc18980ae2c41e596f3ccbe37e",
]
PUBLISHED_FOR_SQLITE = [
    "47aee7c7e055cdf7a4a27e7908920279",
    "a9bd412680adb777aa72113932d65f58",
]
