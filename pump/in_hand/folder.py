"""The folder in which the processes of one machine keep records for later processes."""

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pump.clock import Signal, SystemClock

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing can be kept
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS: Final = 2.0
"""How long to wait for another process that uses the folder. It needs a few milliseconds."""
_AGAIN_SECONDS: Final = 0.005

_in_process: Final = threading.RLock()
"""The lock on a file belongs to the whole process: its threads need this one besides."""
_clock: Final = SystemClock()


def default_folder() -> Path:
    """This user's folder among the machine's temporary files: the program finds it again after a restart."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir(), f"message-pump-{user}")


class StateFolder:
    """A folder of this user's alone, used by any number of processes and programs. OSError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise OSError("this system has no locks on files")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise OSError(f"{path} is not a folder that belongs to this user")
        self.path: Final = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within the block, no other process or thread changes the folder."""
        with _in_process:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._wait_for(descriptor)
                yield
            finally:
                os.close(descriptor)  # this unlocks it

    def _wait_for(self, descriptor: int) -> None:
        deadline = _clock.monotonic() + LOCK_SECONDS
        while not try_to_lock(descriptor):
            if _clock.monotonic() > deadline:
                raise OSError(f"another process has locked {self.path} for {LOCK_SECONDS:g} s")
            _clock.wait(Signal(), _AGAIN_SECONDS)


def try_to_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or this process ends in any way; False if another process has the lock.

    A child process does not inherit the lock, so one that lives longer does not keep it.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
