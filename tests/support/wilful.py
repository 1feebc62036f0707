"""One message that is refused fifty times and then fails, over restarts and kills of its consumer."""

import json
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from support import wilful_worker
from support.programs import Program
from support.waiting import eventually

PATIENCE = 60.0


class Wilful:
    """One channel with one wish, and its runs in all processes."""

    def __init__(self, folder: Path, url: str, *, awaiting: bool, **options: Any) -> None:
        self.folder = folder
        self.channel = f"wishes-{uuid4().hex[:8]}"
        self.settings: dict[str, Any] = {
            "url": url,
            "channel": self.channel,
            "awaiting": awaiting,
            "state": str(folder / "state"),
            "runs": str(folder / "runs"),
            "options": options,
        }

    @property
    def runs(self) -> int:
        """How often it was run."""
        file = Path(self.settings["runs"])
        return file.stat().st_size if file.exists() else 0

    def is_run_over_a_kill_and_a_restart(self) -> None:
        """Returns when one process was killed, one was stopped, and one has begun to fail."""
        posting = wilful_worker.dispatcher(self.settings)
        with posting.publishing():
            posting.post(wilful_worker.Wish("tea"))
        for how, runs in ((signal.SIGKILL, 10), (signal.SIGTERM, 30)):
            with self.program() as program:
                eventually(lambda runs=runs: self.runs >= runs, PATIENCE)  # type: ignore[misc]
                program.send(how)
                program.ends()

    def program(self) -> Program:
        """One more process that does what it is asked for, or refuses."""
        return Program([sys.executable, wilful_worker.__file__, json.dumps(self.settings)], self.folder)

    def assert_as_many_runs_as_there_may_be(self) -> None:
        """No refusal was charged; the run in hand when a process was killed may be."""
        most = wilful_worker.REFUSALS + wilful_worker.ATTEMPTS
        assert most - 1 <= self.runs <= most
