"""Several worker processes of one dispatcher, watched over and begun again; and what a worker owes its supervisor.

A worker is a fresh interpreter: nothing is forked that has threads. Supervisor and worker hold the two ends of a
socket, the leash. That is more portable than Linux's signal on the parent's death, which follows the thread that
started the child, and gentler: when the leash reads as closed, the worker stops as on SIGTERM, and finishes what it
has in hand.
"""

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, TypeAlias

from pump.clock import Clock, Signal, SystemClock
from pump.command.signals import on_signals

log: Final = logging.getLogger("pump.workers")

FINAL_STATUSES: Final = frozenset({1, 2})
"""A worker that ends so would do so again: its pumps have stopped by themselves, or its set-up is wrong."""

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0
_HEALTHY: Final = 60.0
"""After living for so long, a worker that dies counts as one that dies for the first time."""
_GRACE: Final = 10.0
"""In seconds, until the worker has told its own."""
_MARGIN: Final = 5.0
"""How much longer than its grace a worker may take to end before it is killed."""
_LOOK_AGAIN: Final = 0.5
"""Between two looks at the files, in seconds."""

Snapshot: TypeAlias = Mapping[str, tuple[int, int]]
"""Files, and what tells whether they have changed."""


class Leash:
    """A worker's end: it tells its grace, and ends when its supervisor does."""

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._socket: Final = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._clock: Final = clock
        self._grace = _GRACE
        threading.Thread(target=self._follow, name="pump-leash", daemon=True).start()

    def tell(self, grace: float) -> None:
        """Tell for how long a stop may have to wait."""
        self._grace = grace
        with suppress(OSError):  # the supervisor is gone: the other thread sees to that
            self._socket.sendall(f"{grace}\n".encode())

    def _follow(self) -> None:
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
        """What it ended with, once it has; negative for a signal."""
        self.kill_at = inf
        self._clock: Final = clock
        self._ended: Final = ended
        self._grace = _GRACE
        self._leash, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            # A group of its own: a terminal's Ctrl-C reaches the supervisor alone, which passes it on once.
            self._process: Final = subprocess.Popen(  # noqa: S603 - this same interpreter, on this same program
                [*command, "--leash", str(end)], pass_fds=[end], stdin=subprocess.DEVNULL, process_group=0
            )
        threading.Thread(target=self._listen, name="pump-worker-leash", daemon=True).start()
        threading.Thread(target=self._watch, name="pump-worker-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def asked(self) -> bool:
        """Whether it was asked to end."""
        return self.kill_at < inf

    def ask(self) -> None:
        """Ask it to end within its grace."""
        if not self.asked:
            self.kill_at = self._clock.monotonic() + self._grace + _MARGIN
            self._process.terminate()

    def kill(self) -> None:
        """End it at once. What it had in hand comes again."""
        self._process.kill()

    def _listen(self) -> None:
        with self._leash, self._leash.makefile() as lines, suppress(OSError, ValueError):
            self._grace = float(lines.readline())
            lines.read()

    def _watch(self) -> None:
        self.status = self._process.wait()
        self._ended()


class _Place:
    """One of so many workers: whoever it is at present, and when the next one begins."""

    def __init__(self, name: str, start: Callable[[], Worker], clock: Clock, for_good: str) -> None:
        self.worker: Worker | None = None
        self.status = 0
        """What it ended with for good."""
        self._name = name
        self._start = start
        self._clock = clock
        self._for_good = for_good
        self._next = 0.0
        self._deaths = 0

    @property
    def over(self) -> bool:
        return self.worker is None and self._next == inf

    @property
    def due(self) -> float:
        """When there is something to do here, unless something happens before."""
        return self._next if self.worker is None else self.worker.kill_at

    def tend(self) -> None:
        """Do what is to be done now."""
        now, worker = self._clock.monotonic(), self.worker
        if worker is not None and worker.status is not None:
            self._bury(worker, worker.status, now)
        elif worker is not None and now >= worker.kill_at:
            log.error("%s does not end: killing process %d", self._name, worker.pid)
            worker.kill_at = now + _MARGIN
            worker.kill()
        elif worker is None and now >= self._next:
            self._begin(now)

    def renew(self) -> None:
        """Have a new worker as soon as the present one has ended as asked."""
        self._next, self._deaths = 0.0, 0
        if self.worker is not None:
            self.worker.ask()

    def stop(self) -> None:
        """Have no worker any more."""
        self._next = inf
        if self.worker is not None:
            self.worker.ask()

    def _begin(self, now: float) -> None:
        try:
            self.worker = self._start()
        except OSError as error:
            self._again(f"cannot be started: {error}", now)
        else:
            log.info("%s is process %d", self._name, self.worker.pid)

    def _bury(self, worker: Worker, status: int, now: float) -> None:
        self.worker = None
        if worker.asked:
            return
        if status in FINAL_STATUSES:
            self._next, self.status = inf, status
            log.error("%s ended with status %d, and %s", self._name, status, self._for_good)
            return
        self._deaths = 0 if now - worker.began > _HEALTHY else self._deaths
        self._again(_cause(status), now)

    def _again(self, cause: str, now: float) -> None:
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0**self._deaths)
        self._next, self._deaths = now + delay, min(self._deaths + 1, 64)
        log.error("%s %s; the next one starts in %g s", self._name, cause, delay)


