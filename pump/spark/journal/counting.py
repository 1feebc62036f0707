"""A journal summarised on Spark: the same tuples as one process gives, counted by many."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pump.journal.counting import summarise
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
)
from pump.spark.journal import frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
MOST_GROUPS = 10_000
"""So many groups of dead letters and of errors are shown at most, the largest ones."""
AT_A_TIME = 3
"""So many analyses are counted at a time."""


def collected(frame: "DataFrame", make: Callable[..., Item]) -> Sequence[Item]:
    """The rows of a small DataFrame, each made of its fields by name. Times are aware, whatever the session's zone."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [make(**row) for row in rows]


def summarise_on(spark: "SparkSession", files: Sequence[Path]) -> Summary:
    """Count everything in these files of a journal."""
    if not files:
        return replace(summarise(()), counted_by="Spark")
    events = frames.events(spark, files)
    made: Mapping[str, tuple[DataFrame, Callable[..., Any]]] = {
        "latencies": (frames.latencies(events), Latency),  # what takes longest begins first
        "windows": (frames.window_counts(events), Window),
        "acknowledgements": (frames.acknowledgements(events), Acknowledgements),
        "minutes": (frames.minute_counts(events), MinuteCount),
        "outcomes": (frames.outcomes(events), OutcomeCount),
        "errors": (_largest(frames.errors(events)), ErrorGroup),
        "dead_letters": (_largest(frames.dead_letters(events)), DeadLetterGroup),
        "posts": (frames.posts(events), Posts),
        "lost": (frames.lost(events), lambda **row: (row["events"], row["lost"])),
    }
    with ThreadPoolExecutor(AT_A_TIME) as pool:  # Spark plans one while the cores count another
        counted = dict(zip(made, pool.map(lambda each: collected(*each), made.values()), strict=True))
    ((total, lost),) = counted["lost"]
    return Summary(
        windows=sorted(counted["windows"]),
        latencies=sorted(counted["latencies"]),
        outcomes=sorted(counted["outcomes"]),
        acknowledgements=sorted(counted["acknowledgements"]),
        errors=sorted(counted["errors"], key=_most_first),
        dead_letters=sorted(counted["dead_letters"], key=_most_first),
        posts=sorted(counted["posts"]),
        alerts=alerts(counted["minutes"]),
        events=total,
        lost=lost,
        counted_by="Spark",
    )


def _most_first(each: ErrorGroup | DeadLetterGroup) -> tuple[int, tuple[Any, ...]]:
    return -each.number, each


def _largest(frame: "DataFrame") -> "DataFrame":
    return frame.orderBy("number", ascending=False).limit(MOST_GROUPS)
