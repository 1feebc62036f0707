"""Databases that really break while the server runs, or cannot be used at its start: the cause is said."""

import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from brokers.postgres import Postgres
from pump.queue.engine import Engine
from support.programs import DEADLINE, pump_run
from support.queue_http import Served
from support.queue_http_fixtures import Serving
from support.waiting import eventually

REFUSED = "requests are refused, as the database cannot be used"


def push(server: Served, *payloads: object) -> int:
    items = [{"queue": "q", "payload": each} for each in payloads]
    return httpx.post(f"{server.url}/api/v1/push", json={"items": items}, timeout=DEADLINE).status_code


def pop(server: Served) -> int:
    return httpx.get(f"{server.url}/api/v1/pop/queue/q?batch=1000&autoAck=true", timeout=DEADLINE).status_code


def problem(server: Served) -> str:
    answer = httpx.get(f"{server.url}/health", timeout=DEADLINE)
    assert (answer.status_code == 503) == bool(answer.json()["problem"])
    return str(answer.json()["problem"] or "")


# -- a file


def test_damaged_pages_are_said_though_the_first_page_is_whole(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        assert push(server, *["x" * 3000] * 500) == 201
    path = tmp_path / "queue.db"
    assert pump_run("queue", "backup", "whole.db", folder=tmp_path).returncode == 0  # everything is in one file there
    pages = bytearray((tmp_path / "whole.db").read_bytes())
    pages[len(pages) // 4 : len(pages) // 4 * 3] = b"\xa5" * (len(pages) // 4 * 3 - len(pages) // 4)
    for each in tmp_path.glob("queue.db*"):
        each.unlink()
    path.write_bytes(pages)

    with Served(tmp_path) as server:
        assert problem(server) == ""
        assert pop(server) == 503

        assert problem(server).startswith("pages of the database are damaged")
        assert server.program.output.count("pages of the database are damaged") == 1
        assert pop(server) == 503
        assert server.program.output.count(REFUSED) == 1


def test_a_file_that_is_replaced_by_something_else_is_said(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        assert push(server, 1) == 201
        (tmp_path / "text").write_text("no database at all, but long enough to be read as one\n" * 100)
        for each in tmp_path.glob("queue.db-*"):
            each.unlink()
        (tmp_path / "text").rename(tmp_path / "queue.db")

        eventually(lambda: push(server, 2) == 503)
        eventually(lambda: "is no SQLite database" in problem(server))
        assert (tmp_path / "queue.db").read_text().startswith("no database")


def test_health_tests_once_however_many_ask_at_once(
    serving: Serving, file_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[str] = []
    whole = file_engine.problem

    def counted() -> str:
        probes.append("")
        return whole()

    monkeypatch.setattr(file_engine, "problem", counted)
    http = serving()

    asked = [http.begin("GET", "/health") for _ in range(50)]

    assert {each.result(DEADLINE).status for each in asked} == {200}
    assert len(probes) == 1


# -- PostgreSQL


@pytest.fixture
def schema() -> str:
    return f"causes_{uuid4().hex[:12]}"


def test_tables_that_are_gone_are_the_servers_fault(tmp_path: Path, own_postgres: Postgres, schema: str) -> None:
    with Served(tmp_path, "--database", f"{own_postgres.url}?schema={schema}") as server:
        assert push(server, 1) == 201
        with own_postgres.connect() as connection:
            connection.execute(f"drop schema {schema} cascade")

        assert [push(server, 2), pop(server)] == [503, 503]
        assert problem(server).startswith("the queue's tables are gone")
        assert server.program.output.count(REFUSED) == 1
        assert 'cause="no_tables"' in httpx.get(f"{server.url}/metrics/prometheus", timeout=DEADLINE).text


def test_a_right_that_was_taken_away_is_said(tmp_path: Path, own_postgres: Postgres, schema: str) -> None:
    with own_postgres.connect() as connection:
        connection.execute(f"create role {schema} login")
        connection.execute(f"grant create on database postgres to {schema}")
        url = f"{own_postgres.url_for(user=schema)}?schema={schema}"
        with Served(tmp_path, "--database", url) as server:
            assert push(server, 1) == 201
            connection.execute(f"revoke insert on {schema}.message from {schema}")

            assert push(server, 2) == 503
            assert "lacks a right" in problem(server)
            connection.execute(f"grant insert on {schema}.message to {schema}")
            assert push(server, 3) == 201
            assert problem(server) == ""


def test_damaged_pages_of_postgresql_are_said(tmp_path: Path, own_postgres: Postgres, schema: str) -> None:
    with Served(tmp_path, "--database", f"{own_postgres.url}?schema={schema}") as server:
        assert push(server, *["x" * 1000] * 500) == 201
        with own_postgres.connect() as connection:
            connection.execute("checkpoint")
            name = connection.execute(f"select pg_relation_filepath('{schema}.message')").fetchone()[0]
        own_postgres.stop()
        path = own_postgres._data / name
        pages = path.read_bytes()
        path.write_bytes(pages[:8192] + b"\xa5" * (len(pages) - 8192))
        own_postgres.start()
        try:
            eventually(lambda: pop(server) == 503)
            eventually(lambda: problem(server).startswith("pages of the database are damaged"))
        finally:
            with own_postgres.connect() as connection:
                connection.execute(f"drop schema {schema} cascade")


def test_a_server_that_is_stopped_and_started_is_said_and_found_again(
    tmp_path: Path, own_postgres: Postgres, schema: str
) -> None:
    with Served(tmp_path, "--database", f"{own_postgres.url}?schema={schema}") as server:
        assert push(server, 1) == 201
        own_postgres.stop()
        assert push(server, 2) == 503
        assert "nobody listens at that address" in problem(server) or "was stopped" in problem(server)

        own_postgres.start()
        eventually(lambda: push(server, 3) == 201)
        eventually(lambda: problem(server) == "")
        server.program.says("the database can be used again")


IMPATIENT = """
import sys
from pump.queue.http import request
assert request.ANSWER_SECONDS == 8
request.ANSWER_SECONDS = 1.0
from pump.command.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Impatient(Served):
    """A server that waits a second for an answer of its database, instead of `ANSWER_SECONDS`."""

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", IMPATIENT, *arguments]


def test_a_database_that_hangs_is_said(tmp_path: Path, own_postgres: Postgres, schema: str) -> None:
    with Impatient(tmp_path, "--database", f"{own_postgres.url}?schema={schema}") as server:
        assert problem(server) == ""
        own_postgres.pause()
        try:
            for _ in range(3):
                assert problem(server) == "the server does not answer in time: see whether it hangs, and the network"
            assert httpx.get(f"{server.url}/metrics", timeout=DEADLINE).json()["database"] is False
            assert "pump_queue_database_up 0" in httpx.get(f"{server.url}/metrics/prometheus", timeout=DEADLINE).text
        finally:
            own_postgres.unpause()

        eventually(lambda: problem(server) == "")
        assert push(server, 1) == 201


@pytest.fixture(scope="module")
def strict() -> Iterator[Postgres]:
    """A server that wants passwords from everybody but its administrator."""
    with Postgres() as server:
        with server.connect() as connection:
            connection.execute("set password_encryption = 'scram-sha-256'")
            connection.execute("create role ann login password 'right'")
            connection.execute("grant create on database postgres to ann")
            connection.execute("create role bob nologin")
        rules = server._data / "pg_hba.conf"
        rules.write_text("host all test all trust\nhost all bob all trust\nhost postgres all all scram-sha-256\n")
        server.restart()
        yield server


@pytest.mark.parametrize(
    ("user", "password", "database", "says"),
    [
        ("ann", "wrong", "postgres", "the password is wrong, or there is none"),
        ("ann", "", "postgres", "the password is wrong, or there is none"),
        ("ann", "right", "template1", "not allowed to connect: see pg_hba.conf"),
        ("bob", "", "postgres", "not allowed to connect: see pg_hba.conf"),
        ("test", "", "nowhere", "there is no database of that name"),
    ],
)
def test_why_there_is_no_connection_is_said_at_the_start(
    strict: Postgres, tmp_path: Path, user: str, password: str, database: str, says: str
) -> None:
    url = strict.url_for(user, password, database)

    ended = pump_run("queue", "serve", "--port", "0", "--database", url, folder=tmp_path)
    shown = pump_run("queue", "serve", "--traceback", "--port", "0", "--database", url, folder=tmp_path)

    assert ended.returncode == 3
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "Traceback" in shown.stderr
    assert "FATAL" in shown.stderr or "fe_sendauth" in shown.stderr
    assert not password or password not in ended.stderr.replace(says, "")


def test_the_right_password_is_enough(strict: Postgres, tmp_path: Path) -> None:
    with Served(tmp_path, "--database", strict.url_for("ann", "right")) as server:
        assert push(server, 1) == 201
