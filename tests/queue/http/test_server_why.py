"""What operators are told: each cause is logged once in words, then counted."""

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pump.clock import ManualClock
from pump.errors import SetupError
from pump.queue.causes import CAUSES, OTHER, of_number, of_result, of_state
from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.http.command import open_engine
from pump.queue.http.metrics import Gauges, Metrics
from pump.queue.http.outages import Outages
from pump.queue.sqlite.connection import FileConnection
from support.programs import pump_run
from support.queue_http import InProcess
from support.queue_http_fixtures import Serving

UNKNOWN = "5a3e1f3e-0000-4000-8000-000000000000"
FULL = QueueUnavailable("database connection unavailable: it is full", of_result(sqlite3.SQLITE_FULL))


def cause(name: str) -> Any:
    return next(each for each in CAUSES if each.name == name)


# -- the table


@pytest.mark.parametrize(
    ("state", "said", "name"),
    [
        ("53100", "", "disk_full"),
        ("25006", "", "read_only"),
        ("XX001", "", "damaged"),
        ("3D000", "", "unknown_database"),
        ("28P01", "", "wrong_password"),
        ("28000", "", "not_allowed"),
        ("57P01", "", "stopped"),
        ("08006", "", "stopped"),
        ("57P03", "", "starting"),
        ("53300", "", "too_many_connections"),
        ("99999", "", "other"),
        ("", 'FATAL:  password authentication failed for user "x"', "wrong_password"),
        ("", "fe_sendauth: no password supplied", "wrong_password"),
        ("", 'FATAL:  role "x" does not exist', "unknown_user"),
        ("", 'FATAL:  database "x" does not exist', "unknown_database"),
        ("", 'FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "x"', "not_allowed"),
        ("", "[Errno -2] Name or service not known", "unknown_host"),
        ("", "connection to server failed: Connection refused", "refused"),
        ("", "connection timeout expired", "no_answer"),
        ("", "FATAL:  sorry, too many clients already", "too_many_connections"),
        ("", "server closed the connection unexpectedly", "stopped"),
        ("", "connection to server failed: session is read-only", "read_only"),
        ("", "connection to server failed: server is in hot standby mode", "read_only"),
        ("", "something else", "other"),
    ],
)
def test_each_state_and_each_message_of_postgresql_has_its_cause(state: str, said: str, name: str) -> None:
    assert of_state(state, said).name == name


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (sqlite3.SQLITE_FULL, "disk_full"),
        (sqlite3.SQLITE_CORRUPT, "damaged"),
        (sqlite3.SQLITE_NOTADB, "foreign"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "read_only_file"),
        (sqlite3.SQLITE_IOERR_WRITE, "input_output"),
        (sqlite3.SQLITE_ERROR, "other"),
    ],
)
def test_each_result_of_sqlite_has_its_cause(result: int, name: str) -> None:
    assert of_result(result).name == name


def test_a_number_of_the_system_has_its_cause() -> None:
    assert of_number(28).name == "disk_full"
    assert of_number(None) is OTHER


def test_no_code_stands_in_the_table_twice() -> None:
    for codes in ("states", "results", "numbers"):
        every = [code for each in CAUSES for code in getattr(each, codes)]
        assert len(every) == len(set(every))


# -- at the start


@pytest.mark.parametrize(
    ("database", "says"),
    [
        ("postgresql://test@127.0.0.1:1/postgres", "nobody listens at that address"),
        ("postgresql://test@no-such-host.invalid/postgres?connect_timeout=5", "the host's name is unknown"),
    ],
)
def test_a_database_that_is_not_reached_says_why(tmp_path: Path, database: str, says: str) -> None:
    ended = pump_run("queue", "serve", "--port", "0", "--database", database, folder=tmp_path)

    assert ended.returncode == 3
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_unknown_database_is_named_so_and_its_traceback_shows_the_cause(tmp_path: Path, postgres_url: str) -> None:
    url = f"{postgres_url.rpartition('/')[0]}/nowhere"

    short = pump_run("queue", "serve", "--port", "0", "--database", url, folder=tmp_path)
    long = pump_run("queue", "serve", "--traceback", "--port", "0", "--database", url, folder=tmp_path)

    assert "there is no database of that name" in short.stderr
    assert 'database "nowhere" does not exist' in long.stderr


def test_an_unknown_user_is_named_so(tmp_path: Path, postgres_url: str) -> None:
    url = postgres_url.replace("test@", "somebody:secret@")

    ended = pump_run("queue", "serve", "--port", "0", "--database", url, folder=tmp_path)

    assert "there is no such user" in ended.stderr
    assert "secret" not in ended.stderr


def test_a_file_of_something_else_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_text("no database at all, but long enough to be read as one\n" * 100)

    ended = pump_run("queue", "serve", "--port", "0", folder=tmp_path)

    assert ended.returncode == 3
    assert "is no SQLite database" in ended.stderr
    assert (tmp_path / "queue.db").read_text().startswith("no database")


def test_the_words_about_tokens_are_shown_whole(tmp_path: Path) -> None:
    ended = pump_run("queue", "serve", "--host", "0.0.0.0", folder=tmp_path)  # noqa: S104 - nothing is bound

    assert "there have to be tokens, in a file that --tokens names" in ended.stderr


