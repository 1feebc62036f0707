"""Jobs for Kafka's tests, done here or by processes of their own, which may be killed.

As a program it consumes jobs and notes each run in a file, which outlives it: `python kafka_works.py SETTINGS`.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pump import Command, DeferMessageAction, Dispatcher, DontAckAction, Publication, RequestHandler, Subscription


@dataclass(frozen=True)
class Job(Command):
    """Something to do, and how it goes."""

    name: str
    key: str = ""
    fate: str = "done"
    seconds: float = 0.0


class Notes:
    """A line for each run of each job, written at once and by many processes."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, job: Job) -> None:
        os.write(self._descriptor, f"{what} {job.name}\n".encode())


class Worker(RequestHandler[Job]):
    """Does what the job says."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def handle(self, job: Job) -> None:
        self._notes.note("began", job)
        time.sleep(job.seconds)
        meet(job)
        self._notes.note("done", job)


class AsyncWorker(RequestHandler[Job]):
    """The same, awaiting."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def handle(self, job: Job) -> None:
        self._notes.note("began", job)
        await asyncio.sleep(job.seconds)
        meet(job)
        self._notes.note("done", job)


def meet(job: Job) -> None:
    """Meet the job's fate."""
    match job.fate:
        case "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fails":
            raise ValueError(job.name)
        case "refused":
            raise DontAckAction
        case "deferred":
            raise DeferMessageAction(1.0)
        case "stuck":
            threading.Event().wait()
        case _:  # nothing befalls it
            pass


def dispatcher(
    url: str, channel: str, file: Path, *, awaiting: bool = False, state_folder: str | None = None, **options: Any
) -> Dispatcher:
    """What consumes the jobs of a channel."""
    return Dispatcher(
        url,
        state_folder=state_folder,
        handlers=[(AsyncWorker if awaiting else Worker)(Notes(file))],
        subscriptions=[Subscription(Job, topic=channel, channel=channel, **options)],
        publications=[Publication(Job, topic=channel, key=lambda job: job.key or None)],
    )


class Works:
    """One channel, the jobs posted to it, and the runs that they had in whatever process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.folder = folder
        self.channel = f"jobs-{uuid4().hex[:8]}"
        self.state_folder = str(folder / "state")
        """What one process leaves for the next; nothing of other tests."""
        self.file = folder / f"{self.channel}.runs"

    @property
    def lines(self) -> Sequence[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def noted(self, what: str) -> list[str]:
        """The names of the jobs of which that was noted, in order."""
        return [line.removeprefix(f"{what} ") for line in self.lines if line.startswith(f"{what} ")]

    def dispatcher(self, **options: Any) -> Dispatcher:
        return dispatcher(self.url, self.channel, self.file, **{"state_folder": self.state_folder, **options})

    def command(self, **options: Any) -> Sequence[str]:
        """What starts a process of its own that does the jobs."""
        own = {"channel": self.channel, "file": str(self.file), "state_folder": self.state_folder}
        return [sys.executable, __file__, json.dumps({"url": self.url, **own, **options})]

    @staticmethod
    def name_in(body: bytes) -> str:
        return str(json.loads(body)["name"])

    def post(self, *jobs: Job) -> None:
        posting = self.dispatcher()
        with posting.publishing():
            posting.post_many(jobs)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given["file"] = Path(given["file"])
    sys.exit(dispatcher(**given).run())
