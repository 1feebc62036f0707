"""Triage: which errors there are among dead letters, how many of each, since when, and an example."""

from typing import TYPE_CHECKING

from pump.spark.dead_letters.signature import id_of, with_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def triage(letters: "DataFrame") -> "DataFrame":
    """One row for each signature, the most frequent first.

    Columns: `signature_id`, `letters` (how many), `first` and `last` (when they were received), `channels`, `reasons`,
    `handlers`, `example` (the id of the last one) and `signature`.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    when = f.coalesce("dead_letter.last_failure", "received")
    groups = with_text(letters).groupBy("signature")
    return (
        groups.agg(
            f.count("*").alias("letters"),
            f.min(when).alias("first"),
            f.max(when).alias("last"),
            f.array_sort(f.collect_set("channel")).alias("channels"),
            f.array_sort(f.collect_set("dead_letter.reason")).alias("reasons"),
            f.array_sort(f.collect_set("dead_letter.handler")).alias("handlers"),
            f.max_by(f.coalesce("id", "identity"), when).alias("example"),
        )
        .withColumn("signature_id", id_of("signature"))
        .select(
            *("signature_id", "letters", "first", "last"), *("channels", "reasons", "handlers", "example", "signature")
        )
        .orderBy(f.desc("letters"), "signature_id")
    )
