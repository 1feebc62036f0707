"""Problems that only PostgreSQL has: callers that keep locks for a long time."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.vocabulary import PopRequest, Push
from support.queue_races import drained, names


@pytest.fixture
def engine(own_postgres: Postgres) -> Iterator[PostgresEngine]:
    with closing(PostgresEngine(own_postgres.url, schema=f"test_{uuid4().hex[:16]}", statement_timeout=5.0)) as engine:
        yield engine


@pytest.mark.requirement("Q-51", "Q-49", "Z-11")
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_while_a_caller_keeps_a_transaction_open_others_get_what_is_not_in_it(
    engine: PostgresEngine, own_postgres: Postgres, *, ordered: bool
) -> None:
    engine.configure("orders", QueueOptions(ordered=ordered))
    engine.subscribe("orders", "one")
    for part in ("A", "B"):
        engine.push([Push("orders", b"", part, f"{part}-now"), Push("orders", b"", part, f"{part}-due", delay=10.0)])
    want = PopRequest(queue="orders", group="one", limit=10, partitions=10)

    with own_postgres.connect() as connection:
        with connection.transaction():
            with engine.transaction_on(connection) as steps:
                steps.append(Push("orders", b"", "A", "A-open"))
            engine.clock_offset += 11
            first = engine.pop(want)
            assert "B-now" in names(first.messages)
            assert "B-due" in names(first.messages)
            assert not {"A-open", "A-due"} & set(names(first.messages))
            again = engine.pop(want)
            assert not again.messages
            assert again.due_in is not None
            assert again.due_in < 1
        engine.clock_offset += 400

    assert sorted(names(drained(engine, "orders", "one"))) == ["A-due", "A-now", "A-open", "B-due", "B-now"]
