"""Procrastinate and PgQueuer beside us on one PostgreSQL: the same orders pushed, run and completed, in batches.

Everybody works with psycopg, in a process of its own, at the settings that were the fastest of those tried, and is
timed from the first order handled until the database says that all are completed.
"""

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import psycopg

from bench.alone import alone
from bench.disk import fdatasync_per_second
from bench.orders import LONG, ORDERS, Awaiting, Blocking, PlaceOrder, span
from bench.table import Row
from brokers.postgres import Postgres
from pump import Dispatcher, Publication, Subscription
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.vocabulary import PopRequest, Push, Settlement

AT_ONCE = 1000
"""How many are pushed with one call, by each of them."""
ROUNDS = 3
FEWER = 3_000
"""How many orders the slow ones get."""

BODIES = [msgspec.json.encode(asdict(order)) for order in ORDERS]
decode = msgspec.json.Decoder(PlaceOrder).decode


class Rates(NamedTuple):
    """Orders a second."""

    pushed: float
    completed: float

    @property
    def whole(self) -> float:
        """Pushed, run and completed."""
        return 1 / (1 / self.pushed + 1 / self.completed)


def timed(push: Callable[[int], object], number: int) -> float:
    """Seconds for pushing all of them, each call from an index on."""
    start = time.perf_counter()
    for first in range(0, number, AT_ONCE):
        push(first)
    return time.perf_counter() - start


class Finish:
    """Finds out when everything is handled here, and completed in the database."""

    def __init__(self, url: str, number: int, left: str) -> None:
        self._url = url
        self._left = left
        span.begin(number)

    def wait(self) -> float:
        """Seconds from the first one handled until the database has none left."""
        if not span.done.wait(LONG):
            raise TimeoutError("the orders were not handled in time")
        until = time.monotonic() + LONG
        with psycopg.connect(self._url, autocommit=True) as connection:
            while connection.execute(self._left).fetchone() != (0,):
                if time.monotonic() > until:
                    raise TimeoutError("the orders were not completed in time")
                time.sleep(0.002)
        return time.perf_counter() - span.began


# -- Procrastinate

CONCURRENCY = 10


def run_procrastinate(url: str, number: int = FEWER, concurrency: int = CONCURRENCY, delete: str = "always") -> Rates:
    """Deferred in batches; run by one worker with so many jobs at a time, each deleted when it is done."""
    return asyncio.run(_run_procrastinate(url, number, concurrency, delete))


async def _run_procrastinate(url: str, number: int, concurrency: int, delete: str) -> Rates:
    logging.disable(logging.WARNING)
    procrastinate: Any = importlib.import_module("procrastinate")
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=concurrency, max_size=concurrency + 2)
    app = procrastinate.App(connector=connector)
    finish = Finish(url, number, "select count(*) from procrastinate_jobs where status <> 'succeeded'")

    async def handle(**fields: Any) -> None:
        PlaceOrder(**fields)
        span.count()

    task = app.task(handle, queue="orders", name="handle")
    async with app.open_async():
        with psycopg.connect(url, autocommit=True) as connection:
            if connection.execute("select to_regclass('procrastinate_jobs') is null").fetchone() == (True,):
                await app.schema_manager.apply_schema_async()
            connection.execute("truncate procrastinate_jobs cascade")
        start = time.perf_counter()
        for first in range(0, number, AT_ONCE):
            await task.batch_defer_async(*[asdict(order) for order in ORDERS[first : min(first + AT_ONCE, number)]])
        pushed = time.perf_counter() - start
        worker = asyncio.create_task(
            app.run_worker_async(
                queues=["orders"], concurrency=concurrency, delete_jobs=delete, install_signal_handlers=False
            )
        )
        completed = await asyncio.to_thread(finish.wait)
        worker.cancel()
        await asyncio.wait([worker])
    return Rates(number / pushed, number / completed)


# -- PgQueuer

DEQUEUED = 500


def run_pgqueuer(url: str, number: int = len(ORDERS), batch_size: int = DEQUEUED) -> Rates:
    """Enqueued by arrays; dequeued and completed by so many, on the loop that its command brings."""
    return _fastest_loop()(_run_pgqueuer(url, number, batch_size))


def _fastest_loop() -> Callable[[Coroutine[Any, Any, Rates]], Rates]:
    with suppress(ModuleNotFoundError):
        run: Callable[[Coroutine[Any, Any, Rates]], Rates] = importlib.import_module("uvloop").run
        return run
    return asyncio.run


