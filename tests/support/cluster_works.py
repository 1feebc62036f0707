"""A program for performers on a cluster: each run of a job is noted, with the process and its executor."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import asyncio, os, signal, time
from dataclasses import dataclass
from pathlib import Path

from pump import *

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job(Command):
    name: str
    fate: str = "done"
    seconds: float = 0.0


def note(job):
    file = os.open(HERE / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{{job.name}} {{os.getpid()}} {{os.getppid()}} {{os.getcwd()}}\\n".encode())
    os.close(file)


def is_first(job):
    return (HERE / "runs").read_text().count(f"{{job.name}} ") == 1


def meet(job):
    if job.fate == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.fate == "rejected":
        raise RejectMessageAction("not wanted")
    if job.fate == "deferred" and is_first(job):
        raise DeferMessageAction(0.1)
    if job.fate == "refused" and is_first(job):
        raise DontAckAction
    if job.fate == "fails":
        raise ValueError(job.name)


class Worker(RequestHandler[Job]):
    def handle(self, job):
        note(job)
        time.sleep(job.seconds)
        meet(job)


class AsyncWorker(RequestHandler[Job]):
    async def handle(self, job):
        note(job)
        await asyncio.sleep(job.seconds)
        meet(job)


def make(handler, **options):
    return Dispatcher(
        {url!r},
        handlers=[handler],
        subscriptions=[
            Subscription(Job, channel="{channel}", topic="{channel}", dead_letter="{channel}.dead", **options)
        ],
        publications=[Publication(Job, topic="{channel}")],
        state_folder=HERE / "state",
    )


patient = dict(failure_backoff=(0.2, 1.0), may_block=True, dont_ack_delay=0.1, max_attempts=2)
dispatcher = make(Worker, **patient)
awaiting = make(AsyncWorker, in_flight=4, **patient)
limited = make(Worker, unacceptable_limit=1, max_attempts=1)


def broken():
    raise RuntimeError("no such shop")
"""


class Run(NamedTuple):
    name: str
    pid: int
    executor: int
    """The parent of the process: each executor has one."""
    folder: str


class ClusterWorks:
    """The program in a folder, under a module name that no other test uses, and the runs of its jobs."""

    def __init__(self, folder: Path, url: str, module: str, channel: str) -> None:
        self.folder, self.url, self.module, self.channel = folder, url, module, channel
        (folder / f"{module}.py").write_text(PROGRAM.format(url=url, channel=channel))

    @property
    def runs(self) -> Sequence[Run]:
        file = self.folder / "runs"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Run(name, int(pid), int(executor), where) for name, pid, executor, where in map(_fields, lines)]

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(run.name for run in self.runs)

    def last_alive(self, but: set[int]) -> int | None:
        """The process of the latest run, if it is not one of these and lives."""
        runs = self.runs
        pid = runs[-1].pid if runs else None
        return (
            pid if pid is not None and pid not in but and Path(f"/proc/{pid}").exists() and pid != os.getpid() else None
        )


def _fields(line: str) -> list[str]:
    return line.split(" ", 3)
