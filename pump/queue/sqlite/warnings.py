"""Warnings of what may harm a queue in a SQLite file, before it does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

LARGE_LOG_BYTES: Final = 64_000_000
"""The log of changes (WAL) is emptied at a sixteenth of this size, unless a reader prevents it."""


def log_too_large(path: Path, large: int) -> Sequence[str]:
    """A warning if the log of changes cannot be emptied, because a reader still sees an old state of the file."""
    log = path.with_name(f"{path.name}-wal")
    try:
        size = log.stat().st_size
    except OSError:
        return []
    if size <= large:
        return []
    why = f"it cannot be emptied while a process reads an old state of {path.name}"
    return [f"{log.name} has {size / 1e6:.0f} MB, since {why}: let it end its transaction"]
