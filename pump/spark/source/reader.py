"""A stream of one channel. Spark keeps its offset, `{"epoch", "tick", "parts"}`; the staging log has what is in it.

The driver's process only counts ticks: it asks the broker whether anything waits, and plans the parts of the next tick.
The tasks receive. Spark writes the offset down before it plans the parts, and plans the same ones again until the batch
is committed; that the parts of a tick are as many as they were when it began is therefore a part of the offset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pump.spark.source.depth import ChannelDepth
from pump.spark.source.options import SourceOptions
from pump.spark.source.stage import StagedPart
from pump.spark.staging import Slot, StagingLog
from pump.transport_kit.protocol import Placed


@dataclass
class PlannedPart(InputPartition):
    """What a task is told: which part it reads, and how many messages it may receive."""

    slot: Slot
    most: int


class StagedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stages messages in tasks, and acknowledges them once they are stored."""

    def __init__(self, options: SourceOptions) -> None:
        self.options: Final = options
        self.log: Final = StagingLog(options.staging)
        self._depth: ChannelDepth | None = None
        self._target: int | None = None
        """How many messages waited when a query that ends by itself began; -1: the broker does not say."""
        self._first: int | None = None
        """The first tick that counts for that."""
        self._rows: Final[dict[tuple[str, int], int]] = {}
        """How many rows ticks have, by epoch and tick: decided once, so read once."""

    # -- in the driver's process

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset before the first tick. The epoch is new each time; the one that counts is in the end offset."""
        return {"epoch": uuid4().hex, "tick": 0, "parts": self.options.partitions}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The next tick, if something waits, or if the broker does not say; otherwise the start."""
        if self._is_drained(start) or self.depth.waiting(or_raise=self._target is not None) == 0:
            return start
        if start["tick"] == 0:
            transport = self.options.transport()
            place = transport.place if isinstance(transport, Placed) else transport.capabilities.system
            self.log.begin(start["epoch"], {"channel": self.options.channel, "place": place})
        return {"epoch": start["epoch"], "tick": start["tick"] + 1, "parts": self.options.partitions}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how many messages wait: the query ends when it has read so many, or when a tick finds none."""
        waiting = self.depth.waiting(or_raise=True)
        self._target, self._first = (-1 if waiting is None else waiting), None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of the ticks after the start, up to the end."""
        self.depth.prepare()
        begin = start["tick"] if start["epoch"] == end["epoch"] else 0
        parts, most = end["parts"], self._most(start)
        ticks = range(begin + 1, end["tick"] + 1)
        return [PlannedPart(Slot(end["epoch"], tick, part), most) for tick in ticks for part in range(parts)]

    def commit(self, end: dict[str, Any]) -> None:
        """The batch that ends here is committed: its segments are not needed any more."""
        self.log.collect(end["epoch"], end["tick"])

    @property
    def depth(self) -> ChannelDepth:
        """Of this process: it is not pickled with the reader."""
        if self._depth is None:
            self._depth = ChannelDepth(self.options)
        return self._depth

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_depth": None, "_rows": {}}

    def _is_drained(self, start: dict[str, Any]) -> bool:
        """Whether a query that ends by itself has read what waited when it began."""
        if self._target is None:
            return False
        if self._first is None:
            self._first = start["tick"]
        if start["tick"] == self._first:
            return self._target == 0
        return self._rows_of(start, start["tick"]) == 0 or self._left(start) == 0

    def _left(self, start: dict[str, Any]) -> int | None:
        """How many messages of the target are not read yet; None if there is no target."""
        if self._target is None or self._target < 0 or self._first is None:
            return None
        ticks = range(self._first + 1, start["tick"] + 1)
        return max(0, self._target - sum(self._rows_of(start, tick) or 0 for tick in ticks))

    def _rows_of(self, start: dict[str, Any], tick: int) -> int | None:
        """How many rows a tick up to the start has; None if not every part is published."""
        key = (start["epoch"], tick)
        if key not in self._rows:
            rows = self.log.rows(start["epoch"], tick, start["parts"])
            if rows is None:
                return None
            self._rows[key] = rows
        return self._rows[key]

    def _most(self, start: dict[str, Any]) -> int:
        """How many messages each task may receive."""
        left = self._left(start)
        most = self.options.messages_per_partition
        return most if left is None else max(1, min(most, -(-left // self.options.partitions)))

    # -- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        if not isinstance(partition, PlannedPart):
            raise TypeError(f"{partition!r} is no part of this source")
        options = replace(self.options, messages_per_partition=partition.most)
        return StagedPart(options, self.log, partition.slot, partition.most).read()
