"""`pump spark recover`: messages that were staged and acknowledged, and whose checkpoint is lost.

A stream acknowledges a message once it is in the staging log; from then on its checkpoint leads to it. If the
checkpoint is deleted, the messages of batches that were not committed are in the staging log only. The last batch that
was committed is there too, since Spark tells the source of a commit when it plans the next batch.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from pump.errors import ConfigurationError
from pump.spark.columns import SCHEMA, messages_of
from pump.spark.sink.options import SinkOptions
from pump.spark.sink.posting import Posting
from pump.spark.staging import StagingLog, folder_of, write_durably

HEADINGS: Final = ("epoch", "channel", "broker", "ticks", "rows")


def list_left(folder: str) -> Iterator[str]:
    """A line for each epoch that has rows left."""
    log = StagingLog(folder_of(folder, "the staging folder"))
    lines = []
    for epoch, about in log.epochs().items():
        left = list(log.uncommitted(epoch))
        if left:
            ticks = [slot.tick for slot, _ in left]
            rows = sum(staged.rows for _, staged in left)
            lines.append((epoch, about["channel"], about["place"], f"{min(ticks)}-{max(ticks)}", str(rows)))
    widths = [max(map(len, column)) for column in zip(HEADINGS, *lines, strict=True)]
    for line in (HEADINGS, *lines) if lines else ():
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def export_left(folder: str, epoch: str, file: Path) -> int:
    """Write all rows that are left to one Parquet file, and remove nothing; returns how many they are."""
    log = _log_of(folder, epoch)
    batches = chain.from_iterable(log.serve(*each) for each in log.uncommitted(epoch))
    table = pa.Table.from_batches(batches, SCHEMA)
    write_durably(table, file.absolute())
    return int(table.num_rows)


def post_left(folder: str, epoch: str, url: str, topic: str) -> int:
    """Post all messages that are left to the topic, and remove each segment when all of its messages are confirmed.

    If this ends early, the next call goes on; what is posted twice then has the same id.
    """
    log = _log_of(folder, epoch)
    posting = Posting(SinkOptions.of({"url": url, "topic": topic}))
    try:
        posting.prepare(topic)
        for slot, staged in log.uncommitted(epoch):
            names = (f"{epoch}/{slot.tick}/{slot.part}/{row}" for row in range(staged.rows))
            for rows in log.serve(slot, staged):
                ids = [next(names) for _ in range(rows.num_rows)]
                posting.send(messages_of(rows, topic=topic, ids=ids))
            log.segment(slot, staged).unlink()
    finally:
        posting.close()
    return posting.count


def must_be_lost(epoch: str, checkpoint: str) -> None:
    """ConfigurationError if the checkpoint knows the epoch: then the query has only to be started again."""
    offsets = folder_of(checkpoint, "the checkpoint") / "offsets"
    if any(epoch in each.read_text() for each in offsets.glob("[0-9]*")):
        raise ConfigurationError(
            f"the epoch {epoch} is not lost: the checkpoint {checkpoint} has it. Start the query again, and it reads "
            "these rows by itself"
        )


def _log_of(folder: str, epoch: str) -> StagingLog:
    log = StagingLog(folder_of(folder, "the staging folder"))
    if epoch not in log.epochs():
        raise ConfigurationError(f"there is no epoch {epoch} in {folder}; it has {', '.join(log.epochs()) or 'none'}")
    return log
