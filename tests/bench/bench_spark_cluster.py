"""A cluster of one and of two executors, each with one core: what pumps handle, and what a stream reads, in a second.

Handlers that wait show how the work is spread. Handlers that do nothing, and the stream, are as fast as the cores: the
second executor makes them faster only if there is a core for it beside those of the broker and of the driver.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.bench_spark_source import counted
from bench.table import Row
from brokers.redis import Redis
from brokers.spark import DRIVER, SparkCluster
from pump.message import Header, Message
from pump.spark.data_source import register
from pump.spark.session import open_session
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import transport_from
from support.programs import pump
from support.spark_streams import Channel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS: Final = 0.005
WAITING, DOING_NOTHING, READ = 3_000, 150_000, 100_000
GROWTH: Final = 1.6
START_SECONDS: Final = 120.0

PROGRAM = """
import time
from dataclasses import dataclass

from pump import Command, Dispatcher, RequestHandler, Subscription


@dataclass
class Job(Command):
    pass


class Worker(RequestHandler[Job]):
    def handle(self, job):
        time.sleep({seconds})


class Idler(RequestHandler[Job]):
    def handle(self, job):
        pass


dispatcher = Dispatcher(
    {url!r},
    handlers=[Worker if {seconds} else Idler],
    subscriptions=[Subscription(Job, channel={channel!r}, topic={channel!r}, buffer_size=64, may_block=True)],
)
"""


def rows() -> Iterator[Row]:
    """The figures with one executor, with two, and how they compare."""
    with tempfile.TemporaryDirectory() as name, Redis() as redis, SparkCluster() as cluster:
        folder = Path(name)
        yield from compared(
            f"pumps whose handlers wait {WAIT_SECONDS * 1000:g} ms",
            [handled(cluster, redis, folder, number, WAITING, WAIT_SECONDS) for number in (1, 2)],
            GROWTH,
        )
        yield from compared(
            "pumps whose handlers do nothing",
            [handled(cluster, redis, folder, number, DOING_NOTHING, 0.0) for number in (1, 2)],
        )
        yield from compared("a stream", [read(cluster, redis, folder, number) for number in (1, 2)])


def compared(what: str, rates: list[float], bound: float | None = None) -> Iterator[Row]:
    """A row for each rate, and one for their ratio."""
    for number, rate in enumerate(rates, start=1):
        yield Row(f"{what}, executors: {number}", rate, "messages/s")
    yield Row(f"{what}, growth", rates[1] / rates[0], "times", bound)


def handled(cluster: SparkCluster, redis: Redis, folder: Path, performers: int, count: int, seconds: float) -> float:
    """How many messages a second the performers handle, once all are ready: timed until half of the rest is done."""
    module = f"jobs_{performers}_{count}"
    (folder / f"{module}.py").write_text(PROGRAM.format(url=redis.url, channel=module, seconds=seconds))
    channel = Channel(redis.url, module, folder)
    channel.prepare()
    with closing(blocking(transport_from(redis.url)).producer()) as producer:
        for begin in range(0, count, 1000):
            producer.send([Message(Header(f"{begin + n}", module, "Job"), b"{}") for n in range(1000)])
    given = [word for name, value in DRIVER.items() for word in ("--conf", f"{name}={value}")]
    command = ("run", f"{module}:dispatcher", "--on", cluster.url, "--performers", str(performers), "--shift", "300")
    with pump(*command, *given, folder=folder) as program:
        deadline = time.monotonic() + START_SECONDS
        while "pump.spark: ready" not in program.output:
            assert time.monotonic() < deadline, f"they were not ready in time:\n{program.output}"
            time.sleep(0.05)
        before, began = channel.waiting(), time.monotonic()
        while (after := channel.waiting()) > before / 2:
            assert time.monotonic() < deadline, f"they are too slow:\n{program.output}"
            time.sleep(0.05)
        return (before - after) / (time.monotonic() - began)


def read(cluster: SparkCluster, redis: Redis, folder: Path, executors: int) -> float:
    """How many messages a second a stream reads with so many executors and parts, when it is warm."""
    more = {"messagesPerPartition": "25000", "windowSeconds": "5", "partitions": str(executors)}
    session = open_session("bench", cluster.url, {**DRIVER, "spark.cores.max": str(executors)})
    try:
        register(session)
        timed_reading(session, Channel(redis.url, f"warming-{executors}", folder / f"warming-{executors}", more), 2_000)
        seconds = timed_reading(session, Channel(redis.url, f"orders-{executors}", folder / f"{executors}", more), READ)
    finally:
        session.stop()
    return READ / seconds


def timed_reading(session: "SparkSession", channel: Channel, count: int) -> float:
    """How many seconds a query takes that reads so many messages and ends."""
    channel.post(count, body=b"x" * 200)
    began = time.perf_counter()
    assert counted(session, channel) == count
    return time.perf_counter() - began
