"""Several worker processes of one dispatcher: started, restarted when they die, stopped with their supervisor.

A worker is a new interpreter, since a fork would not copy threads. Supervisor and worker hold the two ends of a socket.
When the supervisor dies its end is closed, and the worker stops as on SIGTERM: it finishes the messages it has begun.
Linux's signal on the parent's death is no help: it is sent when the thread that started the worker ends.
"""

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Final, TypeAlias

from pump.clock import Clock, Signal, SystemClock
from pump.process_signals import LOOK_UP_SECONDS, handling

log: Final = logging.getLogger("pump.workers")

FINAL_STATUSES: Final = frozenset({1, 2})
"""Worker statuses after which it is not started again: its pumps stopped by themselves, or its set-up is wrong."""

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0
_HEALTHY: Final = 60.0
"""After a worker has run for this many seconds, its next restart has the first delay again."""
_GRACE: Final = 10.0
"""The grace in seconds that is assumed until the worker has sent its own."""
_MARGIN: Final = 5.0
"""How many seconds longer than its grace a worker may take to end before it is killed."""
_WATCH_INTERVAL: Final = 0.5
"""The time between two looks at the watched files, in seconds."""
_real_clock: Final = SystemClock()

Snapshot: TypeAlias = Mapping[str, tuple[int, int]]
"""Files, with the time of their last change and their size."""


class SupervisorLink:
    """The worker's end of the socket: sends its grace to the supervisor; ends the worker when that one is gone."""

    def __init__(self, descriptor: int) -> None:
        self._socket: Final = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._clock: Final = SystemClock()
        self._grace = _GRACE
        threading.Thread(target=self._wait_for_end, name="pump-supervisor-link", daemon=True).start()

    def send_grace(self, grace: float) -> None:
        """Send how many seconds a stop may take."""
        self._grace = grace
        with suppress(OSError):  # the supervisor is gone: the other thread ends the worker
            self._socket.sendall(f"{grace}\n".encode())

    def _wait_for_end(self) -> None:
        with suppress(OSError):
            self._socket.recv(1)
        log.error("the supervisor is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        self._clock.wait(Signal(), self._grace + _MARGIN)
        os._exit(1)


class Worker:
    """One worker process, from its start to its end."""

    def __init__(self, command: Sequence[str], ended: Callable[[], None], clock: Clock) -> None:
        self.began: Final = clock.monotonic()
        self.status: int | None = None
        """Its exit status; None while it runs, negative if a signal ended it."""
        self.kill_at = inf
        """When to kill it; infinite until it is asked to stop."""
        self._clock: Final = clock
        self._ended: Final = ended
        self._grace = _GRACE
        self._socket, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            # A group of its own: a terminal's Ctrl-C reaches the supervisor alone, which passes it on once.
            self._process: Final = subprocess.Popen(  # noqa: S603 - this same interpreter, on this same program
                [*command, "--supervisor", str(end)], pass_fds=[end], stdin=subprocess.DEVNULL, process_group=0
            )
        self.pid: Final = self._process.pid
        threading.Thread(target=self._receive_grace, name="pump-worker-grace", daemon=True).start()
        threading.Thread(target=self._wait, name="pump-worker-wait", daemon=True).start()

    def stop(self) -> None:
        """Ask it to end within its grace."""
        if self.kill_at == inf:
            self.kill_at = self._clock.monotonic() + self._grace + _MARGIN
            self._process.terminate()

    def kill(self) -> None:
        """End it at once. The messages that it was handling come again."""
        self._process.kill()

    def _receive_grace(self) -> None:
        with self._socket, self._socket.makefile() as lines, suppress(OSError, ValueError):
            self._grace = float(lines.readline())
            lines.read()

    def _wait(self) -> None:
        self.status = self._process.wait()
        self._ended()


class _Slot:
    """One of the N workers: the process at present, and when the next one starts."""

    def __init__(self, name: str, start: Callable[[], Worker], clock: Clock, after_end: str) -> None:
        self.worker: Worker | None = None
        self.status = 0
        """The exit status of a worker that is not started again."""
        self._name = name
        self._start = start
        self._clock = clock
        self._after_end = after_end
        self._next_start = 0.0
        self._deaths = 0

    @property
    def due(self) -> float:
        """When `update` next has something to do, if the worker does not end before; infinite if never."""
        return self._next_start if self.worker is None else self.worker.kill_at

    def update(self) -> None:
        """Start, restart or kill the worker if it is time to."""
        now, worker = self._clock.monotonic(), self.worker
        if worker is not None and worker.status is not None:
            self._worker_ended(worker, worker.status, now)
        elif worker is not None and now >= worker.kill_at:
            log.error("%s does not end: killing process %d", self._name, worker.pid)
            worker.kill_at = now + _MARGIN
            worker.kill()
        elif worker is None and now >= self._next_start:
            self._start_worker(now)

    def stop(self, *, restart: bool) -> None:
        """Stop the worker; with `restart`, start another one when it has ended."""
        self._next_start, self._deaths = 0.0 if restart else inf, 0
        if self.worker is not None:
            self.worker.stop()

    def _start_worker(self, now: float) -> None:
        try:
            self.worker = self._start()
        except OSError as error:
            self._start_later(f"cannot be started: {error}", now)
        else:
            log.info("%s is process %d", self._name, self.worker.pid)

    def _worker_ended(self, worker: Worker, status: int, now: float) -> None:
        self.worker = None
        if worker.kill_at < inf:  # it was asked to stop
            return
        if status in FINAL_STATUSES:
            self._next_start, self.status = inf, status
            log.error("%s ended with status %d, and %s", self._name, status, self._after_end)
            return
        self._deaths = 0 if now - worker.began > _HEALTHY else self._deaths
        self._start_later(_cause(status), now)

    def _start_later(self, cause: str, now: float) -> None:
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0**self._deaths)
        self._next_start, self._deaths = now + delay, min(self._deaths + 1, 64)
        log.error("%s %s; the next one starts in %g s", self._name, cause, delay)


