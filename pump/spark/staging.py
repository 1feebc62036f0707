"""The staging log: messages are safe on a disk, under a name that nobody can give twice, before they are acknowledged.

A stream reads in ticks, and each tick in parts. What belongs to a part is decided once and for ever: whoever reads it
first writes a segment (a Parquet file) and then publishes a manifest that names it. Publishing is one link, which
succeeds for one of any number of attempts, on a local disk and on NFS alike. The winner acknowledges its messages. All
others hand theirs back and serve the winner's segment. So each acknowledged message is in exactly one part, and each
attempt at a part yields the same rows.

Segments are removed once the batch that has them is committed. Manifests stay for a day: without its manifest, an
attempt that comes late would win again, and acknowledge messages that no batch ever has.

The folder must be one that the driver and all executors share, with hard links: a local disk for `local[…]`, or NFS or
the like for a cluster; an object store is none.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from pump.errors import ConfigurationError, PumpError, SetupError

TICKS_IN_A_FOLDER: Final = 1000
TOMBSTONE_SECONDS: Final = 86_400.0
"""How long a manifest outlives its segment: longer than any task runs."""
ROWS_AT_ONCE: Final = 10_000
_MARKER: Final = "epoch.json"
_MANIFEST: Final = ".manifest"
_SEGMENT: Final = ".parquet"
_TEMPORARY: Final = ".tmp"


class LateAttempt(PumpError):  # noqa: N818 - it says what happened
    """The part that this task reads was committed meanwhile, and its segment removed. Nobody needs the task's rows."""


class Slot(NamedTuple):
    """One part of one tick, in one epoch: the life of one checkpoint."""

    epoch: str
    tick: int
    part: int

    def __str__(self) -> str:
        return f"part {self.part} of tick {self.tick} in epoch {self.epoch}"


class Staged(NamedTuple):
    """What a manifest says: the file with the rows, or "" if there are none."""

    segment: str
    rows: int


def folder_of(text: str, what: str) -> Path:
    """The folder that an option names: an absolute path or a file: URL. ConfigurationError for anything else."""
    parts = urlsplit(text)
    if parts.scheme not in {"", "file"} or parts.netloc:
        raise ConfigurationError(
            f"{what} must be a folder of a file system that the driver and all executors share, not {parts.scheme}://: "
            "an object store has no hard links"
        )
    folder = Path(unquote(parts.path) if parts.scheme else text)
    if not folder.is_absolute():
        raise ConfigurationError(f"{what} must be an absolute path, since executors run in other folders, not {text!r}")
    return folder


