"""The queue's HTTP server beside the engine that it stands in front of: the same batches, callers and database.

The server runs as users run it, a process of its own. The engine is called here, by threads. Both take turns,
and of each the best round counts: what else the machine does only adds.
"""

import gc
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

import pytest

from bench.disk import fdatasync_per_second
from bench.http_load import Answer, Caller, Connection, drive, get, post
from bench.queues import BATCH, PAYLOAD, SLOWEST_MS
from bench.table import Row
from bench.turns import Measured, measure
from brokers.postgres import Postgres
from pump.queue.engine import Engine
from pump.queue.http.command import open_engine
from pump.queue.ids import mint_many
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Leased, PopRequest, Push, Settlement
from support.queue_http import Served

pytestmark = pytest.mark.requirement("Q-25", "Q-59")

ENGINE_CALLERS: Final = 4
HTTP_CALLERS: Final = 16
"""As many as suit each: on two cores more threads slow the engine down, and a server has many clients."""
MANY_CALLERS: Final = 16
ROUNDS: Final = 3
MESSAGES: Final = 40_000
"""Of a round in batches."""
SINGLES: Final = 4_000
WAKINGS: Final = 200
PARKED_WITHIN: Final = 10.0
LONGEST_SECONDS: Final = 120.0

_TRANSACTION: Final = re.compile(rb'"transactionId":"([^"]+)"')
_PARTITION: Final = re.compile(rb'"partitionId":"([^"]+)"')
_LEASE: Final = re.compile(rb'"leaseId":"([^"]+)"')

T = TypeVar("T")
Batch = Sequence[Leased]


class Round(NamedTuple):
    """How fast something was, and what the load generator took for each message."""

    measured: Measured
    own_cpu_us: float = 0.0

    @property
    def per_second(self) -> float:
        return self.measured.per_second

    def __str__(self) -> str:
        own = f", load generator {self.own_cpu_us:.1f} µs a message" if self.own_cpu_us else ""
        return f"p50 {self.measured.p50_ms:.2f} ms, p99 {self.measured.p99_ms:.2f} ms{own}"


