"""An archive: the messages of channels as a table, by day and channel, each message once.

The source stores messages before it acknowledges them, and gives each batch the same number and the same rows in every
life of the query. The archive has a folder for each batch, and a batch that is written again replaces its own folder;
in a Delta table, a batch that is there already is left out. So a crash at any point adds nothing twice.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pump.errors import ConfigurationError, SetupError
from pump.transport_kit.protocol import Placed, transport_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pump.clock import Signal

TableFormat: TypeAlias = Literal["parquet", "delta"]

MESSAGES: Final = "messages"
"""The folder of the table, within that of the archive."""
_CHECKPOINTS: Final = "checkpoints"
_STAGING: Final = "staging"
_FORMAT: Final = "format"
_EPOCH: Final = "epoch"
PARTITIONS: Final = ("day", "channel", "batch")
LOOK_SECONDS: Final = 1
"""The longest wait before it is seen that a stop was requested."""
_FOLLOW_INTERVAL: Final = "5 seconds"


@dataclass(frozen=True, kw_only=True)
class ArchiveOrder:
    """Which channel goes where."""

    url: str = field(repr=False)
    channel: str
    folder: Path
    """Of the archive: several channels, of several brokers, may share it."""
    topic: str = ""
    table_format: TableFormat = "parquet"
    partitions: int = 2
    """How many tasks receive."""


class Archive:
    """An archive in a folder that driver and executors share."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder.resolve()
        self.table: Final = self.folder / MESSAGES

    @property
    def table_format(self) -> TableFormat:
        """The form of its table; ConfigurationError if there is no archive."""
        file = self.folder / _FORMAT
        if not file.exists():
            raise ConfigurationError(f"there is no archive in {self.folder}: pump spark archive makes one")
        return "delta" if file.read_text().strip() == "delta" else "parquet"

    def begin(self, table_format: TableFormat) -> None:
        """Make the folder, or see that it is an archive of this form."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / _FORMAT
        if not file.exists():
            file.write_text(f"{table_format}\n")
        if self.table_format != table_format:
            raise ConfigurationError(f"{self.folder} is an archive of {self.table_format} files, not of {table_format}")

    def read(self, session: "SparkSession", folders: Sequence[Path] = ()) -> "DataFrame":
        """All messages, or those of some folders of the table.

        They have the columns of messages, `day` (when a message was received, in UTC) and `batch`.
        """
        from pump.spark.columns import SCHEMA, spark_schema  # noqa: PLC0415 - it loads pyarrow

        if self.table_format == "delta":
            return session.createDataFrame(_delta().DeltaTable(str(self.table)).to_pyarrow_table())
        if not self.table.exists():
            raise ConfigurationError(f"the archive in {self.folder} has no messages yet")
        reader = session.read.schema(f"{spark_schema()}, day date, batch string").option("basePath", str(self.table))
        found = reader.parquet(*map(str, folders or [self.table]))
        return found.select(*SCHEMA.names, "day", "batch")

    def checkpoints(self) -> "list[Checkpoint]":
        """Those of all channels."""
        folders = sorted((self.folder / _CHECKPOINTS).glob("*"))
        return [Checkpoint(each) for each in folders if (each / _EPOCH).exists()]


class Checkpoint:
    """What a query knows of itself: Spark's part, and an epoch, which no other life of a checkpoint has."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.spark: Final = folder / "spark"

    @classmethod
    def of(cls, order: ArchiveOrder) -> "Checkpoint":
        """The checkpoint of a channel. A new one, whose batches count from 0 again, gets an epoch of its own."""
        transport = transport_from(order.url)
        place = transport.place if isinstance(transport, Placed) else ""
        name = f"{transport.capabilities.system}\0{place}\0{order.topic or order.channel}\0{order.channel}"
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        found = cls(order.folder.resolve() / _CHECKPOINTS / digest)
        if not (found.spark / "metadata").exists():
            found.folder.mkdir(parents=True, exist_ok=True)
            (found.folder / "of.json").write_text(json.dumps({"channel": order.channel, "place": place}))
            (found.folder / _EPOCH).write_text(secrets.token_hex(6))
        return found

    @property
    def epoch(self) -> str:
        """The name of this life of the checkpoint."""
        return (self.folder / _EPOCH).read_text().strip()

    @property
    def committed(self) -> int:
        """The number of the last batch that is not written again; -1 if there is none."""
        names = (each.name for each in (self.spark / "commits").glob("*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)


def archive(session: "SparkSession", order: ArchiveOrder, until: "Signal | None" = None) -> int:
    """Archive what waits in the channel, and return how many messages that were.

    With `until`, go on with what comes until that is set.
    """
    place = Archive(order.folder)
    place.begin(order.table_format)
    checkpoint = Checkpoint.of(order)
    first = checkpoint.committed + 1
    query = _query(session, order, place, checkpoint, follows=until is not None)
    _end(query, until)
    return _count(session, place, checkpoint.epoch, first)


def _query(
    session: "SparkSession", order: ArchiveOrder, place: Archive, checkpoint: Checkpoint, *, follows: bool
) -> "StreamingQuery":
    from pump.spark.data_source import register  # noqa: PLC0415 - it loads pyspark

    options = {
        "url": order.url,
        "channel": order.channel,
        "stagingDir": str(place.folder / _STAGING),
        "partitions": str(order.partitions),
        **({"topic": order.topic} if order.topic else {}),
    }
    register(session)  # in a checkout, Spark does not find the format by itself
    rows = session.readStream.format("pump").options(**options).load()
    store = _into_delta if order.table_format == "delta" else _into_parquet
    writer = rows.writeStream.foreachBatch(store(str(place.table), checkpoint.epoch))
    writer = writer.option("checkpointLocation", str(checkpoint.spark))
    return (writer.trigger(processingTime=_FOLLOW_INTERVAL) if follows else writer.trigger(availableNow=True)).start()


def _end(query: "StreamingQuery", until: "Signal | None") -> None:
    """Wait for the query's end, and end it when `until` is set: its next life has what is staged by then."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only with a session

    try:
        while not query.awaitTermination(LOOK_SECONDS):
            if until is not None and until.is_set():
                query.stop()
                return
    except PySparkException as error:
        raise SetupError(f"the archive's query failed: {error}") from error


def _into_parquet(table: str, epoch: str) -> Callable[["DataFrame", int], None]:
    """Writes a batch into folders of its own; written again, it replaces them."""

    def store(rows: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as f  # noqa: PLC0415 - only Spark's driver has to load it

        dated = rows.withColumn("day", f.to_date("received")).withColumn("batch", f.lit(f"{epoch}-{number:09}"))
        writer = dated.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*PARTITIONS).parquet(table)

    return store


def _into_delta(table: str, epoch: str) -> Callable[["DataFrame", int], None]:
    """Writes a batch as one transaction of the query; one that the table has already is left out."""
    _delta()

    def store(rows: "DataFrame", number: int) -> None:
        import deltalake  # noqa: PLC0415 - only where it is wanted
        from pyspark.sql import functions as f  # noqa: PLC0415

        if deltalake.DeltaTable.is_deltatable(table):
            last = deltalake.DeltaTable(table).transaction_version(epoch)
            if last is not None and last >= number:
                return
        dated = rows.withColumn("day", f.to_date("received")).withColumn("batch", f.lit(f"{epoch}-{number:09}"))
        deltalake.write_deltalake(
            table,
            dated.toArrow(),
            mode="append",
            partition_by=["day", "channel"],
            commit_properties=deltalake.CommitProperties(app_transactions=[deltalake.Transaction(epoch, number)]),
        )

    return store


def _delta() -> ModuleType:
    try:
        import deltalake  # noqa: PLC0415 - only where it is wanted
    except ImportError as error:
        raise ConfigurationError("Delta tables need the package deltalake: pip install deltalake") from error
    found: ModuleType = deltalake
    return found


def _count(session: "SparkSession", place: Archive, epoch: str, first: int) -> int:
    """How many messages the batches from this one on have."""
    if not place.table.exists():
        return 0
    return place.read(session).where(f"batch >= '{epoch}-{first:09}' and batch < '{epoch}-~'").count()
