"""Compaction: many small files of a journal become few large ones, while pumps write and others read.

The merged file replaces its inputs in the moment in which it gets its name, because it names them in its footer. A kill
before that leaves the inputs; a kill after it leaves inputs that do not count any more. They are removed `keep` later,
so that readers and streams that began before still find them.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.journal.files import COMPACTED, REPLACES, gathered, live, new_name, parquet_writer, replaces
from pump.journal.open_file import recover

_LOCK: Final = ".compaction"
_FULL_ROWS: Final = 4_000_000
"""A merged file with this many rows is not merged again."""
_ABANDONED_SECONDS: Final = 24 * 3600.0
_DAY_SECONDS: Final = 24 * 3600.0


class Compaction(NamedTuple):
    """What one compaction did."""

    before: int
    """How many files counted before."""
    after: int
    removed: int
    """How many files, replaced long ago, were removed."""
    recovered: int
    """How many files of dead processes were made whole."""


def compact(folder: str | Path, *, older: Duration = 60.0, keep: Duration = _DAY_SECONDS) -> Compaction:
    """Merge the files that are older than `older`, and remove those that were replaced longer ago than `keep`."""
    folder = Path(folder)
    found = live(folder)
    (folder / COMPACTED).mkdir(exist_ok=True)
    with _alone(folder):
        recovered = recover(folder)
        found = live(folder)
        removed = _remove(found.replaced, folder, seconds(keep))
        chosen = [*_older(found.written, seconds(older)), *_not_full(found.merged)]
        if len(chosen) > 1:
            _merge(folder, chosen)
        return Compaction(len(found.all), len(live(folder).all), removed, recovered)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    number = os.open(folder / COMPACTED / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"{folder} is being compacted by another process: wait until it is done"
            ) from error
        yield
    finally:
        os.close(number)


def _older(files: Sequence[Path], age: float) -> Sequence[Path]:
    latest = time.time() - age
    return [each for each in files if each.stat().st_mtime <= latest]


def _not_full(files: Sequence[Path]) -> Sequence[Path]:
    return [each for each in files if pq.read_metadata(each).num_rows < _FULL_ROWS]


def _merge(folder: Path, files: Sequence[Path]) -> None:
    merged = folder / COMPACTED / f"{new_name()}.parquet"
    source = ds.dataset([str(each) for each in files], format="parquet")
    # What an input has replaced, and is still there, is replaced by this file from now on.
    names = {each.name for each in files} | {name for each in files for name in _replaced(each)}
    kept = sorted(name for name in names if any((place / name).exists() for place in (folder, folder / COMPACTED)))
    schema = source.schema.with_metadata({REPLACES: json.dumps(kept).encode()})
    with parquet_writer(merged, schema) as writer:
        for batch in gathered(source.to_batches(batch_readahead=2, fragment_readahead=2)):
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _replaced(file: Path) -> Sequence[str]:
    return replaces(file) if file.parent.name == COMPACTED else ()


def _remove(files: Sequence[Path], folder: Path, keep: float) -> int:
    """Remove what was replaced before the time to keep it began, and what killed writers have left."""
    removed = 0
    replaced_at: dict[str, float] = {}
    for file in (folder / COMPACTED).glob("[!.]*.parquet"):  # a later one names it again: the first time counts
        for name in replaces(file):
            replaced_at[name] = min(file.stat().st_mtime, replaced_at.get(name, inf))
    for each in files:
        if time.time() - replaced_at[each.name] >= keep:
            each.unlink(missing_ok=True)
            removed += 1
    for place in (folder, folder / COMPACTED):
        for partial in place.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - partial.stat().st_mtime > _ABANDONED_SECONDS:
                    partial.unlink()
    return removed
