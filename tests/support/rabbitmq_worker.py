"""A program that does jobs and notes each run in a file, which outlives it: `python rabbitmq_worker.py SETTINGS`."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pump import (
    Command,
    DeferMessageAction,
    Dispatcher,
    Publication,
    RejectMessageAction,
    RequestHandler,
    Subscription,
)
from pump.context import current_context
from pump.transports.rabbitmq import RabbitMQTransport


@dataclass(frozen=True)
class Job(Command):
    """Something to do, and how it goes."""

    name: str
    fate: str = "done"
    seconds: float = 0.0
    delay: float = 1.0


class Notes:
    """A line for each run of each job, written at once and by many processes."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, job: Job) -> None:
        os.write(self._descriptor, f"{job.name}\n".encode())


def runs(file: Path) -> Sequence[str]:
    """The names of all jobs that were run, in order."""
    return file.read_text().split() if file.exists() else []


class Worker(RequestHandler[Job]):
    """Does what the job says."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def handle(self, job: Job) -> None:
        self._notes.note(job)
        time.sleep(job.seconds)
        meet(job)


class AsyncWorker(RequestHandler[Job]):
    """The same, awaiting."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def handle(self, job: Job) -> None:
        self._notes.note(job)
        await asyncio.sleep(job.seconds)
        meet(job)


def meet(job: Job) -> None:
    """Meet the job's fate."""
    if job.fate == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.fate == "deferred" or (job.fate == "deferred once" and not current_context().message.attempts):
        raise DeferMessageAction(job.delay)
    if job.fate == "refused":
        raise RejectMessageAction("refused")


def dispatcher(
    url: str, channel: str, file: Path, *, colour: str = "reactor", state_folder: str | None = None, **options: Any
) -> Dispatcher:
    """What consumes the jobs of a channel."""
    worker = (AsyncWorker if colour == "proactor" else Worker)(Notes(file))
    return Dispatcher(
        RabbitMQTransport.from_url(url),
        handlers=[worker],
        subscriptions=[Subscription(Job, topic=channel, channel=channel, **options)],
        publications=[Publication(Job, topic=channel)],
        state_folder=state_folder,
    )


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    settings["file"] = Path(settings["file"])
    sys.exit(dispatcher(**settings).run())
