"""Promises of PostgreSQL's engine alone: callers' own transactions, several processes, schemas, kept secrets."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from brokers.postgres import Postgres
from brokers.waiting import wait_until
from pump.errors import ConfigurationError, SetupError
from pump.queue.engine import Engine
from pump.queue.errors import Conflict, QueueUnavailable
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.postgres.migrations import digest
from pump.queue.sealing import Sealing
from pump.queue.vocabulary import Leased, PopRequest, Push, Settlement, Status

SECRET = "hunter2"
KEYS = Sealing({"first": bytes(32)})

MakeEngine = Callable[..., PostgresEngine]


@pytest.fixture
def schema() -> str:
    return f"test_{uuid4().hex[:16]}"


@pytest.fixture
def make(postgres: Postgres, schema: str) -> Iterator[MakeEngine]:
    with ExitStack() as stack:

        def make(url: str = postgres.url, **options: Any) -> PostgresEngine:
            engine = PostgresEngine(url, **{"schema": schema, **options})
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def engine(make: MakeEngine) -> PostgresEngine:
    return make()


@pytest.fixture
def connection(postgres: Postgres, schema: str, engine: PostgresEngine) -> Iterator[psycopg.Connection[Any]]:
    """A caller's own connection, with a table of its own."""
    with postgres.connect() as connection:
        connection.execute(f"create table {schema}.orders (name text)")
        yield connection


def push(engine: PostgresEngine, *names: str, partition: str = "Default") -> None:
    engine.push([Push("q", name.encode(), partition, name) for name in names])


def pop(engine: PostgresEngine, **want: Any) -> list[Leased]:
    return list(engine.pop(PopRequest(**{"queue": "q", "limit": 100, **want})).messages)


def names(engine: PostgresEngine, **want: Any) -> list[str]:
    return [message.transaction_id for message in pop(engine, **want)]


def settlement(message: Leased, status: Status = Status.COMPLETED) -> Settlement:
    return Settlement(message.transaction_id, message.partition_id, message.lease_id, status)


def order(connection: psycopg.Connection[Any], schema: str) -> None:
    connection.execute(f"insert into {schema}.orders values ('mine')")  # noqa: S608 - the test's own


