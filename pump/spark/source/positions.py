"""A stream of a topic that is a log: its positions are Spark's offset, nothing is staged, and a range is read again.

The offset is `{"positions", "begin"}`: where each partition ends, and where the stream began. Spark asks for the
beginning again if the first batch has to be repeated; the one that counts is in the end offset.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pump.errors import ConfigurationError
from pump.spark.columns import table_of
from pump.spark.source.options import SourceOptions
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import KeepsLogs, TopicLog


@dataclass
class PositionRange(InputPartition):
    """What a task reads: a range of one partition."""

    partition: int
    begin: int
    end: int


def open_log(options: SourceOptions) -> TopicLog:
    """The log of the topic; ConfigurationError if the transport keeps none."""
    transport = options.transport()
    if not isinstance(transport, KeepsLogs):
        raise ConfigurationError(f"format('pump'): {transport.capabilities.system} keeps no positions")
    return transport.topic_log(options.subscription())


class PositionStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads ranges of positions; how far it is, is told to the broker for tools that show it."""

    def __init__(self, options: SourceOptions) -> None:
        self.options: Final = options
        self._opened: TopicLog | None = None
        self._target: Mapping[int, int] | None = None
        """Where the topic ended when a query that ends by itself began."""

    # -- in the driver's process

    @property
    def _log(self) -> TopicLog:
        if self._opened is None:
            blocking(self.options.transport()).prepare([self.options.subscription(self.options.missing)], [])
            self._opened = open_log(self.options)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the channel goes on."""
        starts = _texts(self._log.starts())
        return {"positions": starts, "begin": starts}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """As far as a batch may go."""
        ends = self._log.ends() if self._target is None else self._target
        begins = self._begins(start, ends)
        most = self.options.messages_per_partition
        moved = {number: max(begins[number], min(end, begins[number] + most)) for number, end in ends.items()}
        return start if moved == begins else {"positions": _texts(moved), "begin": start["begin"]}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where the topic ends now."""
        self._target = self._log.ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A range of each partition that has anything new."""
        ends = _numbers(end["positions"])
        since = start if start["begin"] == end["begin"] else {"positions": end["begin"]}
        begins = self._begins(since, ends)
        return [PositionRange(number, begins[number], last) for number, last in ends.items() if last > begins[number]]

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to here is in a committed batch."""
        self._log.settle(_numbers(end["positions"]))

    def _begins(self, start: Mapping[str, Any], ends: Mapping[int, int]) -> dict[int, int]:
        """Where each partition goes on. A new one begins where the log does."""
        known = _numbers(start["positions"])
        if ends.keys() - known.keys():
            known = {**self._log.starts(), **known}
        return {number: known.get(number, 0) for number in ends}

    # -- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        if not isinstance(partition, PositionRange):
            raise TypeError(f"{partition!r} is no range of this source")
        with closing(open_log(self.options)) as opened:
            messages = opened.read(partition.partition, partition.begin, partition.end)
        yield table_of(messages, channel=self.options.channel, received=0.0)  # or a repeat would have other rows


def _texts(positions: Mapping[int, int]) -> dict[str, int]:
    """Positions as JSON has them."""
    return {str(number): position for number, position in sorted(positions.items())}


def _numbers(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(number): position for number, position in positions.items()}
