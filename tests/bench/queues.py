"""What is measured of the durable queue on either database: pushing, popping and acknowledging, and what merging gains.

One disk's commits take ten times as long as another's, so figures of single messages say most about the disk.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from bench.table import Row
from bench.turns import SECONDS, Measured, measure, side_by_side
from pump.queue.batching.batched_engine import BatchedEngine
from pump.queue.engine import Engine
from pump.queue.ids import mint_many
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Leased, PopRequest, Push, Settlement

BATCH = 100
PAYLOAD = b'{"orderId": 12345, "customer": "abcdefgh", "note": "' + b"x" * 140 + b'"}'
CALLERS = 16
ONE_LEASE = 10_000
"""As many messages as one pop can have."""
SLOWEST_MS = {1: 50, 10: 80, BATCH: 150}
"""At most so many milliseconds for acknowledging so many at one go, at the median."""


class Bench:
    """An engine, and the speed of the disk that it is on."""

    def __init__(self, engine: Engine, fdatasync: float) -> None:
        self.engine = engine
        self.fdatasync = fdatasync

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
        return list(self.engine.pop(PopRequest(queue=queue, limit=limit, partitions=partitions)).messages)

    def ack(self, messages: list[Leased]) -> int:
        done = self.engine.settle([said_of(each) for each in messages])
        assert all(each.success for each in done)
        return len(messages)

    def pop_and_ack(self, queue: str, partitions: int = 1) -> int:
        messages = self.pop(queue, partitions=partitions)
        return self.ack(messages) if messages else 0

    def cycle(self, queue: str, partition: str = "Default") -> int:
        """Push, pop and acknowledge a hundred."""
        self.push(queue, partition)
        return self.pop_and_ack(queue)

    def held(self, number: int = ONE_LEASE) -> list[Leased]:
        """Messages under one lease of one ordered partition."""
        queue = self.queue(ordered=True)
        self.fill(queue, number)
        return self.pop(queue, number)


def said_of(message: Leased) -> Settlement:
    return Settlement(message.transaction_id, message.partition_id, message.lease_id)


class Line(NamedTuple):
    """What is measured, and the bound of its messages a second."""

    name: str
    run: Callable[[Bench], Measured]
    bound: float | None = None


def cycles(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    return measure(lambda _: bench.cycle(queue))


def pushes(bench: Bench, threads: int) -> Measured:
    queue = bench.queue(ordered=True)
    bench.push(queue)
    return measure(lambda _: bench.push(queue), threads=threads)


def pops_and_acks(bench: Bench, threads: int, *, ordered: bool) -> Measured:
    queue = bench.queue(ordered=ordered)
    bench.fill(queue, 150_000)
    return measure(lambda _: bench.pop_and_ack(queue), threads=threads)


def acks(bench: Bench, threads: int) -> Measured:
    """Each hundred with a lease and a partition of its own."""
    queue = bench.queue(ordered=True)
    for partition in range(400):
        bench.push(queue, str(partition))
    shares = [[bench.pop(queue) for _ in range(400 // threads)] for _ in range(threads)]
    return measure(lambda number: bench.ack(shares[number].pop()) if shares[number] else 0, threads=threads, seconds=60)


def acks_by(bench: Bench, number: int) -> Measured:
    """So many at one go by one caller, all of one lease."""
    held = bench.held()

    def ack(_: int) -> int:
        some, held[:number] = held[:number], []
        return bench.ack(some) if some else 0

    return measure(ack)


def single_acks_of_16(bench: Bench) -> Measured:
    queue = bench.queue(ordered=True)
    for partition in range(16):
        bench.push(queue, str(partition), 1000)
    held = [bench.pop(queue, 1000) for _ in range(16)]
    return measure(lambda number: bench.ack([held[number].pop()]) if held[number] else 0, threads=16)


# -- callers that are merged


def merged_acks(bench: Bench) -> Measured:
    """One message at a time by each, all of one lease of one ordered partition."""
    held = bench.held()

    async def ack(desk: BatchedEngine) -> bool:
        if not held:
            return False
        (done,) = await desk.settle([said_of(held.pop())])
        assert done.success
        return True

    return asyncio.run(_merged(bench.engine, ack))


def merged_pushes(bench: Bench) -> Measured:
    """One message at a time by each, to one ordered partition."""
    queue = bench.queue(ordered=True)

    async def push(desk: BatchedEngine) -> bool:
        (pushed,) = await desk.push([Push(queue, PAYLOAD)])
        assert pushed.message_id
        return True

    return asyncio.run(_merged(bench.engine, push))


async def _merged(engine: Engine, act: Callable[[BatchedEngine], Awaitable[bool]]) -> Measured:
    desk = BatchedEngine(engine)
    waits: list[float] = []
    start = time.perf_counter()

    async def call() -> None:
        while (begun := time.perf_counter()) < start + SECONDS and await act(desk):
            waits.append(time.perf_counter() - begun)

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    elapsed = time.perf_counter() - start
    await desk.close()
    return Measured.of(len(waits), elapsed, waits)


# -- what both databases are held to

BY_NUMBER = {number: f"ack by {number}, 1 caller, 1 lease" for number in SLOWEST_MS}
MERGED_ACKS = f"ack one, {CALLERS} callers merged, 1 ordered lease"
BOTH = (
    *(Line(name, partial(acks_by, number=number)) for number, name in BY_NUMBER.items()),
    Line(MERGED_ACKS, merged_acks, 5_000),
    Line(f"push one, {CALLERS} callers merged, 1 partition", merged_pushes, 5_000),
)


def run(bench: Bench, lines: tuple[Line, ...]) -> dict[str, Measured]:
    """Every line in turn, and the acknowledgements that both databases are held to."""
    return {line.name: line.run(bench) for line in (*lines, *BOTH)}


def figures(bench: Bench, lines: tuple[Line, ...], found: Mapping[str, Measured]) -> Iterator[Row]:
    """What was found, and the ratios that mean the same on every disk."""
    for line in (*lines, *BOTH):
        measured = found[line.name]
        note = f"p50 {measured.p50_ms:.2f} ms, p99 {measured.p99_ms:.2f} ms; fdatasync {bench.fdatasync:,.0f}/s"
        yield Row(line.name, measured.per_second, "msg/s", line.bound, note=note)
    for number, bound in SLOWEST_MS.items():
        yield Row(f"{BY_NUMBER[number]}: p50", found[BY_NUMBER[number]].p50_ms, "ms", bound, "at most")
    pays = found[BY_NUMBER[BATCH]].per_second / found[BY_NUMBER[1]].per_second
    yield Row(f"ack by {BATCH} against ack one", pays, "×", 5)
    yield Row(f"{MERGED_ACKS}: p50", found[MERGED_ACKS].p50_ms, "ms", 3, "at most")


def flat(bench: Bench) -> Row:
    """Popping from twenty ready partitions of ten thousand, against popping from the only one."""
    alone, crowded = bench.queue(ordered=True), bench.queue(ordered=True)
    for start in range(0, 10_000, 500):
        bench.engine.push([Push(crowded, PAYLOAD, str(number)) for number in range(start, start + 500)])
    while bench.pop_and_ack(crowded, partitions=BATCH):
        pass
    for number in range(20):
        bench.fill(crowded, 3000, str(number))
    bench.fill(alone, 60_000)
    one, many = side_by_side(
        lambda _: bench.pop_and_ack(alone), lambda _: bench.pop_and_ack(crowded), rounds=5, each=100
    )
    note = f"{one.per_second:,.0f} and {many.per_second:,.0f} msg/s"
    name = f"pop and ack by {BATCH}, 20 ready of 10,000 partitions, against the only one"
    return Row(name, many.per_second / one.per_second, "×", 0.5, note=note)
