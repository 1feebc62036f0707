"""A busy queue leaves few dead rows in PostgreSQL, and stays fast while an old snapshot keeps them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.vocabulary import PopRequest, Push, Settlement

BATCH = 100
SIDE_TABLES = ("progress", "partition", "delivery", "consumer_group", "queue", "scheduled", "dead", "removed")


MakeEngine = Callable[[Postgres], PostgresEngine]


@pytest.fixture
def make() -> Iterator[MakeEngine]:
    with ExitStack() as stack:

        def make(server: Postgres) -> PostgresEngine:
            engine = PostgresEngine(server.url, schema=f"bloat_{uuid4().hex[:12]}")
            stack.callback(engine.close)
            return engine

        yield make


def cycle(engine: PostgresEngine, number: int = BATCH) -> None:
    """Push, pop and acknowledge this number of messages."""
    engine.push([Push("q", b"x" * 200) for _ in range(number)])
    messages = engine.pop(PopRequest(queue="q", limit=number)).messages
    settled = engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages])
    assert sum(each.success for each in settled) == number


def timed(engine: PostgresEngine) -> float:
    """The seconds that a cycle takes."""
    start = time.perf_counter()
    cycle(engine)
    return time.perf_counter() - start


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seconds", [5.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_an_old_snapshot_costs_less_than_half_the_rate(
    make: MakeEngine, postgres: Postgres, own_postgres: Postgres, seconds: float, *, ordered: bool
) -> None:
    held, clean = make(postgres), make(own_postgres)  # in turns, so that other load on the machine affects both
    for engine in (held, clean):
        engine.configure("q", QueueOptions(ordered=ordered))

    with postgres.connect() as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select 1")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            cycle(held)
        times = [(timed(held), timed(clean)) for _ in range(200)]

    assert sum(each for each, _ in times) <= 2 * sum(each for _, each in times)


@pytest.mark.parametrize("messages", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_what_is_done_leaves_little_behind(make: MakeEngine, postgres: Postgres, messages: int) -> None:
    engine = make(postgres)
    engine.configure("q", QueueOptions(retention_enabled=True, completed_retention=1))

    for done in range(0, messages, 1000):
        cycle(engine, 1000)
        if done % 10_000 == 0:
            engine.clock_offset += 2
            while engine.maintain() == 0:
                pass

    with postgres.connect() as connection:
        names = [f"{engine._schema}.{table}" for table in SIDE_TABLES]
        sizes = connection.execute(
            "select sum(pg_total_relation_size(t::regclass)) from unnest(%s::text[]) t", (names,)
        )
        size = sizes.fetchone()[0]
        left = connection.execute(f"select count(*) from {engine._schema}.message").fetchone()[0]  # noqa: S608
    assert size < 20_000_000
    assert left <= 11_000
