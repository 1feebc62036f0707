"""A program that ends each job as the job says, and notes it in a file: `python chaos_worker.py SETTINGS`."""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pump import Command, Dispatcher, RejectMessageAction, RequestHandler, Subscription

ATTEMPTS = 20
"""More attempts than kills and failures can count: only a job that asks for it is given up."""


@dataclass(frozen=True)
class Job(Command):
    """Something to do, and how it goes: "done", "fails" at first in each process, or "rejected"."""

    name: str
    fate: str = "done"


class Bench:
    """The record of what this process did, in a file that many processes write."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._tried: set[str] = set()

    def note(self, what: str, job: Job) -> None:
        os.write(self._descriptor, f"{what} {job.name}\n".encode())

    def meet(self, job: Job) -> None:
        if job.fate == "rejected":
            raise RejectMessageAction("as asked")
        if job.fate == "fails" and job.name not in self._tried:
            self._tried.add(job.name)
            raise ValueError("not the first time")
        self.note("done", job)


class Worker(RequestHandler[Job]):
    """Handles jobs: each one ends as it says."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def handle(self, job: Job) -> None:
        self._bench.note("began", job)
        time.sleep(0.003)
        self._bench.meet(job)


class AwaitingWorker(Worker):
    """The same, awaiting."""

    async def handle(self, job: Job) -> None:  # type: ignore[override]
        self._bench.note("began", job)
        await asyncio.sleep(0.003)
        self._bench.meet(job)


def dispatcher(settings: dict[str, Any]) -> Dispatcher:
    bench = Bench(Path(settings["notes"]))
    rules = Subscription(
        Job,
        topic=settings["channel"],
        channel=settings["channel"],
        dead_letter=f"{settings['channel']}-dead",
        max_attempts=ATTEMPTS,
        requeue_backoff=(0.05, 0.2),
        failure_backoff=(0.2, 1.0),
        lease=2.0,
        grace=5.0,
    )
    worker = Worker if settings["colour"] == "blocking" else AwaitingWorker
    return Dispatcher(
        settings["url"],
        handlers=[worker(bench)],
        subscriptions=[rules],
        state_folder=settings["state"],
    )


if __name__ == "__main__":
    sys.exit(dispatcher(json.loads(sys.argv[1])).run())
