"""Settling: dead letters that a record says were posted are acknowledged in their channel, and so leave it.

A letter is acknowledged only after its redrive was confirmed and recorded, and only that letter: one with the same id
that failed at another time is another letter. A kill at any point leaves letters in the channel at worst; the next run
does not post them again, and acknowledges them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pump.clock import SystemClock
from pump.spark.posted import recorded_keys
from pump.transport_kit.bridge import blocking

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

    from pump.spark.source.options import SourceOptions

_REPORT: Final = "settled long, left_there long"
_clock: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class SettlingReport:
    """What came of it."""

    settled: int = 0
    left: int = 0
    """Letters that were seen, and stay in the channel: they are not recorded, or could not be acknowledged."""


def settle(session: "SparkSession", url: str, channel: str, record: Path) -> SettlingReport:
    """Acknowledge the dead letters of a channel that the record names, of those that `read_letters` sees."""
    from pump.spark.source.options import SourceOptions  # noqa: PLC0415 - only with a session

    options = SourceOptions.of({"url": url, "channel": channel})
    (found,) = session.range(0, 1, 1, 1).mapInArrow(_settling(options, record), _REPORT).collect()
    return SettlingReport(*found)


def _settling(options: "SourceOptions", record: Path) -> "Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]":
    """The function for `mapInArrow`, in one task: two would receive each other's letters."""

    def settle_all(batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        from pyarrow import RecordBatch  # noqa: PLC0415 - only Spark's workers have to load it

        for _ in batches:
            report = settle_recorded(options, recorded_keys(record))
            yield RecordBatch.from_pydict({"settled": [report.settled], "left_there": [report.left]})

    return settle_all


def settle_recorded(options: "SourceOptions", done: frozenset[str]) -> SettlingReport:
    """Receive what a batch read sees, acknowledge the letters with these keys, and hand back all others."""
    from pump.spark.columns import table_of  # noqa: PLC0415 - it loads pyarrow
    from pump.spark.source.batch import HeldBatch  # noqa: PLC0415 - only where a consumer is opened

    consumer = blocking(options.transport()).consumer(options.subscription())
    with closing(consumer), HeldBatch(consumer, _clock) as batch:
        most, most_bytes = options.messages_per_partition, options.bytes_per_partition
        batch.gather(most=most, most_bytes=most_bytes, window=options.window_seconds)
        batch.end()
        letters = batch.messages()
        keys = keys_of(table_of(letters, channel=options.channel, received=_clock.wall()))
        settled = batch.acknowledge([letter for letter, key in zip(letters, keys, strict=True) if key in done])
        batch.hand_back()
        return SettlingReport(settled, len(letters) - settled)


def keys_of(rows: "RecordBatch") -> Sequence[str]:
    """The name in the record of each dead letter: the same that `redrive` gives it."""
    from pyarrow import compute, int64  # noqa: PLC0415 - only Spark's workers have to load it

    failed = compute.struct_field(rows.column("dead_letter"), "last_failure")
    moments = compute.cast(compute.coalesce(failed, rows.column("timestamp")), int64()).to_pylist()
    names = (rows.column(name).to_pylist() for name in ("channel", "identity", "id", "body"))
    named = (
        (channel, identity or own or sha256(body).hexdigest(), moment)
        for channel, identity, own, body, moment in zip(*names, moments, strict=True)
    )
    return ["\t".join(str(part) for part in parts if part is not None) for parts in named]
