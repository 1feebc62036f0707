"""Celery, Dramatiq and Taskiq beside us on the same broker: stored orders drained, by the worker that each has.

Each of them runs in a new process, since they do not all let go of what they hold in one, and calls the same counting.
FastStream stands in each broker's own benchmark.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import uuid4

import celery
import dramatiq
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker
from taskiq_redis import ListQueueBroker

from bench import bench_rabbitmq, bench_redis
from bench.alone import alone
from bench.orders import LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, span
from bench.table import Row
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis

FEWER = 5_000
"""How many orders the others get, which are slower."""
ROUNDS = 3


def handle(**fields: Any) -> None:
    """What their workers run."""
    PlaceOrder(**fields)
    span.count()


def waited() -> float:
    """Seconds from the first order handled to the last."""
    if not span.done.wait(LONG):
        raise TimeoutError("the orders were not handled in time")
    return span.took


def drain_dramatiq(kind: str, url: str) -> float:
    """With eight threads, its default."""
    make_broker: Any = RabbitmqBroker if kind == "RabbitMQ" else RedisBroker
    broker = make_broker(url=url)
    make: Any = dramatiq.actor  # whether it is typed depends on what is installed
    queue = f"bench-{uuid4().hex[:8]}"
    actor = make(handle, broker=broker, actor_name=queue, queue_name=queue)
    for order in ORDERS[:FEWER]:
        broker.enqueue(actor.message_with_options(kwargs=asdict(order)))
    span.begin(FEWER)
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    try:
        return waited()
    finally:
        worker.stop()
        broker.close()


def drain_celery(_kind: str, url: str) -> float:
    """In one thread, which is what can run beside others in one process, and costs it least."""
    queue = f"bench-{uuid4().hex[:8]}"
    app: Any = celery.Celery("bench", broker=url, set_as_current=False)
    app.conf.update(task_default_queue=queue, task_ignore_result=True, worker_hijack_root_logger=False)
    task = app.task(handle, name=queue)
    with app.connection_for_write() as connection:
        for order in ORDERS[:FEWER]:
            task.apply_async(kwargs=asdict(order), connection=connection)
    span.begin(FEWER)
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="CRITICAL", shutdown_timeout=LONG):
        return waited()


def drain_taskiq(kind: str, url: str) -> float:
    """In one loop, as its worker does."""
    make: Any = AioPikaBroker if kind == "RabbitMQ" else ListQueueBroker
    return asyncio.run(_drain_taskiq(make(url, queue_name=f"bench-{uuid4().hex[:8]}")))


async def _drain_taskiq(broker: Any) -> float:
    async def handle_async(fields: dict[str, Any]) -> None:
        PlaceOrder(**fields)
        span.count()

    task = broker.task(task_name="handle")(handle_async)
    broker.is_worker_process = True
    await broker.startup()
    for order in ORDERS[:FEWER]:
        await task.kiq(asdict(order))
    span.begin(FEWER)
    receiving = asyncio.create_task(run_receiver_task(broker))
    try:
        return await asyncio.to_thread(waited)
    finally:
        receiving.cancel()
        await asyncio.wait([receiving])
        await broker.shutdown()


THEIRS = {"Dramatiq": drain_dramatiq, "Celery": drain_celery, "Taskiq": drain_taskiq}


def beside(kind: str, url: str, ours: dict[str, Callable[[], float]]) -> Iterator[Row]:
    """The figures of everybody on one broker, and our slower pump against the fastest of them."""
    theirs = {name: partial(alone, drain, kind, url) for name, drain in THEIRS.items()}
    figures = best({**ours, **theirs}, ROUNDS)
    rates = {name: (len(ORDERS) if name in ours else FEWER) / figure for name, figure in figures.items()}
    for name, rate in rates.items():
        yield Row(f"{name}, {kind}", rate, "msg/s")
    slower, fastest = min(rates[name] for name in ours), max(rates[name] for name in theirs)
    yield Row(f"our slower pump against the fastest of them, {kind}", slower / fastest, "×")


def rows() -> Iterator[Row]:
    """Every figure."""
    with RabbitMQ() as broker:
        rabbitmq = bench_rabbitmq.Bench(broker)
        ours: dict[str, Callable[[], float]] = {
            "reactor": lambda: rabbitmq.drain("quorum", Blocking, buffer_size=128),
            "proactor": lambda: rabbitmq.drain("quorum", Awaiting, buffer_size=128),
        }
        yield from beside("RabbitMQ", broker.url, ours)
    with Redis() as server:
        redis = bench_redis.Bench(server)
        ours = {
            "reactor": lambda: redis.drain("redis", Blocking, buffer_size=100),
            "proactor": lambda: redis.drain("redis", Awaiting, buffer_size=100),
        }
        yield from beside("Redis", server.url, ours)
