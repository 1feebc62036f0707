"""The queue on PostgreSQL as it grows from half a million to five million messages, analysed at each size."""

from collections.abc import Iterator

from bench.bench_postgres_queue import Bench, Measured, measure
from bench.table import Row
from brokers.postgres import Postgres

SIZES = (500_000, 5_000_000)


def rows() -> Iterator[Row]:
    """Every figure."""
    with Postgres() as server:
        bench = Bench(server)
        try:
            figures = list(grown(bench))
        finally:
            bench.engine.close()
    for size, pushed, popped in figures:
        yield Row(f"push by 100 at {size:,}", pushed.per_second, "msg/s", note=f"p99 {pushed.p99_ms:.2f} ms")
        yield Row(f"pop and ack by 100 at {size:,}", popped.per_second, "msg/s", note=f"p99 {popped.p99_ms:.2f} ms")
    (_, pushed, popped), (_, pushed_later, popped_later) = figures
    yield Row("push, at the larger size against the smaller", pushed_later.per_second / pushed.per_second, "×", 1 / 1.5)
    yield Row("pop and ack, the same", popped_later.per_second / popped.per_second, "×", 1 / 1.5)


def grown(bench: Bench) -> Iterator[tuple[int, Measured, Measured]]:
    """At each size, how fast messages go in, and out."""
    queue, messages = bench.queue(ordered=True), 0
    for size in SIZES:
        bench.fill(queue, size - messages)
        messages = size
        with bench.server.connect() as connection:
            connection.execute("analyze")
        pushed = measure(lambda _: bench.push(queue), threads=4)
        yield size, pushed, measure(lambda _: bench.pop_and_ack(queue))
