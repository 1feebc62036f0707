"""The files of a journal: their names, how one comes into being as a whole, and which of them count.

    FOLDER/*.parquet             what the pumps wrote
    FOLDER/open/*.arrows         what they write at this moment; see `open_file.py`
    FOLDER/compacted/*.parquet   many files merged into one, which says in its footer which files it replaces

A file appears under its name only when all of it is on the disk. A merged file takes the place of those that it
replaces in the moment in which it gets its name; they are removed long after that, so that who reads them is not
disturbed.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pump.errors import ConfigurationError

OPEN: Final = "open"
COMPACTED: Final = "compacted"
REPLACES: Final = b"pump.replaces"
"""The key in the footer of a merged file: a JSON list of names."""
PART_ROWS: Final = 131_072
"""How many rows a part of a file has, if there are so many."""
_WITHOUT_DICTIONARY: Final = {"time", "message_id", "posted", "handling_seconds", "settling_seconds", "sequence"}


def new_name() -> str:
    """A name that no other process, fork or machine gives: sorted by time, and a random number in it."""
    machine = re.sub(r"[^\w.]", "_", socket.gethostname())[:32]
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{now}-{machine}-{os.getpid()}-{os.urandom(6).hex()}"


@contextmanager
def parquet_writer(file: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A writer whose file appears under its name at the end of the block, or not at all."""
    partial = file.with_name(f".{file.name}.{os.urandom(4).hex()}.tmp")
    dictionary = [name for name in schema.names if name not in _WITHOUT_DICTIONARY]
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=dictionary) as writer:
            yield writer
        _sync(partial)
        partial.replace(file)
        _sync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_table(table: pa.Table, file: Path) -> None:
    """Write a table as one file that appears as a whole."""
    with parquet_writer(file, table.schema) as writer:
        writer.write_table(table)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: each becomes a part of a file, and many small parts are slow to read."""
    small: list[pa.RecordBatch] = []
    for batch in batches:
        small.append(batch)
        if sum(map(len, small)) >= PART_ROWS:
            yield from _merged(small)
            small = []
    yield from _merged(small)


def _merged(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    whole = pa.Table.from_batches(batches).combine_chunks() if batches else None
    return whole.to_batches() if whole else []


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Live(NamedTuple):
    """The files of a folder, each event in one of them."""

    written: Sequence[Path]
    merged: Sequence[Path]
    replaced: Sequence[Path]
    """Those that do not count any more, and are still there."""

    @property
    def all(self) -> Sequence[Path]:
        """The files that count."""
        return [*self.written, *self.merged]


def live(folder: Path) -> Live:
    """Which files count now.

    First those that pumps wrote are listed, then the merged ones: whatever is merged meanwhile, its event counts once.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no journal in {folder}: it is no folder")
    written, merged = _parquet(folder), _parquet(folder / COMPACTED)
    gone = frozenset(name for file in merged for name in replaces(file))
    return Live(
        [each for each in written if each.name not in gone],
        [each for each in merged if each.name not in gone],
        [each for each in (*written, *merged) if each.name in gone],
    )


def replaces(merged: Path) -> Sequence[str]:
    """The names of the files that a merged file replaces."""
    try:
        metadata = pq.read_metadata(merged).metadata or {}
    except FileNotFoundError:  # it was replaced itself and is removed; what it replaced is in the new one's list
        return ()
    names: list[str] = json.loads(metadata.get(REPLACES, b"[]"))
    return names


def _parquet(folder: Path) -> Sequence[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.suffix == ".parquet" and not each.name.startswith("."))
    except FileNotFoundError:
        return ()
