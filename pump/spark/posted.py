"""Posting rows that were messages before, each once: posted, confirmed, recorded, in this order, by tasks of a job.

The record is a folder of text files, one for each attempt of a task, which tasks append to and sync after each
confirmed batch. A row that is recorded is not posted again, neither by a later run nor by a later attempt of a killed
task. What was posted and not yet recorded when a process died is posted again, with the same id: at most one batch of
each task.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from pump.clock import Signal, SystemClock
from pump.text import text_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

KEY: Final = "posting_key"
"""The column with the name of a row in the record."""
NEW_ID: Final = "posting_id"
"""The column with the id under which it is posted."""
REPORT: Final = "posted long, left_out long, failed long, error string"
BATCH: Final = 500

Change: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any] | None]
_clock: Final = SystemClock()


@dataclass(frozen=True, kw_only=True)
class PostingOrder:
    """What is posted where, and how."""

    url: str = field(repr=False)
    topic: str
    record: Path
    run: str = field(default_factory=lambda: uuid4().hex[:12])
    """Tells the attempts of one job from those of others."""
    change: Change | None = None
    """Changes a row before it is posted; None leaves the row out."""
    rate: float | None = None
    """The most messages per second of one task."""
    size: int = BATCH
    """How many are posted, confirmed and recorded together."""
    tasks: int = 2
    """How many tasks post. Rows with one message key are posted by one of them, in order."""
    order: Sequence[str] = ()
    """The columns by which each task sorts its rows."""


@dataclass(slots=True)
class PostingReport:
    """What came of it."""

    posted: int = 0
    left_out: int = 0
    """By the function that changes rows."""
    failed: int = 0
    """Rows on which that function failed: they are not posted, and not recorded."""
    error: str = ""
    """The first of these errors."""


def post_rows(rows: "DataFrame", order: PostingOrder) -> PostingReport:
    """Post rows that have the columns of messages, and KEY and NEW_ID, unless they are recorded."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    order.record.mkdir(parents=True, exist_ok=True)
    done = recorded(rows.sparkSession, order.record)
    todo = rows if done is None else rows.join(done, KEY, "left_anti")
    todo = todo.repartition(order.tasks, f.coalesce("key", KEY))
    if order.order:
        todo = todo.sortWithinPartitions(*order.order)
    sums = (f.coalesce(f.sum(name), f.lit(0)) for name in ("posted", "left_out", "failed"))
    total = todo.mapInArrow(posting(order), REPORT).agg(*sums, f.coalesce(f.max("error"), f.lit("")))
    (found,) = total.collect()
    return PostingReport(*found)


def recorded(session: "SparkSession", record: Path) -> "DataFrame | None":
    """The keys of a record; None if it has none. The last line of a killed task may be half: it counts for nothing."""
    if not any(record.glob("*.jsonl")):
        return None
    return session.read.schema(f"{KEY} string").json(str(record)).where(f"{KEY} is not null").distinct()


def recorded_keys(record: Path) -> frozenset[str]:
    """The same for a process that has no session."""
    return _keys(record, "*.jsonl")


def posting(order: PostingOrder) -> "Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]":
    """The function for `mapInArrow`: it posts all rows of its task, and returns one row of REPORT."""

    def post_all(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        from pyarrow import RecordBatch  # noqa: PLC0415 - only Spark's workers have to load it
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        report = PostingReport()
        with closing(_Record(order, partition, attempt)) as record:
            _post_all(order, batches, record, report)
        yield RecordBatch.from_pylist([asdict(report)])

    return post_all


def _post_all(order: PostingOrder, batches: "Iterator[RecordBatch]", record: "_Record", report: PostingReport) -> None:
    from pump.spark.columns import messages_of  # noqa: PLC0415 - they load pyarrow and pyspark
    from pump.spark.sink.options import SinkOptions  # noqa: PLC0415
    from pump.spark.sink.posting import Posting  # noqa: PLC0415

    began, sent = _clock.monotonic(), 0
    with closing(Posting(SinkOptions(url=order.url, topic=order.topic))) as producer:
        for batch in batches:
            for start in range(0, batch.num_rows, order.size):
                rows = _changed(order, record.new_of(batch.slice(start, order.size)), report)
                if order.rate is not None:
                    _clock.wait(Signal(), max(0.0, began + sent / order.rate - _clock.monotonic()))
                keys, ids = (rows.column(name).to_pylist() for name in (KEY, NEW_ID))
                producer.send(messages_of(_named(rows, ids), topic=order.topic, ids=ids))
                record.add(keys)
                report.posted += len(keys)
                sent += len(keys)


def _changed(order: PostingOrder, rows: "RecordBatch", report: PostingReport) -> "RecordBatch":
    """The rows as the order's function changes them, without those that it leaves out or fails on."""
    if order.change is None:
        return rows
    from pyarrow import RecordBatch  # noqa: PLC0415 - only Spark's workers have to load it

    kept = []
    for row in rows.to_pylist():
        given = {**row, "headers": dict(row["headers"] or ())}
        try:
            changed = order.change({name: value for name, value in given.items() if name not in {KEY, NEW_ID}})
        except Exception as error:  # one row must not stop all others; it stays a dead letter
            report.failed += 1
            report.error = report.error or f"{type(error).__name__}: {text_of(error)}"
            continue
        if changed is None:
            report.left_out += 1
            continue
        whole = {**row, **changed}
        if whole["text"] != row["text"]:
            whole["body"] = None if whole["body"] == row["body"] else whole["body"]
        kept.append({**whole, "headers": list(dict(whole["headers"] or ()).items())})
    return RecordBatch.from_pylist(kept, schema=rows.schema)


def _named(rows: "RecordBatch", ids: Sequence[str]) -> "RecordBatch":
    """The rows with their new ids."""
    from pyarrow import array  # noqa: PLC0415 - only Spark's workers have to load it

    return rows.set_column(rows.schema.get_field_index("id"), "id", array(ids, "string"))


class _Record:
    """The file of one attempt of one task. It is made when there is something to record."""

    def __init__(self, order: PostingOrder, partition: int, attempt: int) -> None:
        stem = f"posted-{order.run}-{partition:05}"
        self._path: Final = order.record / f"{stem}-{attempt}-{uuid4().hex[:8]}.jsonl"
        self._before: Final = _keys(order.record, f"{stem}-*.jsonl") if attempt else frozenset()
        self._file: int | None = None

    def new_of(self, rows: "RecordBatch") -> "RecordBatch":
        """The rows that no earlier attempt of this task has recorded."""
        if not self._before:
            return rows
        from pyarrow import array  # noqa: PLC0415 - only Spark's workers have to load it

        keys = rows.column(KEY).to_pylist()
        return rows.take(array([place for place, key in enumerate(keys) if key not in self._before], "int64"))

    def add(self, keys: Sequence[str]) -> None:
        """Record that these were posted; returns when the disk has it."""
        if not keys:
            return
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _write_all(self._file, "".join(f"{json.dumps({KEY: key})}\n" for key in keys).encode())
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _keys(folder: Path, pattern: str) -> frozenset[str]:
    found = set()
    for path in folder.glob(pattern):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # half a line: that process was killed while writing it
                found.add(str(json.loads(line)[KEY]))
    return frozenset(found)
