"""The queue on PostgreSQL: pushing, popping and acknowledging, with the disk's own speed beside each figure.

One disk's commits take ten times as long as another's, so figures of single messages say most about the disk.
"""

import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple
from uuid import uuid4

from bench.table import Row
from brokers.postgres import Postgres
from pump.queue.ids import mint_many
from pump.queue.options import QueueOptions
from pump.queue.postgres_engine import PostgresEngine
from pump.queue.vocabulary import Leased, Push, Settlement, Want

BATCH = 100
PAYLOAD = b'{"orderId": 12345, "customer": "abcdefgh", "note": "' + b"x" * 140 + b'"}'
SECONDS = 3.0

Turn = Callable[[int], int]


class Measured(NamedTuple):
    """How fast something was."""

    per_second: float
    p50_ms: float
    p99_ms: float


class Bench:
    """An engine on a schema of its own."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.engine = PostgresEngine(server.url, schema=f"bench_{uuid4().hex[:12]}", pool_size=16)
        self.fdatasync = fdatasync_per_second(server)

    def queue(self, *, ordered: bool) -> str:
        name = uuid4().hex
        self.engine.configure(name, QueueOptions(ordered=ordered, retention_enabled=False))
        return name

    def push(self, queue: str, partition: str = "Default", number: int = BATCH) -> int:
        ids = mint_many(number)
        self.engine.push([Push(queue, PAYLOAD, partition, transaction_id=each) for each in ids])
        return number

    def fill(self, queue: str, number: int, partition: str = "Default") -> None:
        for _ in range(0, number, 1000):
            self.push(queue, partition, min(number, 1000))

    def pop(self, queue: str, limit: int = BATCH, partitions: int = 1) -> list[Leased]:
        return list(self.engine.pop(Want(queue=queue, limit=limit, partitions=partitions)).messages)

    def ack(self, messages: list[Leased]) -> int:
        done = self.engine.settle(
            [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages]
        )
        assert all(each.success for each in done)
        return len(messages)

    def pop_and_ack(self, queue: str, partitions: int = 1) -> int:
        messages = self.pop(queue, partitions=partitions)
        return self.ack(messages) if messages else 0


def fdatasync_per_second(server: Postgres) -> float:
    """What pg_test_fsync says of the disk that the server's log is on."""
    file = server.folder / "fsync"
    program = server.program("pg_test_fsync")
    done = subprocess.run([program, "-s", "1", "-f", file], check=True, capture_output=True, text=True)
    found = re.search(r"fdatasync\s+([\d.]+) ops/sec", done.stdout)
    return float(found[1]) if found else 0.0


def measure(turn: Turn, *, threads: int = 1, seconds: float = SECONDS) -> Measured:
    """Take turns until the time is over, or until there is nothing left for somebody."""
    counts, waits = [0] * threads, [list[float]() for _ in range(threads)]
    errors: list[BaseException] = []
    start = time.perf_counter()

    def work(number: int) -> None:
        try:
            while time.perf_counter() < start + seconds:
                begun = time.perf_counter()
                done = turn(number)
                if not done:
                    return
                waits[number].append(time.perf_counter() - begun)
                counts[number] += done
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    every = sorted(wait * 1000 for line in waits for wait in line)
    return Measured(sum(counts) / elapsed, statistics.median(every), every[int(len(every) * 0.99)])


def bare_inserts(bench: Bench) -> Measured:
    """What a table with one unique index takes, in the hand of psycopg alone."""
    with bench.server.connect() as connection:
        connection.execute("create table bare (id uuid primary key, payload bytea not null)")
    with ExitStack() as stack:
        connections = [stack.enter_context(bench.server.connect(prepare_threshold=1)) for _ in range(4)]

        def insert(number: int) -> int:
            values = (mint_many(BATCH), [PAYLOAD] * BATCH)
            connections[number].execute(
                "insert into bare select * from unnest(%b::text[]::uuid[], %b::bytea[])", values
            )
            return BATCH

        return measure(insert, threads=4)


def pushes(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    bench.push(queue)
    return measure(lambda _: bench.push(queue), threads=4)


def ordered(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    bench.fill(queue, 150_000)
    return measure(lambda _: bench.pop_and_ack(queue))


def unordered(bench: Bench) -> Measured:
    queue = bench.queue(ordered=False)
    bench.fill(queue, 150_000)
    return measure(lambda _: bench.pop_and_ack(queue), threads=4)


def acks(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    for partition in range(400):
        bench.push(queue, str(partition))
    held = [bench.pop(queue) for _ in range(400)]
    return measure(lambda _: bench.ack(held.pop()) if held else 0, threads=4, seconds=60)


def single_acks(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    bench.fill(queue, 5000)
    held = bench.pop(queue, 5000)
    return measure(lambda _: bench.ack([held.pop()]) if held else 0)


def single_acks_of_16(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    for partition in range(16):
        bench.push(queue, str(partition), 1000)
    held = [bench.pop(queue, 1000) for _ in range(16)]
    return measure(lambda number: bench.ack([held[number].pop()]) if held[number] else 0, threads=16)


def one_partition(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    bench.fill(queue, 100_000)
    return measure(lambda _: bench.pop_and_ack(queue))


def twenty_of_ten_thousand(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    for start in range(0, 10_000, 500):
        bench.engine.push([Push(queue, PAYLOAD, str(number)) for number in range(start, start + 500)])
    while bench.pop_and_ack(queue, partitions=100):
        pass
    for number in range(20):
        bench.fill(queue, 5000, str(number))
    return measure(lambda _: bench.pop_and_ack(queue))


class Line(NamedTuple):
    """What is measured, and the bound of its messages a second."""

    name: str
    run: Callable[[Bench], Measured]
    bound: float | None


LINES = [
    Line("insert by 100 into a bare table, 4 connections", bare_inserts, None),
    Line("push by 100, 4 connections, 1 partition", pushes, 30_000),
    Line("pop and ack by 100, ordered, 1 connection", ordered, 15_000),
    Line("pop and ack by 100, unordered, 4 connections, 1 partition", unordered, 10_000),
    Line("ack by 100, 4 connections", acks, 40_000),
    Line("ack one, 1 connection", single_acks, None),
    Line("ack one, 16 connections on their own partitions", single_acks_of_16, 2_500),
    Line("pop and ack by 100, 1 partition", one_partition, None),
    Line("the same, 20 of 10,000 partitions ready", twenty_of_ten_thousand, None),
]


def rows() -> Iterator[Row]:
    """Every figure."""
    with Postgres() as server:
        bench = Bench(server)
        try:
            figures = {line.name: (line, line.run(bench)) for line in LINES}
        finally:
            bench.engine.close()
    for name, (line, measured) in figures.items():
        note = f"p50 {measured.p50_ms:.2f} ms, p99 {measured.p99_ms:.2f} ms; fdatasync {bench.fdatasync:,.0f}/s"
        yield Row(name, measured.per_second, "msg/s", line.bound, note=note)
    bare = figures["insert by 100 into a bare table, 4 connections"][1].per_second
    pushed = figures["push by 100, 4 connections, 1 partition"][1].per_second
    yield Row("push against the bare insert", pushed / bare, "×", 0.15)
    single = figures["ack one, 1 connection"][1]
    yield Row("ack one, 1 connection: p50", single.p50_ms, "ms", 3, "at most")
    many = figures["the same, 20 of 10,000 partitions ready"][1].per_second
    yield Row(
        "20 of 10,000 partitions against 1", many / figures["pop and ack by 100, 1 partition"][1].per_second, "×", 0.5
    )