class Supervisor:
    """Keeps so many workers running until a signal, or until none of them would run any more.

    With a folder to watch, all are begun again whenever a .py file in it has changed, and one that ended for good too.
    """

    def __init__(
        self, command: Sequence[str], workers: int, *, watched: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._command: Final = command
        self._clock: Final = clock or SystemClock()
        self._wake: Final = Signal()
        self._signals: list[int] = []
        self._watched: Final = watched
        self._seen: Snapshot = {} if watched is None else snapshot(watched)
        for_good = "is not started again" if watched is None else "starts again when a file has changed"
        self._places: Final = [
            _Place(f"worker {number} of {workers}", self._start, self._clock, for_good)
            for number in range(1, workers + 1)
        ]

    def run(self) -> int:
        """Returns what the process should exit with: 0 after a signal, else the highest that a worker ended with."""
        with on_signals(self._note):
            while not self._over:
                self._wake.clear()
                self._turn()
                if not self._over:
                    self._clock.wait(self._wake, self._patience())
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return 0 if self._signals else max(place.status for place in self._places)

    @property
    def _over(self) -> bool:
        return all(place.over for place in self._places) and (self._watched is None or bool(self._signals))

    def _start(self) -> Worker:
        return Worker(self._command, self._wake.set, self._clock)

    def _turn(self) -> None:
        if self._signals:
            for place in self._places:
                place.stop()
        elif self._watched is not None and (changed := self._changes(self._watched)):
            log.info("%s changed: starting again", ", ".join(changed))
            for place in self._places:
                place.renew()
        for place in self._places:
            place.tend()
            if len(self._signals) > 1 and place.worker is not None:
                place.worker.kill()

    def _patience(self) -> float | None:
        due = min(place.due for place in self._places) - self._clock.monotonic()
        if self._watched is not None:
            due = min(due, _LOOK_AGAIN)
        return None if due == inf else max(0.0, due)

    def _changes(self, folder: Path) -> Sequence[str]:
        before, self._seen = self._seen, snapshot(folder)
        return sorted(name for name in {*before, *self._seen} if before.get(name) != self._seen.get(name))

    def _note(self, number: int) -> None:
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
                with suppress(OSError):  # gone since; that is a change by itself
                    state = Path(path, name).stat()
                    found[str(Path(path, name).relative_to(folder))] = (state.st_mtime_ns, state.st_size)
    return found


def _cause(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
