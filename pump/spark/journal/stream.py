"""The journal as a stream: windows that grow with every file, and alerts as soon as their rule holds.

A batch of new files gives counts by window and by minute, which are added to those of the days that they are of. So no
event is too late to count. One that comes more than ten minutes behind the latest is counted as late as well: until it
came, the window had shown a number that was too small.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pump.errors import ConfigurationError
from pump.journal.files import write_table
from pump.journal.rules import LONGEST_MINUTES, Alert, MinuteCount, alerts
from pump.spark.journal import frames
from pump.spark.journal.store import Format, Store, store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATE_SECONDS: Final = 600
FILES_AT_A_TIME: Final = 500
CHECKPOINT: Final = "checkpoint"

_TIME: Final = pa.timestamp("us", tz="UTC")
_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "windows": ("window_start", "channel"),
    "minutes": ("rule", "channel", "kind", "minute"),
}
_LARGEST: Final = {"lag_seconds", "waiting", "latest"}
"""The columns of which the largest value counts; all others are added."""
_KINDS: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("window_start", "latest"), _TIME),
    **dict.fromkeys(("channel", "rule", "kind"), pa.string()),
    **dict.fromkeys(("settling_seconds", "lag_seconds"), pa.float64()),
}
"""The types of the columns that are no counts."""
_ALERTS: Final = pa.schema(
    [
        ("id", pa.string()),
        ("rule", pa.string()),
        ("channel", pa.string()),
        ("kind", pa.string()),
        ("window_start", _TIME),
        ("since", _TIME),
        ("value", pa.int64()),
        ("text", pa.string()),
    ]
)


def follow(
    spark: "SparkSession",
    journal: Path,
    out: Path,
    *,
    once: bool = False,
    every_seconds: float = 30.0,
    kind: Format = "parquet",
) -> "StreamingQuery":
    """Begin a query that keeps windows and alerts of a journal in the folder `out`, and goes on where it was.

    `once` takes what is there and ends. The query reads the files that pumps write, so it needs each of them for as
    long as it may be stopped: the time for which a compaction keeps what it has merged.
    """
    follower = Follower(out, kind)
    source = spark.readStream.schema(frames.DDL).option("maxFilesPerTrigger", FILES_AT_A_TIME)
    writer = source.parquet(f"{journal}/*.parquet").writeStream.foreachBatch(follower)
    writer = writer.option("checkpointLocation", str(out / CHECKPOINT))
    timed = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_seconds} seconds")
    return timed.start()


def kept_windows(out: Path, kind: Format = "parquet") -> pa.Table | None:
    """The windows that a query keeps: the fields of `Window`, and `late`, how many of its events were late."""
    table = store(out / "windows", kind).read()
    return None if table is None else table.sort_by([(name, "ascending") for name in _KEYS["windows"]])


def kept_alerts(out: Path) -> Sequence[Alert]:
    """The alerts that a query keeps, in the order of time."""
    file = out / "alerts.parquet"
    rows = pq.read_table(file).to_pylist() if file.exists() else []
    return sorted((Alert(**row) for row in rows), key=lambda each: (each.window_start, each.id))


@dataclass(frozen=True, slots=True)
class Follower:
    """What is done with each batch of events; Spark may carry it to another process."""

    out: Path
    kind: Format = "parquet"

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        """Add a batch. If it was added before, in part or as a whole, only the rest is added."""
        query = self._query()
        before = self._latest_before(query, batch, frame)
        late = F.when(F.unix_seconds("time") < int(before) - LATE_SECONDS, 1).otherwise(0)
        windows = frames.window_counts(frame, F.max("time").alias("latest"), F.sum(late).alias("late"))
        self._add("windows", windows.toArrow(), query, batch, lambda row: row["window_start"].date())
        minutes = frames.minute_counts(frame).toArrow()
        self._add("minutes", minutes, query, batch, lambda row: _day(row["minute"]))
        if len(minutes):
            self._alert(query, minutes["minute"].to_pylist())

    def _query(self) -> str:
        """The query's id, which lives as long as its checkpoint."""
        try:
            return str(json.loads((self.out / CHECKPOINT / "metadata").read_text())["id"])
        except FileNotFoundError as error:
            raise ConfigurationError(f"{self.out} has no {CHECKPOINT}: begin with an empty folder") from error

    def _latest_before(self, query: str, batch: int, frame: "DataFrame") -> float:
        """The latest event before this batch, in seconds since the epoch; the same when the batch is run again."""
        file = self.out / f"latest-{query}.json"
        known = json.loads(file.read_text()) if file.exists() else {"batch": -1, "before": 0.0, "latest": 0.0}
        if known["batch"] == batch:
            return float(known["before"])
        ((here,),) = frame.agg(F.max(F.unix_seconds("time"))).collect()
        told = {"batch": batch, "before": known["latest"], "latest": max(known["latest"], here or 0)}
        partial = file.with_suffix(".tmp")
        partial.write_text(json.dumps(told))
        partial.replace(file)
        return float(told["before"])

    def _add(
        self, name: str, counts: pa.Table, query: str, batch: int, day_of: Callable[[Mapping[str, Any]], date]
    ) -> None:
        tables: Store = store(self.out / name, self.kind)
        days: dict[date, list[int]] = defaultdict(list)
        for place, row in enumerate(counts.select(_KEYS[name]).to_pylist()):
            days[day_of(row)].append(place)
        for day, places in sorted(days.items()):
            table, included = tables.load(day, query)
            if included < batch:
                new = counts.take(places)
                tables.save(day, added([new] if table is None else [table, new], _KEYS[name]), query, batch)

    def _alert(self, query: str, minutes: Sequence[int]) -> None:
        """Bring the alerts up to date that these minutes may have changed."""
        first, last = min(minutes) - LONGEST_MINUTES, max(minutes) + LONGEST_MINUTES
        tables: Store = store(self.out / "minutes", self.kind)
        days = (_day(first) + timedelta(days=number) for number in range((_day(last) - _day(first)).days + 1))
        known = [table for day in days for table, _ in [tables.load(day, query)] if table is not None]
        counts = (MinuteCount(**row) for table in known for row in table.to_pylist())
        begin = datetime.fromtimestamp((min(minutes) - min(minutes) % 5) * 60, UTC)
        changed = [each for each in alerts(counts) if each.window_start >= begin]
        kept = {each.id: each for each in (*kept_alerts(self.out), *changed)}
        rows = pa.Table.from_pylist([each._asdict() for each in kept.values()], schema=_ALERTS)
        write_table(rows, self.out / "alerts.parquet")


def added(tables: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """The rows of several tables of counts, those with the same keys made one."""
    names = tables[0].column_names
    schema = pa.schema([(name, _KINDS.get(name, pa.int64())) for name in names])
    whole = pa.concat_tables([each.select(names).cast(schema) for each in tables])
    how = [(name, "max" if name in _LARGEST else "sum") for name in names if name not in keys]
    grouped = whole.group_by(list(keys)).aggregate(how)
    ways = {name: f"{name}_{way}" for name, way in how}
    return pa.table([grouped[ways.get(name, name)] for name in names], schema=schema)


def _day(minute: int) -> date:
    return datetime.fromtimestamp(minute * 60, UTC).date()
