"""Streams of a channel on Spark for tests: messages posted, read by a query that ends, and what is left behind."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pump.message import Header, Message
from pump.request import Document
from pump.spark.source.options import SourceOptions
from pump.subscription import Publication
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import Consumer, CountsWaiting, transport_from
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 60
"""A query that takes longer has hung."""


@dataclass
class Channel:
    """A channel on some broker, and a folder for what a stream of it keeps."""

    url: str
    name: str
    folder: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        given = {"url": self.url, "channel": self.name, "stagingDir": str(self.folder / "staging")}
        return {**given, "windowSeconds": "2", "messagesPerPartition": "100", **self.more}

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    def prepare(self) -> None:
        options = SourceOptions.of(self.options)
        blocking(options.transport()).prepare([options.subscription("create")], [])

    def post(self, count: int, *, first: int = 0, body: bytes = b"{}") -> list[str]:
        """Post so many messages; returns their ids."""
        self.prepare()
        ids = [f"m{number:05d}" for number in range(first, first + count)]
        transport = blocking(transport_from(self.url))
        transport.prepare([], [Publication(Document, topic=self.name)])
        with closing(transport.producer()) as producer:
            messages = [Message(Header(id, self.name, "Order", headers={"shop": "a"}), body) for id in ids]  # noqa: A001
            for begin in range(0, count, 500):
                producer.send(messages[begin : begin + 500])
        return ids

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        options = SourceOptions.of(self.options)
        with closing(blocking(options.transport()).consumer(options.subscription("create"))) as consumer:
            yield consumer

    def waiting(self) -> int:
        """What is not acknowledged, where the broker says so."""
        with self.consumer() as consumer:
            count = consumer.count_waiting() if isinstance(consumer, CountsWaiting) else None
        assert count is not None
        return count

    def take_all(self, quiet: float = 0.5) -> list[Message]:
        """Receive and acknowledge all that comes."""
        taken: list[Message] = []
        with self.consumer() as consumer:
            while messages := consumer.receive(100, quiet):
                for message in messages:
                    consumer.acknowledge(message)
                taken.extend(messages)
        return taken

    def take_rest(self) -> list[Message]:
        """Receive and acknowledge until nothing waits, however long leases of the dead last."""
        taken: list[Message] = []

        def is_empty() -> bool:
            taken.extend(self.take_all(0.1))
            return self.waiting() == 0

        eventually(is_empty)
        return taken


class Collected:
    """What a stream yielded, by batch. What came first of a batch that comes again is kept in `replaced`."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.replaced: dict[int, list[Row]] = {}

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        if batch in self.batches:
            self.replaced[batch] = self.batches[batch]
        self.batches[batch] = rows.collect()

    @property
    def rows(self) -> list["Row"]:
        return [row for batch in self.batches.values() for row in batch]

    @property
    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self.rows)


def read_stream(spark: "SparkSession", channel: Channel, form: str = "pump", **more: str) -> "DataFrame":
    return spark.readStream.format(form).options(**{**channel.options, **more}).load()


def drain(spark: "SparkSession", channel: Channel, sink: Any, form: str = "pump", **more: str) -> "StreamingQuery":
    """Run a query that ends when it has read what waits."""
    query = (
        read_stream(spark, channel, form, **more)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", channel.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), "the query did not end"
    finally:
        query.stop()
    return query