class Bench(NamedTuple):
    """An engine, a server in front of the same database, and what both are asked."""

    engine: Engine
    url: str

    def queue(self, *, ordered: bool = True) -> str:
        name = uuid4().hex
        self.engine.configure(name, QueueOptions(ordered=ordered, retention_enabled=False))
        return name

    def filled(self, messages: int, partitions: int = 1, *, ordered: bool = True) -> str:
        """A queue that holds so many."""
        queue = self.queue(ordered=ordered)
        for number in range(partitions):
            for items in batches(queue, messages // partitions, 1000, f"p{number}"):
                self.engine.push(items)
        return queue

    def held(self, messages: int, size: int, partitions: int) -> list[list[Batch]]:
        """For each of so many callers what it has leased of its own partition, in batches of that size."""
        queue = self.filled(messages, partitions)
        every = [self._leased(queue, f"p{number}") for number in range(partitions)]
        return [[line[start : start + size] for start in range(0, len(line), size)] for line in every]

    def _leased(self, queue: str, partition: str) -> Sequence[Leased]:
        return self.engine.pop(PopRequest(queue=queue, partition=partition, limit=10_000)).messages


def batches(queue: str, messages: int, size: int = BATCH, partition: str = "Default") -> list[list[Push]]:
    """New messages."""
    ids = mint_many(messages)
    items = [Push(queue, PAYLOAD, partition, transaction_id=each) for each in ids]
    return [items[start : start + size] for start in range(0, messages, size)]


def settlements(leased: Batch) -> list[Settlement]:
    """Acknowledge all of these."""
    return [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in leased]


# -- the same as requests, written before the clock runs


def push_request(items: Sequence[Push]) -> bytes:
    head = '{"queue":"%s","partition":"%s","transactionId":"%s","payload":'
    written = (
        (head % (each.queue, each.partition, each.transaction_id)).encode() + each.payload + b"}" for each in items
    )
    return post("/api/v1/push", b'{"items":[%s]}' % b",".join(written))


def ack_request(leased: Batch) -> bytes:
    told = [
        {"transactionId": each.transaction_id, "partitionId": each.partition_id, "leaseId": each.lease_id}
        for each in leased
    ]
    if len(told) == 1:
        return post("/api/v1/ack", json.dumps({**told[0], "status": "completed"}).encode())
    items = [{**each, "status": "completed"} for each in told]
    return post("/api/v1/ack/batch", json.dumps({"acknowledgments": items}).encode())


def ack_request_of(popped: bytes) -> bytes:
    """What was popped is done. Of the answer nothing is read but the ids: messages of one partition under one lease."""
    partition, lease = _the(_PARTITION, popped), _the(_LEASE, popped)
    form = b'{"transactionId":"%%s","partitionId":"%s","leaseId":"%s","status":"completed"}' % (partition, lease)
    return post(
        "/api/v1/ack/batch",
        b'{"acknowledgments":[%s]}' % b",".join(form % each for each in _TRANSACTION.findall(popped)),
    )


def _the(what: re.Pattern[bytes], where: bytes) -> bytes:
    found = what.search(where)
    assert found is not None
    return found[1]


# -- callers


class Tally:
    """What callers have done, and how long each turn took them."""

    def __init__(self) -> None:
        self.messages = 0
        self.waits: list[float] = []

    def count(self, messages: int, began: float) -> None:
        self.messages += messages
        self.waits.append(time.perf_counter() - began)

    def round(self, seconds: float, own_cpu_seconds: float = 0.0) -> Round:
        measured = Measured.of(self.messages, seconds, self.waits)
        return Round(measured, own_cpu_seconds / self.messages * 1e6)


def asking(tally: Tally, requests: Sequence[bytes], size: int, status: int) -> Caller:
    """Ask all of these, one after the other; nothing in an answer may have failed."""
    for request in requests:
        began = time.perf_counter()
        answer = yield request
        check(answer, status)
        tally.count(size, began)


def consuming(tally: Tally, queue: str, partition: str) -> Caller:
    """Pop and acknowledge until there is nothing left."""
    pop = get(f"/api/v1/pop/queue/{queue}{partition and f'/partition/{partition}'}?batch={BATCH}")
    while True:
        began = time.perf_counter()
        popped = yield pop
        if popped.status == 204:
            return
        check(popped, 200)
        check((yield ack_request_of(popped.body)), 200)
        tally.count(popped.body.count(b'"transactionId":'), began)


def check(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert b'"success":false' not in answer.body
    assert b'"status":"failed"' not in answer.body


def over_http(bench: Bench, callers: Callable[[Tally], Sequence[Caller]]) -> Round:
    tally = Tally()
    load = drive(bench.url, callers(tally))
    return tally.round(load.seconds, load.own_cpu_seconds)


def in_process(turns: Sequence[Iterator[int]]) -> Round:
    """Each caller takes its turns on a thread; a turn says how many messages it was."""
    return Round(measure(lambda caller: next(turns[caller], 0), threads=len(turns), seconds=LONGEST_SECONDS))


def dealt(items: Sequence[T], hands: int) -> list[Sequence[T]]:
    """The items among so many, in turns."""
    return [items[hand::hands] for hand in range(hands)]


# -- what is measured, each by both ways


def push_http(bench: Bench) -> Round:
    requests = [push_request(items) for items in batches(bench.queue(), MESSAGES)]
    return over_http(bench, lambda tally: [asking(tally, part, BATCH, 201) for part in dealt(requests, HTTP_CALLERS)])


def push_engine(bench: Bench) -> Round:
    def turns(part: Sequence[list[Push]]) -> Iterator[int]:
        for items in part:
            yield len(bench.engine.push(items))

    return in_process([turns(part) for part in dealt(batches(bench.queue(), MESSAGES), ENGINE_CALLERS)])


def consume_http(bench: Bench, *, ordered: bool) -> Round:
    queue = bench.filled(MESSAGES, HTTP_CALLERS if ordered else 1, ordered=ordered)
    partitions = [f"p{number}" if ordered else "" for number in range(HTTP_CALLERS)]
    return over_http(bench, lambda tally: [consuming(tally, queue, partition) for partition in partitions])


def consume_engine(bench: Bench, *, ordered: bool) -> Round:
    queue = bench.filled(MESSAGES, ENGINE_CALLERS if ordered else 1, ordered=ordered)

    def turns(partition: str | None) -> Iterator[int]:
        want = PopRequest(queue=queue, partition=partition, limit=BATCH)
        while messages := bench.engine.pop(want).messages:
            yield settled(bench, messages)

    return in_process([turns(f"p{number}" if ordered else None) for number in range(ENGINE_CALLERS)])


def settled(bench: Bench, leased: Batch) -> int:
    assert all(each.success for each in bench.engine.settle(settlements(leased)))
    return len(leased)


def ack_http(bench: Bench, held: Sequence[Sequence[Batch]]) -> Round:
    lines = [[ack_request(batch) for batch in line] for line in held]
    size = len(held[0][0])
    return over_http(bench, lambda tally: [asking(tally, line, size, 200) for line in lines])


def ack_engine(bench: Bench, held: Sequence[Sequence[Batch]]) -> Round:
    def turns(line: Sequence[Batch]) -> Iterator[int]:
        for batch in line:
            yield settled(bench, batch)

    return in_process([turns(line) for line in held])


def waking(bench: Bench) -> Round:
    """Seconds from a push until a waiting consumer has the message."""
    queue, tally = bench.queue(), Tally()
    pop = get(f"/api/v1/pop/queue/{queue}?wait=true&timeout=30000")
    with Connection(bench.url) as consumer, Connection(bench.url) as producer:
        for items in batches(queue, WAKINGS, 1):
            consumer.send(pop)
            until_parked(producer)
            began = time.perf_counter()
            producer.send(push_request(items))
            popped = received(consumer)
            tally.count(1, began)
            check(received(producer), 201)
            check(producer.ask(ack_request_of(popped.body)), 200)
    return tally.round(sum(tally.waits))


def until_parked(connection: Connection) -> None:
    """Return when the consumer is waiting."""
    deadline = time.monotonic() + PARKED_WITHIN
    while b"pump_queue_parked_consumers{" not in connection.ask(get("/metrics/prometheus")).body:
        assert time.monotonic() < deadline
    time.sleep(0.01)  # it is counted just before it looks for the first time


def received(connection: Connection) -> Answer:
    while (answer := connection.receive()) is None:
        pass
    return answer


class Line(NamedTuple):
    """What is measured over HTTP and in the engine, and which part of the engine's speed the server has to have."""

    name: str
    http: Callable[[Bench], Round]
    engine: Callable[[Bench], Round]
    share: float | None = None
    least: float | None = None


PUSH: Final = "push by 100, 1 partition"
ORDERED: Final = "pop and ack by 100, ordered, each caller on his own partition"
UNORDERED: Final = "pop and ack by 100, unordered, 1 partition"
SIXTEEN: Final = "ack one, 16 callers on their own partitions"
LINES: Final = [
    Line(PUSH, push_http, push_engine, share=0.5),
    Line(ORDERED, partial(consume_http, ordered=True), partial(consume_engine, ordered=True), share=0.5),
    Line(UNORDERED, partial(consume_http, ordered=False), partial(consume_engine, ordered=False), share=0.5),
    Line(
        "ack by 100, each caller on his own partition",
        lambda bench: ack_http(bench, bench.held(MESSAGES, BATCH, HTTP_CALLERS)),
        lambda bench: ack_engine(bench, bench.held(MESSAGES, BATCH, ENGINE_CALLERS)),
    ),
    Line(
        SIXTEEN,
        lambda bench: ack_http(bench, bench.held(SINGLES, 1, MANY_CALLERS)),
        lambda bench: ack_engine(bench, bench.held(SINGLES, 1, MANY_CALLERS)),
        least=1_500,
    ),
]


class Alone(NamedTuple):
    """What a single caller measures over HTTP, and how long it may take."""

    name: str
    run: Callable[[Bench], Round]
    p50_ms: float | None = None
    p99_ms: float | None = None


ALONE: Final = [
    Alone("ack one, 1 connection", lambda bench: ack_http(bench, bench.held(1_000, 1, 1)), p50_ms=SLOWEST_MS[1]),
    Alone("ack by 10, 1 connection", lambda bench: ack_http(bench, bench.held(5_000, 10, 1)), p50_ms=SLOWEST_MS[10]),
    Alone(
        "ack by 100, 1 connection",
        lambda bench: ack_http(bench, bench.held(10_000, BATCH, 1)),
        p50_ms=SLOWEST_MS[BATCH],
    ),
    Alone("push to delivery, to a consumer that waits", waking, p99_ms=100),
]


def best(measures: Sequence[Callable[[], Round]]) -> list[Round]:
    """The best round of each, taken in turns."""
    rounds: list[list[Round]] = []
    for _ in range(ROUNDS):
        gc.collect()
        rounds.append([measure() for measure in measures])
    return [max(line, key=lambda each: each.per_second) for line in zip(*rounds, strict=True)]


def compared(bench: Bench, where: str, note: str, *, gated: bool) -> Iterator[Row]:
    """Every line, over HTTP and in the engine."""
    for line in LINES:
        http, engine = best([partial(line.http, bench), partial(line.engine, bench)])
        name = f"{where}: {line.name}"
        yield Row(name, http.per_second, "msg/s", line.least if gated else None, note=f"{http}; {note}")
        yield Row("  the engine in this process", engine.per_second, "msg/s", note=str(engine))
        share = line.share if gated else None
        yield Row("  HTTP against the engine", http.per_second / engine.per_second, "×", share)


def timed(bench: Bench, where: str, note: str, *, gated: bool) -> Iterator[Row]:
    """What one caller waits for."""
    for line in ALONE:
        measured = best([partial(line.run, bench)])[0].measured
        name = f"{where}: {line.name}"
        p50, p99 = (line.p50_ms, line.p99_ms) if gated else (None, None)
        yield Row(f"{name}: p50", measured.p50_ms, "ms", p50, "at most", note)
        yield Row(f"{name}: p99", measured.p99_ms, "ms", p99, "at most", note)


QUEUES: Final = 3_000
LOOKS: Final = 5
SOON_MS: Final = 300
NUMBERS: Final = ("/metrics", "/metrics/prometheus", "/api/v1/status")


def of_many_queues(bench: Bench, where: str, note: str) -> Iterator[Row]:
    """How long the numbers of thousands of queues take, each with three messages, of which one is leased."""
    names = [f"queue-{number}" for number in range(QUEUES)]
    for first in range(0, QUEUES, 1000):
        bench.engine.push([Push(name, PAYLOAD) for name in names[first : first + 1000] for _ in range(3)])
    for name in names:
        bench.engine.pop(PopRequest(queue=name))
    with Connection(bench.url) as connection:
        for path in NUMBERS:
            waits = []
            for _ in range(LOOKS):
                began = time.perf_counter()
                check(connection.ask(get(path)), 200)
                waits.append((time.perf_counter() - began) * 1000)
            name = f"{where}: GET {path} of {QUEUES:,} queues, median of {LOOKS}"
            yield Row(name, sorted(waits)[LOOKS // 2], "ms", SOON_MS, "at most", f"worst {max(waits):.0f} ms; {note}")


@contextmanager
def serving(database: str, folder: Path) -> Iterator[Bench]:
    """The server as a program of its own, and an engine in this process, on one database."""
    with closing(open_engine(database)) as engine, Served(folder, "--database", database) as served:
        yield Bench(engine, served.url)


def rows() -> Iterator[Row]:
    """Every figure. Those on SQLite have no bounds of their own."""
    with tempfile.TemporaryDirectory() as name, Postgres() as postgres:
        folder = Path(name)
        note = f"fdatasync {fdatasync_per_second(postgres.folder):,.0f}/s"
        with serving(postgres.url, folder) as bench:
            yield from compared(bench, "PostgreSQL", note, gated=True)
            yield from timed(bench, "PostgreSQL", note, gated=True)
        with serving(f"sqlite:///{folder / 'queue.db'}", folder) as bench:
            yield from compared(bench, "SQLite", note, gated=False)
            yield from timed(bench, "SQLite", note, gated=False)
        with serving(f"{postgres.url}?schema=many_queues", folder) as bench:
            yield from of_many_queues(bench, "PostgreSQL", note)
        with serving(f"sqlite:///{folder / 'many_queues.db'}", folder) as bench:
            yield from of_many_queues(bench, "SQLite", note)
