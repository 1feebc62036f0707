"""Keeps the processes of one broker, and ends them when it is told to, or when the test run dies in any way.

`Keeper` is the test's side. The file is also the program of the other side, which is the parent of all processes that
it starts, and adopts those that lose their parent or go into the background: none escapes. It watches the process of
the test run, not a pipe or the thread that started it: a test may fork, start brokers from threads, or be killed by
kill -9.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":  # as a program it runs isolated, so this is how it finds the modules beside it
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from brokers.processes import Process, descendants, process_of, signal_all

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_SECONDS = 30.0
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Keeper:
    """Starts processes in a folder that it owns; `end` kills them all and removes the folder."""

    def __init__(self, folder: Path) -> None:
        self._owner = os.getpid()
        self._folder = folder
        with (folder / "keeper.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self._owner), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then end the brokers in good order
            )

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Process:
        """Start a program; its output goes to the log."""
        reply = self._ask({"start": list(command), "environment": dict(environment), "log": str(log)})
        pid, started = json.loads(reply)
        return Process(pid, started)

    def processes(self) -> list[Process]:
        """All processes that it started, and their descendants."""
        if self._process.poll() is not None:
            return []  # another process may have its pid by now
        return descendants(self._process.pid)

    def end(self) -> None:
        """Kill all processes, and remove the folder; in a forked copy of the test run, do nothing."""
        if os.getpid() != self._owner:
            return
        try:
            with contextlib.suppress(BrokenPipeError):
                self._tell({"end": True})
            self._process.wait(END_SECONDS)
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            shutil.rmtree(self._folder, ignore_errors=True)  # if the keeper was killed

    def _ask(self, request: Mapping[str, object]) -> bytes:
        self._tell(request)
        reply = self._process.stdout.readline() if self._process.stdout else b""
        if not reply:
            raise OSError(f"the keeper died: {(self._folder / 'keeper.log').read_text()}")
        return reply

    def _tell(self, request: Mapping[str, object]) -> None:
        if self._process.stdin:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()


def main(owner: int, folder: Path) -> None:
    """Serve the test run until it asks for the end, or dies; then end everything."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in ENDING:
        signal.signal(number, lambda *_: sys.exit())
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    try:
        _serve(owner)
    finally:
        _end(folder)


def _serve(owner: int) -> None:
    try:
        watch = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    requests = os.fdopen(0, "rb", buffering=0)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(requests, select.POLLIN)
    while os.getppid() == owner:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if watch in ready:
            return
        request = json.loads(requests.readline() or b'{"end": true}')
        if "end" in request:
            return
        process = _start(request["start"], request["environment"], request["log"])
        os.write(1, json.dumps(process).encode() + b"\n")


def _start(command: Sequence[str], environment: Mapping[str, str], log: str) -> Process:
    pid = os.fork()
    if pid == 0:
        _become(command, environment, log)
    return process_of(pid) or Process(pid, 0)


def _become(command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """In the child: become the program, or write the reason into the log and die."""
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # if the keeper itself is killed
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (*ENDING, *IGNORED_BY_PYTHON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(command[0], [*command], {**os.environ, **environment})  # noqa: S606 - no shell is wanted
    except BaseException as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end(folder: Path) -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(ChildProcessError):  # there are no more
        while True:
            signal_all(descendants(os.getpid()), signal.SIGKILL)
            os.waitpid(-1, 0)
    shutil.rmtree(folder, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
