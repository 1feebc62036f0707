"""How the driver's process plans the ticks of a stream, without Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pump.message import Header, Message
from pump.spark.columns import table_of
from pump.spark.source.options import SourceOptions
from pump.spark.source.reader import PlannedPart, StagedStreamReader
from pump.spark.staging import Slot, Staged, StagingLog


class Depth:
    """A channel in which so many messages wait, however many are read: others post all the time."""

    def __init__(self, waiting: int | None) -> None:
        self._waiting = waiting

    def prepare(self) -> None: ...

    def waiting(self, *, or_raise: bool = False) -> int | None:
        return self._waiting


class CountingLog(StagingLog):
    """Notes which manifests were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.found = Counter[Slot]()

    def find(self, slot: Slot) -> Staged | None:
        self.found[slot] += 1
        return super().find(slot)


def reader_of(folder: Path, waiting: int | None, partitions: int = 1) -> Any:
    given = {"url": f"sqlite:///{folder}/queue.db", "channel": "orders", "stagingdir": str(folder / "staging")}
    options = SourceOptions.of({**given, "partitions": str(partitions), "messagesperpartition": "2"})
    reader: Any = StagedStreamReader(options)
    reader.log = CountingLog(options.staging)
    reader._depth = Depth(waiting)
    return reader


def publish(log: StagingLog, part: PlannedPart, count: int) -> None:
    messages = [Message(Header(str(number), "orders"), b"{}") for number in range(count)]
    log.publish(part.slot, log.stage(part.slot, table_of(messages, channel="orders", received=1.0)))


def drained(reader: Any) -> list[int]:
    """How many messages each part may have until the query ends, if each gets all of them."""
    start, planned = reader.initialOffset(), []
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, None)) != start:
        for part in reader.partitions(start, end):
            planned.append(part.most)
            publish(reader.log, part, part.most)
        start = end
    return planned


@pytest.mark.parametrize(
    ("waiting", "partitions", "planned"), [(0, 1, []), (5, 1, [2, 2, 1]), (5, 2, [2, 2, 1, 1]), (1, 2, [1, 1])]
)
def test_a_query_that_ends_plans_for_what_waited_when_it_began(
    tmp_path: Path, waiting: int, partitions: int, planned: list[int]
) -> None:
    assert drained(reader_of(tmp_path, waiting, partitions)) == planned


def test_each_manifest_is_read_once(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 20)

    drained(reader)

    assert sorted(reader.log.found.values()) == [1] * 10


def test_a_tick_that_found_nothing_ends_such_a_query(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, None)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, None)
    (part,) = reader.partitions(start, end)
    publish(reader.log, part, 0)

    assert end["tick"] == 1
    assert reader.latestOffset(end, None) == end
