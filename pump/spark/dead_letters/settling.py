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
from pump.errors import PumpError
from pump.spark.posted import recorded_keys
from pump.telemetry import log
from pump.transport_kit.bridge import blocking

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

    from pump.message import Message
    from pump.spark.source.options import SourceOptions
    from pump.transport_kit.protocol import Consumer

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
        chosen = [letter for letter, key in zip(letters, keys, strict=True) if key in done]
        settled = {id(letter) for letter in _acknowledged(consumer, chosen)}
        others = [letter for letter in letters if id(letter) not in settled]
        _hand_back(consumer, others)
        return SettlingReport(len(settled), len(others))


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


def _acknowledged(consumer: "Consumer", letters: "Sequence[Message]") -> "Iterator[Message]":
    """Acknowledge letters; those that this works for."""
    failed, why = 0, None
    for letter in letters:
        try:
            consumer.acknowledge(letter)
        except PumpError as error:  # it stays a dead letter, and the next run acknowledges it
            failed, why = failed + 1, error
        else:
            yield letter
    if why is not None:
        log.warning("spark: %d of %d redriven dead letters were not acknowledged: %s", failed, len(letters), why)


def _hand_back(consumer: "Consumer", letters: "Sequence[Message]") -> None:
    """Give letters back. What cannot be given back goes back by itself, when the consumer is closed."""
    if letters:
        try:
            consumer.hand_back(letters)
        except PumpError as error:
            log.warning("spark: %d dead letters come again later, not handed back: %s", len(letters), error)
