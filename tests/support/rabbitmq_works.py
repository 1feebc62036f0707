"""Jobs for the RabbitMQ transport's tests, done here or by other processes, which may be killed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pump import Dispatcher
from support import rabbitmq_worker
from support.programs import Program
from support.rabbitmq_worker import Job

WORKER = Path(rabbitmq_worker.__file__)


class Works:
    """One channel, the jobs posted to it, and their runs in all processes."""

    def __init__(self, folder: Path) -> None:
        self.channel = f"jobs-{uuid4().hex[:8]}"
        self.file = folder / f"{self.channel}.runs"
        self._folder = folder

    @property
    def runs(self) -> Sequence[str]:
        return rabbitmq_worker.runs(self.file)

    def dispatcher(self, url: str, **options: Any) -> Dispatcher:
        return rabbitmq_worker.dispatcher(url, self.channel, self.file, **options)

    def program(self, url: str, **options: Any) -> Program:
        """A process of its own that does the jobs."""
        own = {"channel": self.channel, "file": str(self.file), "state_folder": str(self._folder / "state")}
        settings = {"url": url, **own, **options}
        return Program([sys.executable, str(WORKER), json.dumps(settings)], WORKER.parent.parent)

    def post(self, url: str, *jobs: Job) -> None:
        dispatcher = self.dispatcher(url)
        with dispatcher.publishing():
            dispatcher.post_many(jobs)
