"""The speed of the disk, printed beside the figures that depend on it."""

import os
import tempfile
import time
from pathlib import Path

PAGE = b"\0" * 8192
SECONDS = 1.0


def fdatasync_per_second(folder: Path) -> float:
    """How many pages a second can be appended to a file in the folder, each made durable before the next."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        number = 0
        start = time.perf_counter()
        while time.perf_counter() < start + SECONDS:
            os.pwrite(file.fileno(), PAGE, 0)
            os.fdatasync(file.fileno())
            number += 1
        return number / (time.perf_counter() - start)
