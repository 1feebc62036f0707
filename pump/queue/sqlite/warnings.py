"""Warnings of what may harm a queue in a SQLite file, before it does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

SAFE_SQLITE: Final = (3, 51, 3)
"""Older ones can, very rarely, corrupt a file that several connections write and checkpoint at the same time."""
LARGE_LOG_BYTES: Final = 64_000_000
"""The log of changes (WAL) is emptied at a sixteenth of this size, unless a reader prevents it."""


def too_old(version: tuple[int, ...]) -> Sequence[str]:
    """A warning if this SQLite has a defect that the queue can only make unlikely."""
    if version >= SAFE_SQLITE:
        return []
    found, fixed = (".".join(map(str, each)) for each in (version, SAFE_SQLITE))
    defect = f"SQLite {found} has a defect that can corrupt a file written by several processes"
    return [f"{defect}: use a Python with SQLite {fixed} or later"]


def log_too_large(path: Path, large: int) -> Sequence[str]:
    """A warning if a reader of an old state of the file prevents the log of changes from being emptied."""
    log = path.with_name(f"{path.name}-wal")
    try:
        size = log.stat().st_size
    except OSError:
        return []
    if size <= large:
        return []
    why = f"it cannot be emptied while a process reads an old state of {path.name}"
    return [f"{log.name} has {size / 1e6:.0f} MB, since {why}: let it end its transaction"]
