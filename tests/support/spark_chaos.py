"""`format("chaos")`: the source of pump, whose task kills itself at a point where a test has laid a file for that.

Spark's workers do not see this folder, so the module is sent to them as it is, by value: see `register`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value

from pump.spark.data_source import PumpDataSource
from pump.spark.sink.writer import MessageWriter
from pump.spark.source.positions import PositionStreamReader
from pump.spark.source.reader import StagedStreamReader
from pump.spark.staging import StagingLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

POINTS = ("received", "segment", "manifest", "acknowledged")


def die_at(folder: Path, point: str) -> None:
    """Kill this process if the file for this point is there; the file is gone then, so that it happens once."""
    try:
        (folder / f"die-{point}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class DyingLog(StagingLog):
    def stage(self, slot: Any, rows: Any) -> Any:
        die_at(self.folder.parent, "received")
        staged = super().stage(slot, rows)
        die_at(self.folder.parent, "segment")
        return staged

    def publish(self, slot: Any, staged: Any) -> bool:
        won = super().publish(slot, staged)
        die_at(self.folder.parent, "manifest")
        return won


class DyingReader(StagedStreamReader):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.log = DyingLog(options.staging)  # type: ignore[misc]

    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        rows = super().read(partition)
        die_at(self.log.folder.parent, "acknowledged")
        return rows


class DyingPositions(PositionStreamReader):
    def read(self, partition: Any) -> "Iterator[pa.RecordBatch]":
        rows = list(super().read(partition))
        die_at(self.options.staging.parent, "received")
        return iter(rows)


class DyingWriter(MessageWriter):
    folder: Path

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Any:
        def batches() -> "Iterator[pa.RecordBatch]":
            for number, rows in enumerate(iterator):
                if number:
                    die_at(self.folder, "posted")
                yield rows

        return super().write(batches())


class DyingDataSource(PumpDataSource):
    @classmethod
    def name(cls) -> str:
        return "chaos"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        given = dict(self.options)
        folder = given.pop("folder")
        self.options = given
        writer = DyingWriter(self._writing(schema, overwrite=overwrite))
        writer.folder = Path(folder)
        return writer

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        options = self._reading(schema)
        staged = isinstance(super().streamReader(schema), StagedStreamReader)
        return DyingReader(options) if staged else DyingPositions(options)


def register(session: "SparkSession") -> None:
    register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    session.dataSource.register(DyingDataSource)