# -- while it runs


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From this call on, files cannot grow."""
    opened = FileConnection.__init__

    def fill(engine: Any) -> None:
        def narrow(self: FileConnection, *args: Any, **options: Any) -> None:
            opened(self, *args, **options)
            self.connection.execute("PRAGMA max_page_count = 1")  # never less than the pages that exist

        monkeypatch.setattr(FileConnection, "__init__", narrow)
        engine._connections._process.close()

    return fill


def test_a_full_disk_is_said_once_counted_and_seen_in_health(
    http: InProcess, file_engine: Any, full: Any, caplog: pytest.LogCaptureFixture
) -> None:
    http.push("q", *["x" * 1000] * 5)
    full(file_engine)
    big = {"items": [{"queue": "q", "payload": "x" * 100_000}]}

    with caplog.at_level(logging.INFO, "pump.queue"):
        answers = [http.post("/api/v1/push", big) for _ in range(5)]

    assert [each.status for each in answers] == [503] * 5
    assert caplog.text.count("the disk is full: make room on it") == 1
    assert 'pump_queue_unavailable_total{cause="disk_full"} 5' in http.get("/metrics/prometheus").body.decode()


def test_what_a_full_disk_holds_can_be_drained(http: InProcess, file_engine: Any, full: Any) -> None:
    http.push("q", *["x" * 50_000] * 20)
    full(file_engine)
    assert http.post("/api/v1/push", {"items": [{"queue": "q", "payload": "x" * 500_000}]}).status == 503

    messages = http.pop("q", batch=20)
    outcomes = [http.settle(each)["success"] for each in messages]
    cleared = http.delete("/api/v1/queues/q/clear")

    assert outcomes == [True] * 20
    assert cleared.status == 200
    assert http.post("/api/v1/push", {"items": [{"queue": "q", "payload": "x" * 500_000}]}).status == 201


def test_health_writes_and_says_what_is_wrong(serving: Serving, file_engine: Engine, monkeypatch: Any) -> None:
    probes: list[str] = []

    def problem() -> str:
        probes.append("")
        return str(cause("read_only").words)

    monkeypatch.setattr(file_engine, "problem", problem)
    http = serving()

    answers = [http.get("/health") for _ in range(20)]

    assert {each.status for each in answers} == {503}
    assert answers[0].json["problem"].startswith("the database is read-only")
    assert answers[0].json["database"] == "connected"
    assert len(probes) == 1


def test_a_read_only_postgresql_is_named_so(postgres_url: str) -> None:
    open_engine(f"{postgres_url}?schema=why_read_only").close()
    mark = "&" if "?" in postgres_url else "?"
    read_only = "options=-c%20default_transaction_read_only%3Don"
    engine = open_engine(f"{postgres_url}{mark}{read_only}&schema=why_read_only")

    try:
        assert engine.healthy()
        assert engine.problem() == cause("read_only").words
    finally:
        engine.close()


def test_a_database_that_works_has_no_problem(engine: Engine) -> None:
    assert engine.problem() == ""


def test_an_outage_is_a_line_at_its_beginning_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock, metrics = ManualClock(), Metrics()
    outages = Outages(clock, metrics)

    with caplog.at_level(logging.INFO, "pump.queue"):
        for _ in range(100):
            outages.failed("/push", FULL)
            outages.failed("/ack", FULL)
            outages.succeeded("/pop")
        clock.advance(3)
        outages.succeeded("/push")
        assert outages.any
        outages.succeeded("/ack")
        for _ in range(50):  # it comes and goes
            outages.failed("/push", FULL)
            outages.succeeded("/push")

    assert [each.levelname for each in caplog.records] == ["ERROR", "INFO"]
    assert "after 3 s and 200 refusals" in caplog.text
    assert 'cause="disk_full"} 250' in metrics.text(Gauges())


def test_nothing_is_logged_of_what_was_not_done(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.configure("q", engine.options("q") or _options())
    engine.subscribe("q", "g")

    with caplog.at_level(logging.INFO, "pump.queue"):
        engine.clear("q")
        engine.purge("q", "g")

    assert "removed" not in caplog.text
    assert "purged" not in caplog.text


def _options() -> Any:
    from pump.queue.options import QueueOptions

    return QueueOptions()


def test_a_redrive_says_why_not(http: InProcess, file_engine: Any) -> None:
    http.post("/api/v1/configure", {"queue": "q", "options": {"maxSize": 1}})
    http.push("q", 1)
    http.settle(http.pop("q")[0], "dlq")
    [dead] = http.get("/api/v1/dlq").json["messages"]
    http.push("q", 2)

    unknown, full = http.post("/api/v1/dlq/redrive", {"ids": [UNKNOWN, dead["id"]]}).json["results"]

    assert (unknown["redriven"], unknown["error"]) == (False, "no dead letter has this id, or it was redriven before")
    assert (full["redriven"], full["error"]) == (False, "queue is full")
    http.settle(http.pop("q")[0])
    [again] = http.post("/api/v1/dlq/redrive", {"ids": [dead["id"]]}).json["results"]
    assert again["redriven"] is True


def test_a_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE accounts (name TEXT)")
    theirs.close()
    before = path.read_bytes()

    with pytest.raises(SetupError, match="tables of another program"):
        open_engine(f"sqlite:///{path}")

    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.db"]
