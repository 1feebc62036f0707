"""The warnings that the engines give an operator."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from brokers.postgres import Postgres
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.postgres.warnings import SnapshotHolder, SnapshotHolders
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import Push
from support.queue_http import InProcess


def test_a_snapshot_that_is_old_is_told_with_whoever_holds_it(postgres: Postgres) -> None:
    engine = PostgresEngine(postgres.url, schema="warned")

    with postgres.connect() as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select 'a secret'")
        pid = connection.info.backend_pid
        told = engine.warnings(older_than=0.0)
        later = engine.warnings()

    assert [each for each in told if f"client backend {pid} has held an old snapshot" in each]
    assert not [each for each in told if "secret" in each]
    assert not [each for each in later if str(pid) in each]
    assert not [each for each in engine.warnings(older_than=0.0) if str(pid) in each]
    engine.close()


@pytest.mark.long
def test_a_transaction_that_was_prepared_and_forgotten_is_told_by_its_name() -> None:
    with Postgres(max_prepared_transactions="2") as server:
        engine = PostgresEngine(server.url)
        with server.connect() as connection:
            connection.execute("begin")
            connection.execute("create table mine (id int)")
            connection.execute("prepare transaction 'forgotten'")

            told = engine.warnings(older_than=0.0)

        engine.close()
    assert [each for each in told if "prepared transaction 'forgotten' has held" in each]


def test_the_age_of_what_says_none_is_counted_from_when_it_was_first_seen() -> None:
    holders = SnapshotHolders()
    slot = SnapshotHolder("replication slot", "standby", "700", None)
    moved = slot._replace(horizon="701")
    backend = SnapshotHolder("client backend", "17", "650", 400.0)

    assert holders.texts([slot], 300.0, 1000.0) == []
    assert holders.texts([slot], 300.0, 1300.0) == []
    first, second = holders.texts([slot, backend], 300.0, 1301.0)
    assert "client backend 17 has held an old snapshot of the database for 400 s" in first
    assert "replication slot standby has held an old snapshot of the database for 301 s" in second
    assert holders.texts([moved], 300.0, 1302.0) == []
    assert holders.texts([], 300.0, 1303.0) == []
    assert holders.texts([slot], 300.0, 1900.0) == []


def test_a_log_that_a_reader_keeps_from_being_emptied_is_told(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "queue.db")
    reader = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from message").fetchone()

    engine.push([Push("q", b"x" * 1000) for _ in range(500)])

    assert [
        each for each in engine.warnings(large_log=100_000) if re.match(r"queue\.db-wal has \d+ MB, since it", each)
    ]
    assert not any("queue.db-wal" in each for each in engine.warnings())
    reader.close()
    engine.close()


def test_whoever_asks_for_health_is_warned_and_the_server_is_healthy_all_the_same(
    http: InProcess, file_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_engine, "warnings", lambda: ["it is hot", "it smokes"])

    answer = http.get("/health")

    assert (answer.status, answer.json["status"]) == (200, "healthy")
    assert answer.json["warnings"] == ["it is hot", "it smokes"]
    assert "\npump_queue_warnings 2\n" in http.get("/metrics/prometheus").body.decode()