def orders(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    return [name for (name,) in connection.execute(f"select name from {schema}.orders")]  # noqa: S608 - the test's own


def test_it_keeps_the_promises_of_every_engine(engine: PostgresEngine) -> None:
    assert is_healthy(engine)


def is_healthy(engine: Engine) -> bool:
    """A function that takes any engine: the type checker accepts this one."""
    return engine.healthy()


# -- callers' own transactions


@pytest.mark.requirement("Z-07")
def test_p10_a_push_that_commits_late_is_delivered_in_the_order_of_commits(
    engine: PostgresEngine, connection: psycopg.Connection[Any]
) -> None:
    push(engine, "before")
    assert names(engine, limit=1, auto_ack=True) == ["before"]

    with ThreadPoolExecutor(1) as thread:
        with connection.transaction():
            with engine.transaction_on(connection) as steps:
                steps.append(Push("q", b"A", transaction_id="A"))
            later = thread.submit(push, engine, "B")
            wait_until(lambda: is_blocked(connection), "B waits for A")
            assert names(engine) == []
        later.result()

    assert names(engine) == ["A", "B"]


def is_blocked(connection: psycopg.Connection[Any]) -> bool:
    """Whether another connection waits for this one."""
    waiting = "select 1 from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid))"
    return connection.execute(waiting).fetchone() is not None


@pytest.mark.requirement("Q-49")
def test_a_callers_statements_and_the_queues_are_one(
    engine: PostgresEngine, connection: psycopg.Connection[Any], schema: str
) -> None:
    push(engine, "1")
    (message,) = pop(engine)

    with engine.transaction_on(connection) as steps:
        order(connection, schema)
        steps += [settlement(message), Push("q", b"next", transaction_id="next")]

    assert orders(connection, schema) == ["mine"]
    assert names(engine) == ["next"]


@pytest.mark.requirement("Q-49")
@pytest.mark.parametrize(
    "options", [{"row_factory": dict_row}, {"cursor_factory": psycopg.ClientCursor}], ids=["rows", "cursors"]
)
def test_a_caller_may_have_rows_and_cursors_of_his_own(
    engine: PostgresEngine, postgres: Postgres, options: dict[str, Any]
) -> None:
    push(engine, "1")
    (message,) = pop(engine)

    with postgres.connect(**options) as connection, engine.transaction_on(connection) as steps:
        steps += [settlement(message), Push("q", b"next", transaction_id="next")]

    assert names(engine) == ["next"]


@pytest.mark.requirement("Q-49")
def test_a_refused_step_undoes_the_callers_statements(
    engine: PostgresEngine, connection: psycopg.Connection[Any], schema: str
) -> None:
    push(engine, "1")
    (message,) = pop(engine)
    engine.settle([settlement(message)])

    def buy() -> None:
        with engine.transaction_on(connection) as steps:
            order(connection, schema)
            steps += [Push("q", b"next", transaction_id="next"), settlement(message)]

    with pytest.raises(Conflict):
        buy()

    assert orders(connection, schema) == []
    assert names(engine) == []


@pytest.mark.requirement("Q-49")
def test_a_callers_error_undoes_the_queues_statements(
    engine: PostgresEngine, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(ZeroDivisionError), engine.transaction_on(connection) as steps:
        steps.append(Push("q", bytes(1 // len(names(engine)))))

    assert names(engine) == []


def test_partitions_are_locked_only_at_the_end_of_a_callers_transaction(
    engine: PostgresEngine, connection: psycopg.Connection[Any]
) -> None:
    push(engine, "1")

    with engine.transaction_on(connection) as steps:
        steps.append(Push("q", b"3", transaction_id="3"))
        push(engine, "2")  # would wait for ever

    assert names(engine) == ["1", "2", "3"]


def test_transactions_over_the_same_partitions_in_any_order_get_through(
    engine: PostgresEngine, postgres: Postgres
) -> None:
    push(engine, "a", partition="A")
    push(engine, "b", partition="B")
    start = threading.Barrier(2)

    def run(first: str, second: str) -> None:
        with postgres.connect() as connection:
            start.wait()
            for _ in range(50):
                with engine.transaction_on(connection) as steps:
                    steps += [Push("q", b"x", first), Push("q", b"x", second)]

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(run, "A", "B"), threads.submit(run, "B", "A")]

    assert [each.result() for each in both] == [None, None]
    assert len(pop(engine, limit=1000, partitions=2)) == 202


def test_a_deadlock_with_the_callers_own_locks_may_be_tried_again(
    engine: PostgresEngine, postgres: Postgres, schema: str
) -> None:
    push(engine, "1")
    with postgres.connect() as one, postgres.connect() as other, ThreadPoolExecutor(1) as thread:
        one.execute(f"create table {schema}.mine (n int)")
        with one.transaction():
            one.execute(f"lock table {schema}.mine")
            blocked = thread.submit(lock_after_push, engine, other, schema)
            wait_until(lambda: is_blocked(one), "the other waits for the table")
            first = refusal(lambda: append_last(engine, one))
        second = blocked.result()

    assert [type(each) for each in (first, second) if each is not None] in (
        [QueueUnavailable],
        [psycopg.errors.DeadlockDetected],
    )
    assert len(names(engine)) == 2


def lock_after_push(engine: PostgresEngine, connection: psycopg.Connection[Any], schema: str) -> Exception | None:
    def act() -> None:
        with connection.transaction():
            append_last(engine, connection)
            connection.execute(f"lock table {schema}.mine")

    return refusal(act)


def append_last(engine: PostgresEngine, connection: psycopg.Connection[Any]) -> None:
    with engine.transaction_on(connection) as steps:
        steps.append(Push("q", b"x"))


def refusal(act: Callable[[], None]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


# -- several processes


def test_a_queue_that_another_process_deleted_is_made_again(make: MakeEngine) -> None:
    one, other = make(), make()
    push(one, "1")
    assert names(one) == ["1"]

    other.delete_queue("q")
    push(one, "2")

    assert names(one) == ["2"]


def test_a_group_that_another_process_deleted_begins_anew(make: MakeEngine) -> None:
    one, other = make(), make()
    push(one, "1")
    assert names(one, group="g") == ["1"]

    other.delete_group("g")

    assert names(one, group="g") == ["1"]


@pytest.mark.requirement("Q-64")
def test_what_another_process_has_made_secret_is_never_stored_in_clear(
    make: MakeEngine, postgres: Postgres, schema: str
) -> None:
    one, other = make(keys=KEYS), make(keys=KEYS)
    push(one, "clear")

    other.configure("q", QueueOptions(encryption=True))
    push(one, "secret")

    with postgres.connect() as connection:
        rows = connection.execute(f"select payload from {schema}.message order by seq").fetchall()  # noqa: S608
    assert rows[0] == (b"clear",)
    assert b"secret" not in rows[1][0]
    assert [message.payload for message in pop(one)] == [b"clear", b"secret"]


@pytest.mark.requirement("Q-56")
def test_of_pushes_that_race_one_stores_the_message(make: MakeEngine) -> None:
    engine = make(pool_size=20)
    start = threading.Barrier(20)

    def race(_: int) -> bool:
        start.wait()
        return engine.push([Push("q", b"x", transaction_id="same")])[0].duplicate

    with ThreadPoolExecutor(20) as threads:
        duplicates = list(threads.map(race, range(20)))

    assert sorted(duplicates) == [False, *[True] * 19]
    assert names(engine) == ["same"]


@pytest.mark.requirement("Q-32")
@pytest.mark.parametrize("ordered", [True, False])
def test_competing_consumers_get_each_message_once(make: MakeEngine, *, ordered: bool) -> None:
    engine = make(pool_size=4)
    engine.configure("q", QueueOptions(ordered=ordered))
    for partition in range(10):
        push(engine, *(f"{partition}-{number}" for number in range(100)), partition=str(partition))
    got: list[str] = []

    def consume(_: int) -> int:
        count = 0
        while len(got) < 1000:
            messages = pop(engine, limit=7, partitions=2)
            engine.settle([settlement(message) for message in messages])
            got.extend(message.transaction_id for message in messages)
            count += len(messages)
        return count

    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(consume, range(4)))

    assert len(got) == len(set(got)) == 1000
    assert min(counts) > 0


@pytest.mark.requirement("Q-54")
def test_more_callers_than_connections_all_get_through(make: MakeEngine) -> None:
    engine = make(pool_size=8)
    push(engine, *map(str, range(64)))
    messages = pop(engine)

    with ThreadPoolExecutor(64) as threads:
        done = list(threads.map(lambda message: engine.settle([settlement(message)])[0].success, messages))

    assert done == [True] * 64


# -- announcements


def test_a_push_notifies_another_process(make: MakeEngine) -> None:
    one, other = make(), make()
    notified = threading.Event()
    forget = other.listen("q", notified.set)
    wait_until(notified.is_set, "it listens")
    notified.clear()

    push(one, "1")

    wait_until(notified.is_set, "the notification")
    forget()


def test_a_callers_transaction_notifies_another_process_when_it_commits(
    make: MakeEngine, connection: psycopg.Connection[Any], engine: PostgresEngine
) -> None:
    other = make()
    assert names(engine) == []  # starts waiting
    notified = threading.Event()
    other.listen("q", notified.set)
    wait_until(notified.is_set, "it listens")
    notified.clear()

    with connection.transaction():
        append_last(engine, connection)
        assert not notified.is_set()

    wait_until(notified.is_set, "the notification")


def test_nobody_is_notified_who_has_stopped_listening(engine: PostgresEngine) -> None:
    notified: list[str] = []
    forget = engine.listen("q", lambda: notified.append("forgotten"))
    engine.listen("q", lambda: notified.append("listening"))
    forget()
    notified.clear()

    push(engine, "1")

    assert "listening" in notified
    assert "forgotten" not in notified


def test_a_listener_that_fails_does_not_harm_the_push(engine: PostgresEngine) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    engine.listen("q", fail)

    push(engine, "1")

    assert names(engine) == ["1"]


def test_an_engine_that_listens_may_be_closed_twice(make: MakeEngine) -> None:
    engine = make()
    engine.listen("q", lambda: None)

    engine.close()
    engine.close()

    with pytest.raises(QueueUnavailable, match="closed"):
        push(engine, "1")


# -- set-up


@pytest.mark.parametrize("schema", ["", "Upper", "1st", 'a"b', "x" * 49, "a b"])
def test_a_schema_that_is_none_is_refused(postgres_url: str, schema: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresEngine(postgres_url, schema=schema)


def test_engines_that_start_together_make_the_tables_once(make: MakeEngine) -> None:
    with ThreadPoolExecutor(8) as threads:
        engines = list(threads.map(lambda _: make(), range(8)))

    push(engines[0], "1")
    assert names(engines[7]) == ["1"]


def test_a_schema_of_a_newer_version_is_refused(make: MakeEngine, postgres: Postgres, schema: str) -> None:
    make()
    with postgres.connect() as connection:
        connection.execute(f"insert into {schema}.schema_version values (999)")  # noqa: S608 - the test's own

    with pytest.raises(SetupError, match="999"):
        make()


@pytest.mark.parametrize(
    "change",
    [
        "alter table {0}.schema_version drop column digest",
        "update {0}.schema_version set digest = null where number = 3",
        "update {0}.schema_version set digest = 'f00' where number = 7",
        "delete from {0}.schema_version where number = 2",
    ],
    ids=["before there were digests", "without one", "another one", "one left out"],
)
def test_a_schema_of_another_build_is_refused_with_what_to_do_and_left_alone(
    make: MakeEngine, postgres: Postgres, schema: str, change: str
) -> None:
    push(make(), "1")
    with postgres.connect() as connection:
        connection.execute(change.format(schema))

    with pytest.raises(SetupError, match=f"schema {schema} was made by another build") as raised:
        make()

    assert "give the queue another schema (`schema=…`)" in str(raised.value)
    with postgres.connect() as connection:
        assert connection.execute(f"select count(*) from {schema}.message").fetchone() == (1,)  # noqa: S608


@pytest.mark.parametrize(
    "statement",
    [
        "create table {0}.message (text text)",
        "create table {0}.schema_version (installed_rank int)",
        "create table {0}.schema_version (version text); insert into {0}.schema_version values ('1.0')",
        "create function {0}.size_of(bigint) returns bigint language sql as 'select 1::bigint'",
        "create type {0}.taken as enum ('a')",
    ],
)
def test_a_schema_in_which_another_program_has_what_the_queue_needs_is_refused(
    make: MakeEngine, postgres: Postgres, schema: str, statement: str
) -> None:
    with postgres.connect() as connection:
        connection.execute(f"create schema {schema}")
        for each in statement.format(schema).split("; "):
            connection.execute(each)

    with pytest.raises(SetupError, match=f"schema {schema} has something of another program"):
        make()


def test_comments_and_spaces_make_no_other_build() -> None:
    assert digest("select 1; -- one\n\n  select 2;") == digest("select 1;\nselect 2; -- two")
    assert digest("select 1;") != digest("select 2;")


def test_the_database_needs_no_search_path(make: MakeEngine, postgres: Postgres) -> None:
    engine = make(f"{postgres.url}?options=-c%20search_path%3D")

    push(engine, "1")

    assert names(engine) == ["1"]


@pytest.mark.parametrize("threshold", [None, 0, 5])
def test_statements_may_be_prepared_or_not(make: MakeEngine, threshold: int | None) -> None:
    engine = make(prepare_threshold=threshold)

    for number in range(10):
        push(engine, str(number))
        assert names(engine, auto_ack=True) == [str(number)]


# -- secrets


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://test:{SECRET}@127.0.0.1:1/postgres",
        f"postgresql://test:{SECRET}@127.0.0.1:1/postgres?no_such_option=1",
        f"postgresql://test:{SECRET}%zz@127.0.0.1:1/postgres",
    ],
)
def test_an_address_is_never_in_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises((QueueUnavailable, ConfigurationError)) as caught:
        PostgresEngine(url)

    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__
    assert SECRET not in caplog.text


def test_an_address_is_not_in_the_representation(make: MakeEngine, postgres: Postgres) -> None:
    assert SECRET not in repr(make(postgres.url_for(password=SECRET)))
