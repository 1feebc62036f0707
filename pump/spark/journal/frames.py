"""The journal as a DataFrame, and its analyses: DataFrame API alone, so that they also run over Spark Connect.

Each function takes the events and returns a DataFrame whose columns are the fields of the tuple of that name in
`pump.journal.summary`, which says what they mean.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pump.journal.events import SCHEMA
from pump.journal.summary import FAILED, QUANTILES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "STRING",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
}
DDL: Final = ", ".join(f"`{each.name}` {_TYPES.get(each.type, 'TIMESTAMP')}" for each in SCHEMA)
"""The columns of the journal, as Spark writes them."""
WINDOW_TEXT: Final = "5 minutes"
_ACCURACY: Final = 1000
"""Of percentiles: their rank is wrong by a thousandth at most."""


def events(spark: "SparkSession", files: Sequence[Path]) -> "DataFrame":
    """The events in these files of a journal."""
    if not files:
        return spark.createDataFrame([], DDL)
    return spark.read.schema(DDL).parquet(*(str(each) for each in files))


def _is(*names: str) -> "Column":
    return F.col("event").isin(*names)


def _verdict(*names: str) -> "Column":
    return _is("delivery") & F.col("verdict").isin(*names)


def _times(condition: "Column") -> "Column":
    return F.sum(F.when(condition, 1).otherwise(0))


def _where() -> "list[Column]":
    return [
        F.window("time", WINDOW_TEXT).start.alias("window_start"),
        F.coalesce("channel", F.lit("")).alias("channel"),
    ]


def window_counts(frame: "DataFrame", *more: "Column") -> "DataFrame":
    """The fields of `Window`, and more aggregates if asked for: the counts of two parts of a window can be added."""
    lost = _is("settle_failed") & (F.col("verdict") == "acknowledge")
    timed = _is("delivery", "settled") & F.col("settling_seconds").isNotNull()
    age = F.unix_micros("time") - F.unix_micros("posted")
    return (
        frame.where(_is("received", "delivery", "settled", "settle_failed", "lag"))
        .groupBy(*_where())
        .agg(
            F.sum(F.when(_is("received"), F.col("count")).otherwise(0)).alias("received"),
            _times(_is("delivery")).alias("deliveries"),
            (_times(_verdict("acknowledge")) - _times(lost)).alias("acknowledged"),
            F.sum(F.when(_is("delivery"), F.col("redelivered")).otherwise(0)).alias("redelivered"),
            _times(_is("delivery") & F.col("exhausted")).alias("exhausted"),
            _times(_verdict(*FAILED)).alias("failed"),
            _times(_verdict("reject")).alias("rejected"),
            _times(_is("settle_failed")).alias("settle_failed"),
            _times(timed).alias("settled"),
            F.sum(F.when(timed, F.col("settling_seconds")).otherwise(0.0)).alias("settling_seconds"),
            (F.max(F.when(_is("received"), age)) / 1e6).alias("lag_seconds"),
            F.max(F.when(_is("lag"), F.col("count"))).alias("waiting"),
            *more,
        )
    )


def rates(counts: "DataFrame") -> "DataFrame":
    """Window counts with the rates that they give: redelivery, exhaustion, failure."""
    whole = F.col("deliveries")
    return counts.withColumns(
        {
            "redelivery_rate": F.try_divide("redelivered", whole),
            "exhaustion_rate": F.try_divide("exhausted", whole),
            "failure_rate": F.try_divide("failed", whole),
        }
    )


def latencies(frame: "DataFrame") -> "DataFrame":
    """The fields of `Latency`: three rows a window and channel."""
    delivered = _is("delivery")
    measures = {
        "age": F.when(delivered, (F.unix_micros("time") - F.unix_micros("posted")) / 1e6),
        "handling": F.when(delivered, F.col("handling_seconds")),
        "settling": F.col("settling_seconds"),
    }
    percentiles = [
        F.percentile_approx(value, list(QUANTILES), _ACCURACY).alias(name) for name, value in measures.items()
    ]
    wide = frame.where(_is("delivery", "settled")).groupBy(*_where()).agg(*percentiles)
    pairs = [F.struct(F.lit(name).alias("measure"), F.col(name).alias("at")) for name in measures]
    long = wide.select("window_start", "channel", F.explode(F.array(*pairs)).alias("pair")).where("pair.at IS NOT NULL")
    at = F.col("pair.at")
    return long.select(
        "window_start", "channel", "pair.measure", at[0].alias("p50"), at[1].alias("p95"), at[2].alias("p99")
    )


def outcomes(frame: "DataFrame") -> "DataFrame":
    """The fields of `OutcomeCount`."""
    return (
        frame.where(_is("delivery"))
        .groupBy("channel", F.coalesce("handler", F.lit("")).alias("handler"), "verdict")
        .agg(F.count("*").alias("number"))
    )


def acknowledgements(frame: "DataFrame") -> "DataFrame":
    """The fields of `Acknowledgements`."""
    done = F.when(_is("delivery", "settled") & (F.col("verdict") == "acknowledge"), F.col("settling_seconds"))
    lost = _is("settle_failed") & (F.col("verdict") == "acknowledge")
    return (
        frame.where(_is("delivery", "settled", "settle_failed"))
        .groupBy("channel")
        .agg(
            _times(_verdict("acknowledge")).alias("total"),
            _times(lost).alias("failed"),
            F.avg(done).alias("mean_seconds"),
            F.percentile_approx(done, 0.95, _ACCURACY).alias("p95_seconds"),
        )
    )


def errors(frame: "DataFrame") -> "DataFrame":
    """The fields of `ErrorGroup`: the text before the first colon."""
    group = F.trim(F.substring_index("cause", ":", 1))
    failed = frame.where(_verdict(*FAILED) & (F.col("cause") != ""))
    return failed.groupBy(group.alias("group")).agg(F.count("*").alias("number"))


def dead_letters(frame: "DataFrame") -> "DataFrame":
    """The fields of `DeadLetterGroup`."""
    return (
        frame.where(_verdict("reject"))
        .groupBy("channel", F.coalesce("signature", F.lit("")).alias("signature"))
        .agg(
            F.coalesce(F.max("reason"), F.lit("")).alias("reason"),
            F.count("*").alias("number"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
            F.coalesce(F.max("message_id"), F.lit("")).alias("example_id"),
        )
    )


def posts(frame: "DataFrame") -> "DataFrame":
    """The fields of `Posts`."""

    def number(condition: "Column") -> "Column":
        return F.sum(F.when(condition, F.col("count")).otherwise(0))

    return (
        frame.where(_is("published", "publish_failed", "publish_retry"))
        .groupBy(F.coalesce("subject", F.lit("")).alias("subject"))
        .agg(
            number(_is("published")).alias("published"),
            number(_is("publish_failed")).alias("failed"),
            number(_is("publish_retry")).alias("retries"),
            number(F.coalesce("exhausted", F.lit(False))).alias("exhausted"),  # noqa: FBT003 - the value itself
        )
    )


def minute_counts(frame: "DataFrame") -> "DataFrame":
    """The fields of `MinuteCount`: what the rules of the alerts look at."""
    where, nothing = F.coalesce("channel", "subject", F.lit("")), F.lit("")
    rules: Sequence[tuple[str, Column, Column]] = (
        ("retry rate", _is("publish_retry") | _verdict("requeue"), nothing),
        ("exhausted", _is("delivery", "publish_failed") & F.col("exhausted"), nothing),
        ("publish failures", _is("publish_failed"), F.coalesce("error", nothing)),
        ("dead letters", _verdict("reject"), nothing),
    )
    held = [
        F.when(condition, F.struct(F.lit(name).alias("rule"), kind.alias("kind"))) for name, condition, kind in rules
    ]
    interesting = frame.where(_is("publish_retry", "publish_failed") | _verdict("requeue", "reject"))
    return (
        interesting.select(
            F.explode(F.array_compact(F.array(*held))).alias("held"), where.alias("channel"), "time", "count"
        )
        .groupBy("held.rule", "channel", "held.kind", F.floor(F.unix_seconds("time") / 60).alias("minute"))
        .agg(F.sum("count").alias("number"))
    )


def lost(frame: "DataFrame") -> "DataFrame":
    """One row: how many events there are, and how many could not be written."""
    number = F.sum(F.when(_is("lost"), F.col("count")).otherwise(0))
    return frame.agg(F.count("*").alias("events"), F.coalesce(number, F.lit(0)).alias("lost"))