async def _run_pgqueuer(url: str, number: int, batch_size: int) -> Rates:
    logging.disable(logging.WARNING)
    pgqueuer: Any = importlib.import_module("pgqueuer")
    drivers: Any = importlib.import_module("pgqueuer.db")
    queries_of: Any = importlib.import_module("pgqueuer.queries").Queries
    finish = Finish(url, number, "select count(*) from pgqueuer")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        driver = drivers.PsycopgDriver(connection)
        queries = queries_of(driver)
        if not await queries.schema_is_installed():
            await queries.install()
        await connection.execute("truncate pgqueuer, pgqueuer_log")
        start = time.perf_counter()
        for first in range(0, number, AT_ONCE):
            bodies = BODIES[first : min(first + AT_ONCE, number)]
            await queries.enqueue(["handle"] * len(bodies), list(bodies), [0] * len(bodies))
        pushed = time.perf_counter() - start
        pgq = pgqueuer.PgQueuer(driver)

        async def handle(job: Any) -> None:
            decode(job.payload)
            span.count()

        pgq.entrypoint("handle")(handle)
        worker = asyncio.create_task(pgq.run(batch_size=batch_size, dequeue_timeout=timedelta(seconds=1)))
        completed = await asyncio.to_thread(finish.wait)
        pgq.shutdown.set()
        await asyncio.wait([worker])
        cursor = await connection.execute("select count(*) from pgqueuer_log where status = 'successful'")
        assert await cursor.fetchone() == (number,)
    return Rates(number / pushed, number / completed)


# -- ourselves

OURS_LEFT = """
select (select count(*) from {0}.delivery) + (select coalesce(sum(part.last_seq - done.claimed), 0)::bigint
from {0}.partition as part join {0}.progress as done on done.part_id = part.id)
"""


def run_pump(url: str, handler: type, number: int = len(ORDERS), **options: Any) -> Rates:
    """Posted by one call; handled by a dispatcher."""
    logging.disable(logging.WARNING)
    schema = f"bench_{uuid4().hex[:12]}"
    dispatcher = Dispatcher(
        f"{url}?schema={schema}",
        handlers=[handler],
        subscriptions=[Subscription(PlaceOrder, topic="orders", channel="all", **options)],
        publications=[Publication(PlaceOrder, topic="orders")],
    )
    with dispatcher.publishing():
        pushed = timed(lambda first: dispatcher.post_many(ORDERS[first : min(first + AT_ONCE, number)]), number)
    finish = Finish(url, number, OURS_LEFT.format(schema))
    with dispatcher:
        completed = finish.wait()
    return Rates(number / pushed, number / completed)


def run_engine(url: str, number: int = len(ORDERS), at_once: int = 100) -> Rates:
    """Pushed, popped, decoded and acknowledged by one thread."""
    schema = f"bench_{uuid4().hex[:12]}"
    with closing(PostgresEngine(url, schema=schema)) as engine:
        engine.configure("orders", QueueOptions(ordered=False, retention_enabled=False))
        pushes = [Push("orders", body) for body in BODIES]
        pushed = timed(lambda first: engine.push(pushes[first : min(first + AT_ONCE, number)]), number)
        finish = Finish(url, number, OURS_LEFT.format(schema))
        while messages := engine.pop(PopRequest(queue="orders", limit=at_once)).messages:
            for each in messages:
                decode(each.payload)
                span.count()
            engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages])
        completed = finish.wait()
    return Rates(number / pushed, number / completed)


OURS: Mapping[str, Callable[[str], Rates]] = {
    "reactor": partial(run_pump, handler=Blocking, buffer_size=500, performers=2),
    "proactor": partial(run_pump, handler=Awaiting, buffer_size=500),
    "the engine, without a pump": run_engine,
}
THEIRS: Mapping[str, Callable[[str], Rates]] = {"Procrastinate": run_procrastinate, "PgQueuer": run_pgqueuer}


def best_rates(url: str) -> Mapping[str, Rates]:
    """The best of several rounds of each, taken in turns: whatever else runs can only add time."""
    figures: dict[str, Rates] = {}
    for _ in range(ROUNDS):
        for name, run in {**OURS, **THEIRS}.items():
            found, before = alone(run, url), figures.get(name, Rates(0.0, 0.0))
            figures[name] = Rates(*map(max, found, before))
    return figures


def rows() -> Iterator[Row]:
    """Every figure."""
    with Postgres() as server:
        note = f"fdatasync {fdatasync_per_second(server.folder):,.0f}/s"
        figures = best_rates(server.url)
    for name, rates in figures.items():
        yield Row(f"{name}: pushed", rates.pushed, "msg/s", note=note)
        yield Row(f"{name}: run and completed", rates.completed, "msg/s", note=note)
        yield Row(f"{name}: pushed, run and completed", rates.whole, "msg/s", note=note)
    slower = min(figures["reactor"], figures["proactor"], key=lambda rates: rates.whole)
    for name, whole, completed in (("Procrastinate", 5, None), ("PgQueuer", None, 1.2)):
        theirs = figures[name]
        yield Row(f"our slower pump against {name}, all of it", slower.whole / theirs.whole, "×", whole)
        yield Row(
            f"our slower pump against {name}, run and completed", slower.completed / theirs.completed, "×", completed
        )
        yield Row(f"our slower pump against {name}, pushed", slower.pushed / theirs.pushed, "×")
