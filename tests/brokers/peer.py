"""A private broker: a test starts, kills, restarts and pauses it, and it is always ended."""

import signal
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NoReturn, Self

from brokers import ports, processes
from brokers.keeper import Keeper
from brokers.ports import Port
from brokers.processes import Process
from brokers.waiting import LONG, wait_until

TAIL_LINES = 40
NOT_MEASURED = {"COVERAGE_PROCESS_CONFIG": ""}
"""The environment of a process whose coverage is not measured: measuring takes a third of its time."""


class BrokerFailed(Exception):  # noqa: N818 - it says what happened
    """A broker did not do what a test asked for; the text of the error ends with the end of the broker's log."""


class Peer(ABC):
    """A private broker on loopback ports, with its data in a temporary folder.

    Use it as a context manager. It is running on entry; on exit all of its processes and files are removed. They are
    also removed if the test run ends in any other way, including kill -9.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM
    """The signal that asks it to end gracefully."""
    port: int

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"pump-{self.name}-"))
        self.log = self.folder / "log"
        self._keeper = Keeper(self.folder)
        self._ports: list[Port] = []
        self._main: Process | None = None
        self._refusal = ""
        self._end = weakref.finalize(self, _end, self._keeper, self._ports)

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that clients connect to."""

    @abstractmethod
    def _launch(self) -> Process:
        """Start the processes; returns the main one, whose end is the end of the broker."""

    @abstractmethod
    def _greet(self) -> None:
        """Connect as a client; any exception means that the broker is not ready."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether its main process lives, paused or not."""
        return self._main is not None and self._main.is_alive

    def start(self) -> None:
        """Start it, on the ports and the data it had before, and return when it serves clients."""
        if self.is_running:
            raise BrokerFailed(f"{self.name} runs already")
        self.kill()  # processes that an earlier start may have left
        self._main = self._launch()
        self._wait(self._is_ready, "ready")

    def stop(self) -> None:
        """End it gracefully, as its operator would."""
        self.unpause()
        if self._main is not None:
            self._main.signal(self.stop_signal)
        self._wait(lambda: not self.is_running, "stopped")
        self.kill()  # its helpers

    def kill(self) -> None:
        """End all of its processes with kill -9, in the middle of whatever they do."""
        self._wait(self._is_killed, "killed")

    def restart(self) -> None:
        """Stop it gracefully if it runs, and start it again with the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open, the kernel still accepts new ones, nothing answers."""
        self._wait(self._is_paused, "paused")

    def unpause(self) -> None:
        """Let it go on where it was."""
        processes.signal_all(self.processes(), signal.SIGCONT)

    def revive(self) -> None:
        """Make it run, whatever was done to it before."""
        self.unpause()
        if not self.is_running:
            self.start()

    def close(self) -> None:
        """End it, and remove its folder; it cannot be started again."""
        self._end()

    def processes(self) -> list[Process]:
        """All of its living processes."""
        return self._keeper.processes()

    def listening(self) -> set[tuple[str, int]]:
        """The addresses and ports that it listens on."""
        return processes.listening(self.processes())

    def log_tail(self) -> str:
        """The last lines of what it printed and logged."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def fail(self, what: str) -> NoReturn:
        """Raise an error that shows the log's end."""
        raise BrokerFailed(f"{self.name}: {what}; the end of its log:\n{self.log_tail()}")

    def _reserve(self) -> int:
        port = Port()
        self._ports.append(port)
        return port.number

    def _run(self, *command: str | Path, **environment: str) -> Process:
        return self._keeper.start(list(map(str, command)), environment={**NOT_MEASURED, **environment}, log=self.log)

    def _is_ready(self) -> bool:
        if not self.is_running:
            self.fail("it ended while it started")
        if not ports.is_open(self.port):  # clients would try a refused connection for long
            return False
        try:
            self._greet()
        except Exception as error:
            self._refusal = f"; a client is told {error!r}"
            return False
        self._refusal = ""
        return True

    def _is_paused(self) -> bool:
        running = [process for process in self.processes() if process.state not in {"T", "Z"}]
        processes.signal_all(running, signal.SIGSTOP)  # also those that were forked meanwhile
        return not running

    def _is_killed(self) -> bool:
        alive = self.processes()
        processes.signal_all(alive, signal.SIGKILL)
        return not alive

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, deadline_seconds=LONG)
        except TimeoutError as error:
            self.fail(f"{error}{self._refusal}")


def _end(keeper: Keeper, ports: list[Port]) -> None:
    try:
        keeper.end()
    finally:
        for port in ports:
            port.release()
