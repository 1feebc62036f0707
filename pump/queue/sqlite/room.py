"""Room on the disk. Pushes end before it is full, so that what is stored can still be handed out, settled and removed.

Whatever is written goes into the log of changes (WAL) first, and a checkpoint may then need as much room again in the
file before it empties the log. So even removing needs room. A push leaves that much free, and some megabytes more. If
others fill the disk, a reserve beside the file is given up.
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pump.queue.causes import of_number
from pump.queue.errors import QueueUnavailable

log: Final = logging.getLogger("pump.queue.sqlite")

LARGEST_RESERVE_BYTES: Final = 8_000_000
SHARE_OF_DISK: Final = 0.2
"""The reserve is at most this share of a small disk."""


class Room:
    """The room that one queue's file has, for every process that uses the file."""

    def __init__(self, path: Path, *, reserve: bool) -> None:
        """With `reserve`, a file of that size is kept beside the queue's file."""
        self._path: Final = path
        self._log: Final = path.with_name(f"{path.name}-wal")
        self._reserve: Final = path.with_name(f"{path.name}-reserve") if reserve else None

    def must_be_left(self, size: int, within: Callable[[], int]) -> None:
        """Refuse a push of this size if too little room would be left; `within` tells how much the file has inside."""
        found = self._found()
        if found is None:
            return
        free, reserve = found
        left = free + self._reserved() - reserve - size
        if left >= self.log_bytes() + size + reserve:
            return
        if left < 0 or within() < self.log_bytes() + size:  # else the file does not grow
            cause = of_number(errno.ENOSPC)
            raise QueueUnavailable(f"database connection unavailable: {self._path.name}: {cause.words}", cause)

    def log_bytes(self) -> int:
        """The size of the log of changes."""
        try:
            return os.stat(self._log).st_size  # noqa: PTH116 - as in `file_at`
        except OSError:
            return 0

    def is_given_up(self) -> bool:
        """Whether there should be a reserve and is none."""
        return self._reserve is not None and not self._reserved()

    def give_up(self) -> None:
        """Remove the reserve, as the disk is full."""
        if self._reserve is not None:
            with suppress(OSError):
                self._reserve.unlink()
                log.warning("%s has no more room on its disk: its reserve was given up", self._path.name)

    def keep(self) -> None:
        """Make the reserve, if it is missing and there is more room than that."""
        found = self._found()
        if self._reserve is None or found is None or self._reserved():
            return
        free, reserve = found
        if free < 1.5 * reserve:
            return
        try:
            file = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(file, 0, reserve)
        except OSError:
            with suppress(OSError):
                self._reserve.unlink()
        finally:
            os.close(file)

    def _reserved(self) -> int:
        if self._reserve is None:
            return 0
        try:
            return os.stat(self._reserve).st_size  # noqa: PTH116 - as in `file_at`
        except OSError:
            return 0

    def _found(self) -> tuple[int, int] | None:
        """How much is free on the disk, and the size of a reserve; None if the system does not say."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return None
        disk = found.f_blocks * found.f_frsize
        if not disk:
            return None
        return found.f_bavail * found.f_frsize, min(LARGEST_RESERVE_BYTES, int(disk * SHARE_OF_DISK))
