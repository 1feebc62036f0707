"""Real programs for tests: started, read from, waited for with a deadline, and always ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

DEADLINE = 30.0
"""Longer than any wait that succeeds, also on a slow machine, in seconds."""

PUMP = (sys.executable, "-m", "pump")


class Program:
    """A running program; its standard output and standard error are read together, line by line."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._silent = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)
        self._listener.join(DEADLINE)
        if self._process.stdout is not None and self._silent:
            self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def says(self, text: str, times: int = 1) -> str:
        """Wait until the program has printed this so many times; returns all that it has printed."""
        with self._changed:
            said = self._changed.wait_for(lambda: self._silent or "".join(self._lines).count(text) >= times, DEADLINE)
        assert said, f"{text!r} was not said in time:\n{self.output}"
        assert self.output.count(text) >= times, f"{text!r} was not said:\n{self.output}"
        return self.output

    def ends(self) -> int:
        """Wait until the program has ended; returns its exit status."""
        try:
            return self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in time:\n{self.output}") from None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()


def pump(*arguments: str, folder: Path) -> Program:
    """`pump` with these arguments, running."""
    return Program([*PUMP, *arguments], folder)


def pump_run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`pump` with these arguments, ended."""
    return subprocess.run(
        [*PUMP, *arguments], cwd=folder, check=False, capture_output=True, text=True, timeout=DEADLINE
    )


def runs(name: str, folder: Path) -> None:
    """Run a program of the folder to its end, which must be a success without a word on standard error."""
    here = {**os.environ, "PYTHONPATH": str(folder)}  # tox keeps the folder of a program off its path
    ran = subprocess.run(
        [sys.executable, name], cwd=folder, env=here, check=False, capture_output=True, text=True, timeout=DEADLINE
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def eventually(happened: Callable[[], bool], what: str) -> None:
    """Wait until something outside of this process has happened."""
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not in time"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # without /proc, a zombie cannot be told apart
