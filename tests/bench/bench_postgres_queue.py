"""The queue on PostgreSQL: pushing, popping and acknowledging, against a bare table, by batches and merged."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from uuid import uuid4

import pytest

from bench.disk import fdatasync_per_second
from bench.queues import (
    BATCH,
    PAYLOAD,
    Bench,
    Line,
    acks,
    figures,
    flat,
    pops_and_acks,
    pushes,
    run,
    single_acks_of_16,
)
from bench.table import Row
from bench.turns import Measured, measure
from brokers.postgres import Postgres
from pump.queue.ids import mint_many
from pump.queue.postgres.engine import PostgresEngine

pytestmark = pytest.mark.requirement("Q-24", "Q-25")


class PostgresBench(Bench):
    """An engine on a schema of its own."""

    def __init__(self, server: Postgres) -> None:
        engine = PostgresEngine(server.url, schema=f"bench_{uuid4().hex[:12]}", pool_size=16)
        super().__init__(engine, fdatasync_per_second(server.folder))


def bare_inserts(server: Postgres) -> Measured:
    """Inserts into a table with one unique index, by bare psycopg."""
    with server.connect() as connection:
        connection.execute("create table bare (id uuid primary key, payload bytea not null)")
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect(prepare_threshold=1)) for _ in range(4)]

        def insert(number: int) -> int:
            values = (mint_many(BATCH), [PAYLOAD] * BATCH)
            connections[number].execute(
                "insert into bare select * from unnest(%b::text[]::uuid[], %b::bytea[])", values
            )
            return BATCH

        return measure(insert, threads=4)


PUSH = f"push by {BATCH}, 4 connections, 1 partition"
LINES = (
    Line(PUSH, lambda bench: pushes(bench, 4), 30_000),
    Line(f"pop and ack by {BATCH}, ordered, 1 connection", lambda bench: pops_and_acks(bench, 1, ordered=True), 15_000),
    Line(
        f"pop and ack by {BATCH}, unordered, 4 connections, 1 partition",
        lambda bench: pops_and_acks(bench, 4, ordered=False),
        10_000,
    ),
    Line(f"ack by {BATCH}, 4 connections", lambda bench: acks(bench, 4), 40_000),
    Line("ack one, 16 connections on their own partitions", single_acks_of_16, 2_500),
)


def rows() -> Iterator[Row]:
    """Every figure."""
    with Postgres() as server:
        bench = PostgresBench(server)
        with closing(bench.engine):
            bare = bare_inserts(server)
            found = run(bench, LINES)
            flatness = flat(bench)
    yield Row(f"insert by {BATCH} into a bare table, 4 connections", bare.per_second, "msg/s")
    yield from figures(bench, LINES, found)
    yield Row("push against the bare insert", found[PUSH].per_second / bare.per_second, "×", 0.15)
    yield Row("ack one, 1 caller: p50", found["ack by 1, 1 caller, 1 lease"].p50_ms, "ms", 3, "at most")
    yield flatness
