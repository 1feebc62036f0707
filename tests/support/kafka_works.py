"""Jobs for Kafka's tests, on one broker."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pump import Dispatcher
from support.works import Job, Runs


class Works(Runs):
    """One channel, the jobs posted to it, and their runs in all processes."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def dispatcher(self, **options: Any) -> Dispatcher:
        return self.dispatcher_for(self.url, options)

    def command(self, **options: Any) -> Sequence[str]:
        return self.command_for(self.url, options)

    @staticmethod
    def name_in(body: bytes) -> str:
        return str(json.loads(body)["name"])

    def post(self, *jobs: Job) -> None:
        posting = self.dispatcher()
        with posting.publishing():
            posting.post_many(jobs)
