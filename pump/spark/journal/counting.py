"""A journal summarised on Spark: the same tuples as one process gives, counted by many."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pump.journal.rules import MinuteCount, alerts
from pump.journal.summary import (
    Acknowledgements,
    DeadLetterGroup,
    ErrorGroup,
    Latency,
    OutcomeCount,
    Posts,
    Summary,
    Window,
    summarise,
)
from pump.spark.journal import frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
MOST_GROUPS = 10_000
"""So many groups of dead letters and of errors are shown at most, the largest ones."""


def collected(frame: "DataFrame", make: Callable[..., Item]) -> Sequence[Item]:
    """The rows of a small DataFrame, each made of its fields by name. Times are aware, whatever the session's zone."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [make(**row) for row in rows]


def summarise_on(spark: "SparkSession", files: Sequence[Path]) -> Summary:
    """Count everything in these files of a journal."""
    if not files:
        return replace(summarise(()), counted_by="Spark")
    events = frames.events(spark, files)
    ((total, lost),) = collected(frames.lost(events), lambda **row: (row["events"], row["lost"]))
    return Summary(
        windows=sorted(collected(frames.window_counts(events), Window)),
        latencies=sorted(collected(frames.latencies(events), Latency)),
        outcomes=sorted(collected(frames.outcomes(events), OutcomeCount)),
        acknowledgements=sorted(collected(frames.acknowledgements(events), Acknowledgements)),
        errors=sorted(collected(_largest(frames.errors(events)), ErrorGroup), key=lambda each: (-each.number, each)),
        dead_letters=sorted(
            collected(_largest(frames.dead_letters(events)), DeadLetterGroup), key=lambda each: (-each.number, each)
        ),
        posts=sorted(collected(frames.posts(events), Posts)),
        alerts=alerts(collected(frames.minute_counts(events), MinuteCount)),
        events=total,
        lost=lost,
        counted_by="Spark",
    )


def _largest(frame: "DataFrame") -> "DataFrame":
    return frame.orderBy("number", ascending=False).limit(MOST_GROUPS)