class StagingLog:
    """The staging log in one folder. Making one touches nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._collected: dict[str, int] = {}
        """Up to which folder of ticks the segments of an epoch were removed here."""

    # -- epochs

    def begin(self, epoch: str, about: Mapping[str, str]) -> None:
        """Make the epoch known to all who share the folder. SetupError if the folder cannot hold a staging log."""
        folder = self.folder / epoch
        try:
            _make_folder(folder)
            _create(folder / _MARKER, json.dumps(dict(about)))
        except OSError as error:
            raise SetupError(f"the staging folder {self.folder} cannot be used: {error}") from error

    def require(self, epoch: str) -> None:
        """SetupError unless the epoch is known here: then the folder is not the one that the driver has."""
        if not (self.folder / epoch / _MARKER).exists():
            raise SetupError(
                f"the staging folder {self.folder} does not know the epoch {epoch}: it was emptied, or this machine "
                "does not share it with the driver"
            )

    def epochs(self) -> dict[str, Mapping[str, str]]:
        """What was said about each epoch when it began."""
        markers = sorted(self.folder.glob(f"*/{_MARKER}"))
        return {each.parent.name: json.loads(each.read_text()) for each in markers}

    # -- parts

    def find(self, slot: Slot) -> Staged | None:
        """What is published for the part; None if nothing is yet."""
        with suppress(FileNotFoundError):
            return Staged(**json.loads(self._manifest(slot).read_bytes()))
        return None

    def stage(self, slot: Slot, rows: pa.RecordBatch) -> Staged:
        """Write a segment, safe on the disk and named by nothing yet."""
        if not rows.num_rows:
            return Staged("", 0)
        folder = self._folder(slot)
        _make_folder(folder)
        name = f"{_stem(slot)}-{uuid4().hex}{_SEGMENT}"
        write_durably(rows, folder / name)
        return Staged(name, rows.num_rows)

    def publish(self, slot: Slot, staged: Staged) -> bool:
        """Decide that this is the part, for ever. False if another attempt has decided before."""
        manifest = self._manifest(slot)
        _make_folder(manifest.parent)
        return _create(manifest, json.dumps(staged._asdict()))

    def serve(self, slot: Slot, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The rows of a published part. LateAttempt if they were removed, since they are committed."""
        if not staged.rows:
            return
        try:
            with pq.ParquetFile(self._folder(slot) / staged.segment) as file:
                yield from file.iter_batches(batch_size=ROWS_AT_ONCE)
        except FileNotFoundError as error:
            raise LateAttempt(f"{slot} is committed, and its rows are removed") from error

    def rows(self, epoch: str, tick: int, parts: int) -> int | None:
        """How many rows the tick has; None as long as not every part is published."""
        staged = [self.find(Slot(epoch, tick, part)) for part in range(parts)]
        return None if None in staged else sum(each.rows for each in staged if each is not None)

    def uncommitted(self, epoch: str) -> Iterator[tuple[Slot, Staged]]:
        """The parts whose messages are acknowledged, and whose segments are still here, in order."""
        for manifest in sorted((self.folder / epoch).glob(f"*/*{_MANIFEST}")):
            staged = Staged(**json.loads(manifest.read_bytes()))
            if staged.segment and (manifest.parent / staged.segment).exists():
                tick, part = manifest.name.removesuffix(_MANIFEST).split("-")
                yield Slot(epoch, int(tick), int(part)), staged

    def segment(self, slot: Slot, staged: Staged) -> Path:
        """The file with the rows of a part."""
        return self._folder(slot) / staged.segment

    # -- what is committed

    def collect(self, epoch: str, tick: int) -> None:
        """Remove the segments of all ticks up to this one: Spark has committed the batches that have them."""
        last = tick // TICKS_IN_A_FOLDER
        first = self._collected.get(epoch, 0)
        for folder in self._folders(epoch):
            if first <= int(folder.name) <= last:
                _remove_segments(folder, tick)
        if last > first or epoch not in self._collected:
            self._remove_tombstones(epoch, last)
        self._collected[epoch] = last

    def _remove_tombstones(self, epoch: str, last: int) -> None:
        """Remove what is committed for so long that no attempt at it can be running."""
        oldest = time.time() - TOMBSTONE_SECONDS
        for folder in self._folders(epoch):
            if int(folder.name) < last and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)  # what is left goes the next time

    def _folders(self, epoch: str) -> list[Path]:
        return sorted(each for each in (self.folder / epoch).glob("*") if each.name.isdecimal())

    def _folder(self, slot: Slot) -> Path:
        return self.folder / slot.epoch / f"{slot.tick // TICKS_IN_A_FOLDER:09d}"

    def _manifest(self, slot: Slot) -> Path:
        return self._folder(slot) / f"{_stem(slot)}{_MANIFEST}"


def _stem(slot: Slot) -> str:
    return f"{slot.tick:012d}-{slot.part:04d}"


def _remove_segments(folder: Path, tick: int) -> None:
    for file in folder.iterdir():
        name = file.name.removeprefix(".")
        if name.endswith((_SEGMENT, _TEMPORARY)) and int(name.partition("-")[0]) <= tick:
            file.unlink(missing_ok=True)


# -- files that are whole, or not there


def write_durably(rows: pa.RecordBatch | pa.Table, file: Path) -> None:
    """Write a Parquet file. It is on the disk when this returns, and there is never a part of it under its name."""
    temporary = file.with_name(f".{file.name}{_TEMPORARY}")
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    try:
        with temporary.open("wb") as output:
            pq.write_table(table, output, compression="zstd")
            output.flush()
            os.fsync(output.fileno())
        temporary.rename(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def _create(file: Path, text: str) -> bool:
    """Create the file with its content, as one step. False if there is one already."""
    temporary = file.with_name(f".{file.name}-{uuid4().hex}{_TEMPORARY}")
    try:
        with temporary.open("w") as output:
            output.write(text)
            output.flush()
            os.fsync(output.fileno())
        try:
            os.link(temporary, file)
            created = True
        except FileExistsError:
            created = temporary.stat().st_nlink > 1  # on NFS a repeated request fails although the first one succeeded
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(file.parent)
    return created


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder.parent.parent):
            _sync_folder(each)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
