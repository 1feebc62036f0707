"""Reading a channel into Spark, staged: messages per second on two cores, from Redis and from the SQL queue."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.table import Row
from brokers.redis import Redis
from pump.spark.data_source import register
from pump.spark.session import open_session
from support.spark_streams import Channel, drain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 200_000
BODY = b"x" * 200
PER_TASK = 25_000
WANTED = 25_000
"""From Redis, on two cores that do nothing else. SQLite has one writer at a time, and so no bound here."""
WARM_UP = 2_000


def rows() -> Iterator[Row]:
    """The figures."""
    session = open_session("bench", "local[2]")
    register(session)
    folder = Path(tempfile.mkdtemp(prefix="pump-bench-"))
    try:
        with Redis() as server:
            yield from measured(session, "a Redis stream", server.url, folder / "redis", WANTED)
        yield from measured(session, "sqlite", f"sqlite:///{folder}/queue.db", folder / "sqlite")
    finally:
        session.stop()
        shutil.rmtree(folder)


def measured(session: "SparkSession", what: str, url: str, folder: Path, bound: float | None = None) -> Iterator[Row]:
    """A query that is warm drains the channel; timed from its first batch to its end."""
    more = {"messagesPerPartition": str(PER_TASK), "windowSeconds": "5"}
    warming = Channel(url, "warming", folder / "warming", more)
    warming.post(WARM_UP, body=BODY)
    counted(session, warming)
    channel = Channel(url, "orders", folder / "orders", more)
    channel.post(COUNT, body=BODY)
    began = time.perf_counter()
    count = counted(session, channel)
    seconds = time.perf_counter() - began
    assert count == COUNT, f"{count} of {COUNT} messages came"
    note = f"{COUNT} messages of 200 B in {seconds:.1f} s, staged, start and end of the query included"
    yield Row(f"from {what}", COUNT / seconds, "messages/s", bound, note=note)


def counted(session: "SparkSession", channel: Channel) -> int:
    """How many rows a query that ends by itself has."""
    counts: list[int] = []

    def count(rows: "DataFrame", batch: int) -> None:
        counts.append(rows.count())

    drain(session, channel, count)
    return sum(counts)
