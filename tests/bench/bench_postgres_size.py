"""The queue on PostgreSQL with half a million and with five million messages, side by side, analysed at each size."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

from bench.bench_postgres_queue import PostgresBench
from bench.queues import BATCH
from bench.table import Row
from bench.turns import Measured, side_by_side
from brokers.postgres import Postgres

SIZES = (500_000, 5_000_000)
ROUNDS, TURNS = 9, 100
"""Ten thousand messages a round, so that the sizes hardly change."""


def rows() -> Iterator[Row]:
    """Every figure."""
    with Postgres() as server, ExitStack() as stack:
        benches = [PostgresBench(server) for _ in SIZES]
        for bench in benches:
            stack.enter_context(closing(bench.engine))
        pushed, popped = grown(server, benches)
    for what, figures in (("push", pushed), ("pop and ack", popped)):
        small, large = figures
        for size, figure in zip(SIZES, figures, strict=True):
            yield Row(f"{what} by {BATCH} at {size:,}", figure.per_second, "msg/s", note=f"p99 {figure.p99_ms:.2f} ms")
        yield Row(f"{what}, the larger against the smaller", large.per_second / small.per_second, "×", 1 / 1.5)


def grown(server: Postgres, benches: list[PostgresBench]) -> tuple[list[Measured], list[Measured]]:
    """How fast messages go in, and out, for each size."""
    queues = [bench.queue(ordered=True) for bench in benches]
    for bench, queue, size in zip(benches, queues, SIZES, strict=True):
        bench.fill(queue, size)
    with server.connect() as connection:
        connection.execute("analyze")
    pairs = list(zip(benches, queues, strict=True))
    pushed = [lambda _, bench=bench, queue=queue: bench.push(queue) for bench, queue in pairs]
    popped = [lambda _, bench=bench, queue=queue: bench.pop_and_ack(queue) for bench, queue in pairs]
    return (
        side_by_side(*pushed, rounds=ROUNDS, each=TURNS, threads=4),
        side_by_side(*popped, rounds=ROUNDS, each=TURNS),
    )
