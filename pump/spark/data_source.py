"""`format("pump")`: what Spark asks for when somebody reads from a channel, or writes to a topic."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pump.errors import ConfigurationError
from pump.spark.columns import spark_schema, wrong_columns
from pump.spark.sink.options import SinkOptions
from pump.spark.sink.writer import MessageWriter, StreamMessageWriter
from pump.spark.source.options import SourceOptions
from pump.spark.source.peek import PeekReader
from pump.spark.source.positions import PositionStreamReader
from pump.spark.source.reader import StagedStreamReader
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import KeepsLogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PumpDataSource(DataSource):
    """Channels as streams of rows, and rows as messages. Mistakes in options are reported before anything runs."""

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        return "pump"

    def schema(self) -> str:
        """The columns of a received message; asked for on reading, once the options are known."""
        SourceOptions.of(self.options)
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A look at the channel, which takes nothing."""
        return PeekReader(self._reading(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A stream of the channel's messages."""
        options = self._reading(schema)
        keeps_logs = isinstance(options.transport(), KeepsLogs)
        return PositionStreamReader(options) if keeps_logs else StagedStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - as Spark calls it
        """A writer of rows as messages."""
        return MessageWriter(self._writing(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802 - as Spark calls it
        """The same, for each batch of a stream."""
        return StreamMessageWriter(self._writing(schema, overwrite=overwrite))

    def _reading(self, schema: StructType) -> SourceOptions:
        if not {"body", "headers", "dead_letter"} <= set(schema.names):
            raise ConfigurationError("format('pump'): the source has columns of its own: leave out schema(…)")
        return SourceOptions.of(self.options)

    def _writing(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        options = SinkOptions.of(self.options)
        if overwrite:
            raise ConfigurationError("format('pump'): messages cannot be overwritten; say mode('append')")
        wrong = wrong_columns({each.name: each.dataType.simpleString() for each in schema.fields}, topic=options.topic)
        if wrong:
            raise ConfigurationError(f"format('pump'): {wrong}")
        if options.topic:
            blocking(options.transport()).prepare([], [options.publication(options.topic)])
        return options


def register(session: "SparkSession") -> None:
    """Make `format("pump")` known to a session that does not find it by itself: one of a checkout, not of a wheel."""
    session.dataSource.register(PumpDataSource)
