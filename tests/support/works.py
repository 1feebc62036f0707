"""Jobs for the tests of any transport, done here or by processes of their own, which may be killed.

As a program it consumes jobs and notes each run in a file, which outlives it: `python works.py SETTINGS`.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pump import (
    Command,
    DeferMessageAction,
    Dispatcher,
    DontAckAction,
    Publication,
    RejectMessageAction,
    RequestHandler,
    Subscription,
)
from pump.context import current_context

FAST = {"failure_backoff": (0.2, 2.0)}
"""Shorter waits than a program should have, so that tests are quick."""


@dataclass(frozen=True)
class Job(Command):
    """Something to do, and how it goes."""

    name: str
    key: str = ""
    fate: str = "done"
    seconds: float = 0.0
    delay: float = 1.0


class Notes:
    """A line for each beginning and each end of a job's run, written at once and by many processes."""

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
            raise DeferMessageAction(job.delay)
        case "deferred once" if not current_context().message.attempts:
            raise DeferMessageAction(job.delay)
        case "rejected":
            raise RejectMessageAction("rejected")
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


class Runs:
    """One channel, and the runs of its jobs in all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.channel = f"jobs-{uuid4().hex[:8]}"
        self.state_folder = str(folder / "state")
        """The state that one process leaves for the next; no other test uses this folder."""
        self.file = folder / f"{self.channel}.runs"

    @property
    def lines(self) -> Sequence[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def noted(self, what: str) -> list[str]:
        """The names of the jobs that "began" or are "done", in order."""
        return [line.removeprefix(f"{what} ") for line in self.lines if line.startswith(f"{what} ")]

    @property
    def runs(self) -> Sequence[str]:
        """The names of all jobs that were run, in order, whether or not they ended."""
        return self.noted("began")

    def command_for(self, url: str, options: Mapping[str, Any]) -> Sequence[str]:
        """The command that starts another process, which does the jobs."""
        own = {"channel": self.channel, "file": str(self.file), "state_folder": self.state_folder}
        return [sys.executable, __file__, json.dumps({"url": url, **own, **options})]

    def dispatcher_for(self, url: str, options: Mapping[str, Any]) -> Dispatcher:
        """What does the jobs in this process."""
        return dispatcher(url, self.channel, self.file, **{"state_folder": self.state_folder, **options})


class Works(Runs):
    """The same, with the jobs posted there, on whatever broker a URL names."""

    def dispatcher(self, url: str, **options: Any) -> Dispatcher:
        return self.dispatcher_for(url, options)

    def command(self, url: str, **options: Any) -> Sequence[str]:
        return self.command_for(url, options)

    def until(self, command: Sequence[str], done: Callable[[], bool], most: int) -> int:
        """Start processes until one lives on and this is done; returns how many have died, `most` at most.

        The last one is stopped in order: killed by the test, it would leave a message that a process died with.
        """
        from support.programs import Program, lives  # not where this file is the program
        from support.waiting import eventually

        deaths = 0
        while True:
            with Program(command, self.folder) as program:
                eventually(lambda program=program: not lives(program.pid) or done(), 60.0)  # type: ignore[misc]
                if lives(program.pid):
                    program.send(signal.SIGTERM)
                    assert program.ends() == 0, program.output
                    return deaths
                deaths += 1
                assert deaths <= most, program.output

    def post(self, url: str, *jobs: Job) -> None:
        posting = self.dispatcher(url)
        with posting.publishing():
            posting.post_many(jobs)


def names(count: int, prefix: str = "job") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def jobs(count: int, seconds: float = 0.0, prefix: str = "job") -> list[Job]:
    return [Job(name, seconds=seconds) for name in names(count, prefix)]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given["file"] = Path(given["file"])
    sys.exit(dispatcher(**given).run())
