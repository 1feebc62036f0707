"""Writes rows as messages, in tasks. A task has succeeded when the broker has confirmed each of its rows.

Nothing can be taken back: a task that fails after some rows is run again and posts them again, with the same ids.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pump.clock import SystemClock
from pump.spark.columns import messages_of
from pump.spark.sink.ids import RowIds
from pump.spark.sink.options import SinkOptions
from pump.spark.sink.posting import Posting
from pump.telemetry import log


@dataclass
class Sent(WriterCommitMessage):
    """What one task tells the driver."""

    partition: int
    count: int


class MessageWriter(DataSourceArrowWriter):
    """Writes the rows of a batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options: Final = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Post the rows of one partition, each confirmed."""
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every row of every task is confirmed."""
        log.debug("spark: %d messages were posted", _count(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good. What was posted stays posted."""
        _report(messages, "this write")


class StreamMessageWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each batch of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options: Final = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """As MessageWriter's."""
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """As MessageWriter's."""
        log.debug("spark: %d messages of batch %d were posted", _count(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """As MessageWriter's."""
        _report(messages, f"batch {batchId}")


def _write(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> Sent:
    task = TaskContext.get()
    partition = 0 if task is None else task.partitionId()
    query, batch = _stream_of(task)
    with closing(Posting(options)) as posting:
        ids = RowIds(partition, query, batch)
        for some in rows:
            now = SystemClock.wall()
            posting.send(messages_of(some, topic=options.topic, ids=ids.of(some), now=now))
        return Sent(partition, posting.count)


def _stream_of(task: TaskContext | None) -> tuple[str, str]:
    """The query and the batch that a task writes for; empty texts if it writes no stream."""
    if task is None:
        return "", ""
    query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
    return (query, batch) if query and batch else ("", "")


def _count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(each.count for each in messages if isinstance(each, Sent))


def _report(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    done = [each for each in messages if isinstance(each, Sent)]
    log.error(
        "spark: %s failed. %d messages of %d of its %d partitions were posted and stay posted; others may have posted "
        "some. A repeat posts all of them again, with the same ids",
        what,
        _count(messages),
        len(done),
        len(messages),
    )