class Supervisor:
    """Keeps N workers running until a signal, or until all of them have ended for good.

    With a folder to watch, all are restarted whenever a .py file in it has changed, those that ended for good too.
    """

    def __init__(
        self, command: Sequence[str], workers: int, *, watched: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._clock: Final = clock or SystemClock()
        self._wake: Final = Signal()
        self._signals: list[int] = []
        self._watched: Final = watched
        self._last_snapshot: Snapshot = {} if watched is None else snapshot(watched)
        after_end = "is not started again" if watched is None else "starts again when a file has changed"
        start = partial(Worker, command, self._wake.set, self._clock)
        self._slots: Final = [
            _Slot(f"worker {number} of {workers}", start, self._clock, after_end) for number in range(1, workers + 1)
        ]

    def run(self) -> int:
        """Return the exit status of the process: 0 after a signal, else the highest one of the workers."""
        with handling(self._on_signal):
            while not self._over:
                self._wake.clear()
                self._turn()
                if not self._over:
                    self._wait(self._seconds_until_due())
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return 0 if self._signals else max(slot.status for slot in self._slots)

    def _wait(self, seconds: float | None) -> None:
        if seconds is None:
            _real_clock.wait(self._wake, LOOK_UP_SECONDS)  # signals come in real time, whatever the clock
        else:
            self._clock.wait(self._wake, seconds)

    @property
    def _over(self) -> bool:
        ended = all(slot.worker is None and slot.due == inf for slot in self._slots)
        return ended and (self._watched is None or bool(self._signals))

    def _turn(self) -> None:
        if self._signals:
            for slot in self._slots:
                slot.stop(restart=False)
        elif self._watched is not None and (changed := self._changes(self._watched)):
            log.info("%s changed: starting again", ", ".join(changed))
            for slot in self._slots:
                slot.stop(restart=True)
        for slot in self._slots:
            slot.update()
            if len(self._signals) > 1 and slot.worker is not None:
                slot.worker.kill()

    def _seconds_until_due(self) -> float | None:
        due = min(slot.due for slot in self._slots) - self._clock.monotonic()
        if self._watched is not None:
            due = min(due, _WATCH_INTERVAL)
        return None if due == inf else max(0.0, due)

    def _changes(self, folder: Path) -> Sequence[str]:
        before, now = self._last_snapshot, snapshot(folder)
        self._last_snapshot = now
        return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))

    def _on_signal(self, number: int, _frame: FrameType | None = None) -> None:
        self._signals.append(number)
        self._wake.set()


def snapshot(folder: Path) -> Snapshot:
    """The .py files beneath a folder, without hidden folders and virtual environments."""
    found: dict[str, tuple[int, int]] = {}
    for path, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__", "node_modules"))]
        for name in files:
            if name.endswith(".py"):
                with suppress(OSError):  # it was removed meanwhile, which is a change too
                    state = Path(path, name).stat()
                    found[str(Path(path, name).relative_to(folder))] = (state.st_mtime_ns, state.st_size)
    return found


def _cause(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    names = {int(each): each.name for each in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}"
