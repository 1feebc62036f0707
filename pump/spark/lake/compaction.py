"""Compaction: the many small files of an archive become few large ones, without a message lost or there twice.

New files are written aside and counted. Then a plan is stored that names the old folders and the new ones; from there
on, whoever finds the plan carries it out: new folders are moved into place, old ones are removed, then the plan. A
batch that its query may write again is left alone.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pump.errors import ConfigurationError, SetupError
from pump.in_hand.folder import try_to_lock
from pump.spark.lake.archive import PARTITIONS, Archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_OF_A_FILE: Final = 2_000_000
_PLAN: Final = "compaction.json"
_ASIDE: Final = "compacting"
_LOCK: Final = "compaction.lock"
_BATCH: Final = re.compile(r"batch=([0-9a-f]+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction has done."""

    files_before: int
    files_after: int


def compact(session: "SparkSession", archive: Archive) -> Compacted:
    """Merge the files of each day and channel; finish what a killed compaction has begun."""
    if archive.table_format == "delta":
        return _compact_delta(archive)
    with _alone(archive):
        carry_out(archive)
        before, olds = _files(archive), _worth_it(archive)
        if olds:
            _write_aside(session, archive, olds)
        carry_out(archive)
        return Compacted(before, _files(archive))


def carry_out(archive: Archive) -> None:
    """Carry out the plan, if there is one. Each step may be done again."""
    aside, file = archive.folder / _ASIDE, archive.folder / _PLAN
    if file.exists():
        plan = json.loads(file.read_text())
        for new in plan["new"]:
            if (aside / new).exists():
                (archive.table / new).parent.mkdir(parents=True, exist_ok=True)
                (aside / new).rename(archive.table / new)
        for old in plan["old"]:
            shutil.rmtree(archive.table / old, ignore_errors=True)
        file.unlink()
    shutil.rmtree(aside, ignore_errors=True)


def _write_aside(session: "SparkSession", archive: Archive, olds: Sequence[str]) -> None:
    """Write the messages of these folders aside, and store the plan."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only with a session

    aside = archive.folder / _ASIDE
    name = f"c{uuid4().hex[:12]}"
    messages = archive.read(session, [archive.table / old for old in olds])
    count = messages.count()
    whole = messages.withColumn("batch", f.lit(name)).repartition("day", "channel")
    ordered = whole.sortWithinPartitions("day", "channel", "received")
    writer = ordered.write.mode("overwrite").option("maxRecordsPerFile", ROWS_OF_A_FILE)
    writer.partitionBy(*PARTITIONS).parquet(str(aside))
    news = sorted(str(each.relative_to(aside)) for each in aside.glob(f"*/*/batch={name}"))
    written = session.read.parquet(*(str(aside / each) for each in news)).count() if news else 0
    if written != count:
        shutil.rmtree(aside, ignore_errors=True)
        raise SetupError(f"{written} of {count} messages were written: nothing was changed; run the compaction again")
    _store(archive.folder / _PLAN, {"old": olds, "new": news})


def _worth_it(archive: Archive) -> list[str]:
    """The folders of batches that are there for good, of each day and channel with more than one file of them."""
    last = {each.epoch: each.committed for each in archive.checkpoints()}
    found: list[str] = []
    for channel in sorted(archive.table.glob("day=*/channel=*")):
        settled = [each for each in sorted(channel.glob("batch=*")) if _is_settled(each.name, last)]
        if sum(1 for each in settled for _ in each.glob("*.parquet")) > 1:
            found += [str(each.relative_to(archive.table)) for each in settled]
    return found


def _is_settled(name: str, last: dict[str, int]) -> bool:
    """Whether no query writes this batch again: it is committed, or its query is gone, or it was compacted."""
    found = _BATCH.fullmatch(name)
    return found is None or int(found[2]) <= last.get(found[1], int(found[2]))


def _compact_delta(archive: Archive) -> Compacted:
    import deltalake  # noqa: PLC0415 - the archive was made with it

    table = deltalake.DeltaTable(str(archive.table))
    before = len(table.file_uris())
    table.optimize.compact()
    return Compacted(before, len(table.file_uris()))


def _files(archive: Archive) -> int:
    return sum(1 for _ in archive.table.glob("day=*/channel=*/batch=*/*.parquet"))


def _store(file: Path, plan: object) -> None:
    """Store the plan: it is there as a whole, or not at all."""
    new = file.with_suffix(".new")
    with new.open("w") as out:
        json.dump(plan, out)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


@contextmanager
def _alone(archive: Archive) -> Iterator[None]:
    descriptor = os.open(archive.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_to_lock(descriptor):
            raise ConfigurationError(f"another compaction of {archive.folder} is running")
        yield
    finally:
        os.close(descriptor)
