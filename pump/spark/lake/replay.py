"""Replay: messages of an archive are posted to a channel again, in order, at a limited rate, each once.

A replay may be interrupted at any point, and goes on with the same record. The ids are made of the old ones, so that
repeats can be dropped, and so that a replayed message is never taken for the old one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pump.spark.lake.archive import Archive
from pump.spark.posted import BATCH, KEY, NEW_ID, PostingOrder, PostingReport, post_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX: Final = "rp-"


@dataclass(frozen=True, kw_only=True)
class Period:
    """Which messages of an archive are meant."""

    channel: str = ""
    since: str = ""
    """A time, as Spark's SQL reads it: they were received then or later."""
    until: str = ""
    """They were received before."""
    where: str = ""
    """A condition in Spark's SQL."""


def chosen(session: "SparkSession", archive: Archive, period: Period) -> "DataFrame":
    """The messages of the period."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    found = archive.read(session)
    if period.channel:
        found = found.where(f.col("channel") == period.channel)
    if period.since:
        since = f.lit(period.since).cast("timestamp")
        found = found.where((f.col("received") >= since) & (f.col("day") >= f.to_date(since)))
    if period.until:
        until = f.lit(period.until).cast("timestamp")
        found = found.where((f.col("received") < until) & (f.col("day") <= f.to_date(until)))
    return found.where(period.where) if period.where else found


def replay(messages: "DataFrame", order: PostingOrder, prefix: str = PREFIX) -> PostingReport:
    """Post these messages of an archive, unless the record says that they were posted."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    nameless = f.sha2("body", 256)
    name = f.concat_ws("\t", "channel", "partition", "position", f.coalesce("identity", "id", nameless))
    keyed = messages.withColumn(KEY, name)
    named = keyed.withColumn(NEW_ID, f.concat(f.lit(prefix), f.coalesce("id", "identity", nameless)))
    return post_rows(named.dropDuplicates([KEY]), order)


def size_for(rate: float | None) -> int:
    """How many messages are posted together, so that a limited rate is kept within each tenth of a second."""
    return BATCH if rate is None else max(1, min(BATCH, round(rate / 10)))
