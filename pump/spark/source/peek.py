"""A batch read: it looks at what waits in a channel, and takes nothing.

The messages are received and handed back before the first row is yielded. For that moment they are in hand here, and
other consumers do not get them. Whether the broker counts that as a delivery is the broker's: docs/spark-source.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pump.clock import SystemClock
from pump.message import Message
from pump.spark.columns import table_of
from pump.spark.source.batch import HeldBatch
from pump.spark.source.options import SourceOptions
from pump.spark.source.positions import open_log
from pump.spark.staging import ROWS_AT_ONCE
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import KeepsLogs, TopicLog


class PeekReader(DataSourceReader):
    """Looks at up to `messagesPerPartition` messages, in one task: two would show the same ones."""

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of what waits now."""
        rows = self._look()
        return (rows.slice(begin, ROWS_AT_ONCE) for begin in range(0, rows.num_rows, ROWS_AT_ONCE))

    def _look(self) -> pa.RecordBatch:
        options, clock = self._options, SystemClock()
        if isinstance(options.transport(), KeepsLogs):
            with closing(open_log(options)) as opened:
                messages = _first(opened, options.messages_per_partition)
            return table_of(messages, channel=options.channel, received=clock.wall())
        consumer = blocking(options.transport()).consumer(options.subscription())
        with closing(consumer), HeldBatch(consumer, clock) as batch:
            try:
                most, most_bytes = options.messages_per_partition, options.bytes_per_partition
                batch.gather(most=most, most_bytes=most_bytes, window=options.window_seconds)
                return table_of(batch.messages(), channel=options.channel, received=clock.wall())
            finally:
                batch.hand_back()


def _first(opened: TopicLog, most: int) -> list[Message]:
    """The first messages after what the channel has settled, of one partition after another."""
    messages: list[Message] = []
    starts, ends = opened.starts(), opened.ends()
    for number, begin in starts.items():
        end = min(ends.get(number, begin), begin + most - len(messages))
        if end > begin:
            messages += opened.read(number, begin, end)
    return messages
