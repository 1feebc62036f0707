"""Where dead letters are read: an archive of a channel, the channel itself, or the rows of the durable queue."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pump.clock import SystemClock
from pump.errors import ConfigurationError
from pump.message import Message
from pump.queue.engine import Engine
from pump.queue.transport.envelope import read
from pump.queue.transport.transport import QueueTransport
from pump.queue.vocabulary import DeadLetter, Filter
from pump.transport_kit.protocol import transport_from

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = 1000
"""How many rows of the queue are read at a time."""
_clock: Final = SystemClock()


def read_letters(session: "SparkSession", place: str, *, channel: str = "", queue: str = "") -> "DataFrame":
    """Dead letters as a table with the columns of messages. Reading removes nothing.

    `place` is a folder of Parquet files, or a transport's URL: then `channel` is a channel of dead letters, and `queue`
    a queue whose dead letters are rows beside it.
    """
    from pump.spark.columns import spark_schema  # noqa: PLC0415 - it loads pyarrow

    if is_folder(place):
        return session.read.schema(spark_schema()).parquet(place)
    if bool(channel) == bool(queue):
        raise ConfigurationError("say which dead letters: --channel orders.dead, or --queue orders for a queue's rows")
    if channel:
        from pump.spark.data_source import register  # noqa: PLC0415 - it loads pyspark

        register(session)  # in a checkout, Spark does not find the format by itself
        return session.read.format("pump").option("url", place).option("channel", channel).load()
    return session.range(0, 1, 1, 1).mapInArrow(reading_queue(place, queue), spark_schema())


def is_folder(place: str) -> bool:
    """Whether the place is a folder, and not a transport's URL."""
    return "://" not in place or place.startswith("file://")


def reading_queue(url: str, queue: str) -> "Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]":
    """The function for `mapInArrow` that reads the rows of a queue's dead letters, those not redriven yet."""

    def read_all(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        for _ in batches:
            yield from _read_queue(url, queue)

    return read_all


def _read_queue(url: str, queue: str) -> "Iterator[RecordBatch]":
    from pump.spark.columns import table_of  # noqa: PLC0415 - it loads pyarrow

    with queue_of(url).engine() as engine:
        for page in _pages(engine, queue):
            yield table_of([_message(each) for each in page], channel=queue, received=_clock.wall())


def queue_of(url: str) -> QueueTransport:
    """The durable queue that a URL names; ConfigurationError if it names something else."""
    transport = transport_from(url)
    if not isinstance(transport, QueueTransport):
        system = transport.capabilities.system
        raise ConfigurationError(f"dead letters are rows only in the durable queue, not on {system}: say --channel")
    return transport


def _pages(engine: Engine, queue: str) -> Iterator[list[DeadLetter]]:
    """All pages, newest first: each begins where the last one ended, at its time, behind those seen of that time."""
    until, seen = _clock.wall(), 0
    while True:
        page, _ = engine.dead_letters(Filter(queue=queue, until=until, limit=PAGE, offset=seen))
        if not page:
            return
        last = page[-1].moved_at
        of_last = sum(each.moved_at == last for each in page)
        seen = seen + of_last if last == until else of_last
        until = last
        yield [each for each in page if each.redriven_at is None]


def _message(letter: DeadLetter) -> Message:
    """The dead letter of a row as a dead letter of any other transport would be."""
    header, body, fault = read(letter.payload or b"", letter.queue)
    provenance = {
        "pump-reason": letter.reason,
        "pump-error": letter.error,
        "pump-origin": letter.group,
        "pump-attempts": str(letter.retries),
        "pump-deliveries": str(letter.deliveries),
        "pump-last-failure": f"{letter.moved_at:.3f}",
    }
    kept = {name: text for name, text in {**header.headers, **provenance}.items() if text}
    fault = fault if letter.payload is not None else "its payload cannot be read here"
    header = header._replace(id=header.id or letter.transaction_id, headers=kept)
    return Message(header, body, identity=letter.id, deliveries=max(1, letter.deliveries), fault=fault)
