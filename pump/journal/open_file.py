"""The file that a process writes at this moment: a stream of Arrow batches, which a kill can only cut at its end.

Its process holds a lock on it. When it is large or old enough it becomes a Parquet file of the same name; if the
process dies before, whoever next opens or compacts the journal makes the Parquet file.
"""

import fcntl
import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from pump.journal.events import SCHEMA, kind_of, whole
from pump.journal.files import OPEN, PART_ROWS, gathered, live, new_name, parquet_writer

log: Final = logging.getLogger("pump.journal")

_SUFFIX: Final = ".arrows"


class OpenFile:
    """One file of one process. What `append` has returned from survives a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        place = folder / OPEN
        place.mkdir(parents=True, exist_ok=True)
        self._path: Final = place / f"{new_name()}{_SUFFIX}"
        self._schema: pa.Schema = SCHEMA
        """That of the last batch: another one is written before its first batch."""
        partial = self._path.with_name(f".{self._path.name}")
        self._number = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX)  # before it has its name: nobody takes it for a dead process's
            self.size = 0
            self._write(SCHEMA.serialize())
            partial.rename(self._path)
        except BaseException:
            self.abandon()
            partial.unlink(missing_ok=True)
            raise

    def append(self, *several: pa.Table | pa.RecordBatch) -> None:
        """Add rows; they are on the disk when it returns. If it raises, the file is as before."""
        size, schema = self.size, self._schema
        try:
            for rows in several:
                self._add(rows)
            os.fsync(self._number)
        except BaseException:
            os.ftruncate(self._number, size)
            os.lseek(self._number, size, os.SEEK_SET)
            self.size, self._schema = size, schema
            raise

    def _add(self, rows: pa.Table | pa.RecordBatch) -> None:
        if not rows.schema.equals(self._schema, check_metadata=True):
            self._write(rows.schema.serialize())
            self._schema = rows.schema
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            self._write(batch.serialize())

    def _write(self, data: pa.Buffer) -> None:
        left = memoryview(data)
        while left:
            written = os.write(self._number, left)
            self.size += written
            left = left[written:]

    def close(self) -> None:
        """Make it a Parquet file. If that fails, it stays as it is, and the next one who opens the journal does it."""
        try:
            _convert(self._folder, self._path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close it as it is: after a fork the file is the parent's."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


def recover(folder: Path) -> int:
    """Make Parquet files of what dead processes left; returns how many."""
    found = 0
    for path in sorted((folder / OPEN).glob(f"[!.]*{_SUFFIX}")):
        try:
            number = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():  # nobody else has done it between the listing and the lock
                _convert(folder, path)
                found += 1
        except BlockingIOError:  # its process is alive
            continue
        except (pa.ArrowException, ValueError) as error:  # not one of ours: it stays, and stops nobody
            log.warning("journal %s: %s cannot be made a Parquet file: %s", folder, path.name, error)
        finally:
            os.close(number)
    return found


def _convert(folder: Path, path: Path) -> None:
    """Write the Parquet file and remove the stream, unless a process that died here had written it before."""
    file = folder / f"{path.stem}.parquet"
    if not file.exists() and not any(each.name == file.name for each in live(folder).replaced):
        batches = gathered(_whole(_batches(path)))
        first = next(batches, None)
        if first is not None:
            with parquet_writer(file, SCHEMA) as writer:
                for batch in itertools.chain([first], batches):
                    writer.write_batch(batch)
    with suppress(FileNotFoundError):
        path.unlink()


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with all columns: made for many batches of one kind at once, for each time costs much."""
    kinds: dict[Hashable, list[pa.RecordBatch]] = defaultdict(list)
    for batch in batches:
        same = kinds[kind_of(batch)]
        same.append(batch)
        if sum(map(len, same)) >= PART_ROWS:
            yield from whole(same).to_batches()
            same.clear()
    for same in filter(None, kinds.values()):
        yield from whole(same).to_batches()


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a stream; a cut one at its end was never confirmed to anybody."""
    if not path.stat().st_size:
        return
    schema: pa.Schema | None = None
    with pa.memory_map(str(path)) as source:
        while True:
            try:
                message = pa.ipc.read_message(source)
                if message.type == "schema":
                    schema = pa.ipc.read_schema(message)
                    continue
                batch = pa.ipc.read_record_batch(message, schema)
            except (EOFError, pa.ArrowException, OSError):
                return
            yield batch
