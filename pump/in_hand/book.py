"""What earlier processes of this machine knew of messages: attempts that the broker does not know of."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from pump.clock import SystemClock
from pump.in_hand.folder import StateFolder
from pump.telemetry import log

CAPACITY: Final = 2_000
"""The most records, for all channels together; the oldest are dropped."""
LIFETIME: Final = 24 * 3600.0
"""Seconds after its last writing when a record is dropped."""
_NAME: Final = "book.json"


class Record(NamedTuple):
    """What is known of one message's earlier runs."""

    attempts: int = 0
    """Runs that count, also those that ended with their process."""
    shared: int = 0
    """How many processes died with this message and others in hand: it may have been the cause."""
    explained: int = 0
    """How many of the message's unexplained deliveries this record explains."""
    judged: int | None = None
    """If the broker's count is higher than this, one more is explained."""
    died: bool = False
    """Whether the last of the attempts ended with its process."""
    written: float = 0.0
    """When the record was written, in seconds since the epoch."""

    @property
    def says_anything(self) -> bool:
        """Whether the next process would judge the message otherwise without it."""
        return bool(self.attempts or self.shared or self.explained or self.judged is not None)

    def explained_at(self, count: int) -> int:
        """How many unexplained deliveries are explained when the broker's count is `count`."""
        return self.explained + (self.judged is not None and count > self.judged)


Records = dict[str, Record]
"""By channel and message."""


class Book:
    """The records of all channels, in one file of a folder. A failure to read or write is logged and never raised."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder: Final = folder
        self._file: Final = folder.path / _NAME
        self._now: Final = SystemClock().wall

    def read(self) -> Records:
        """All records; none, with a WARNING, if the file cannot be read."""
        try:
            found = json.loads(self._file.read_text("utf-8"))
            return {str(key): _record(value) for key, value in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, IndexError) as error:
            log.warning(
                "the attempts kept from an earlier process cannot be read, and are counted from 0 again: %s: %s",
                self._file,
                error,
            )
            return {}

    def change(self, change: Callable[[Records], None]) -> None:
        """Change the records while no other process does."""
        try:
            with self._folder.locked():
                records = self.read()
                before = dict(records)
                change(records)
                if records != before:
                    self._write(records)
        except OSError as error:
            log.warning("the attempts of messages cannot be kept for a restart: %s", error)

    def _write(self, records: Records) -> None:
        now = self._now()
        recent = [(key, record) for key, record in records.items() if now - record.written < LIFETIME]
        recent.sort(key=lambda item: item[1].written)
        new = self._file.with_suffix(".new")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(dict(recent[-CAPACITY:]), file)
            new.replace(self._file)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise

    def channel(self, name: str) -> "ChannelBook":
        """The records of one channel."""
        return ChannelBook(self, f"{name}/")

    def dated(self, record: Record) -> Record:
        """The record with the present time as its time of writing."""
        return record._replace(written=self._now())


class ChannelBook:
    """The records of one channel, by message identity."""

    def __init__(self, book: Book, prefix: str) -> None:
        self._book: Final = book
        self._prefix: Final = prefix

    def read(self) -> Mapping[str, Record]:
        """The records that earlier processes have left."""
        start = len(self._prefix)
        return {key[start:]: record for key, record in self._book.read().items() if key.startswith(self._prefix)}

    def write(self, records: Mapping[str, Record | None]) -> None:
        """Replace records; None removes one."""

        def change(found: Records) -> None:
            for identity, record in records.items():
                found.pop(self._prefix + identity, None)
                if record is not None:
                    found[self._prefix + identity] = self._book.dated(record)

        self._book.change(change)


def _record(fields: list[object]) -> Record:
    """A record as it was written; ValueError or TypeError for anything else."""
    judged = fields[3]
    numbers = [*fields[:3], 0 if judged is None else judged]
    written = fields[5]
    if not all(isinstance(each, int) and each >= 0 for each in numbers) or not isinstance(written, int | float):
        raise ValueError(f"{fields} is not a record")
    return Record(*fields)  # type: ignore[arg-type]  # checked above
