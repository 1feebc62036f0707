"""A message that ends its process: it is found out wherever the next process starts on the same machine."""

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from brokers.redis import Redis
from pump import Dispatcher, Subscription
from pump.context import current_context
from support.programs import Program, lives, pump
from support.waiting import eventually
from support.works import Job, Works, jobs, names

LEASE = 1.0
TESTS = Path(__file__).parent.parent


class Factory:
    """Processes that do jobs, started again whenever a job kills one; and what becomes a dead letter meanwhile."""

    def __init__(self, works: Works, url: str, **options: Any) -> None:
        self.works = works
        self.dead: list[tuple[str, Mapping[str, str]]] = []
        """The names of jobs that were given up, and the headers of their dead letters."""
        self.deaths = 0
        grave = f"{works.channel}-dead"
        rules: dict[str, Any] = {"dead_letter": grave, "lease": LEASE, **options}
        self._command = works.command(url, **rules)
        self._client = works.dispatcher(url, **rules)
        self._sexton = Dispatcher(
            url,
            handlers=[self._bury],
            subscriptions=[Subscription(Job, topic=grave, channel=grave, dead_letter=None)],
            state_folder=works.state_folder,
        )

    def _bury(self, job: Job) -> None:
        self.dead.append((job.name, current_context().message.header.headers))

    def post(self, *jobs: Job) -> None:
        with self._client.publishing():
            self._client.post_many(jobs)

    def works_until(self, done: Sequence[str], most: int) -> None:
        """Start processes until one has seen to all of these and lives on, and the dead are counted."""
        with self._sexton:
            while not self._lives_on(set(done)):
                self.deaths += 1
                assert self.deaths <= most, self.works.runs

    def _lives_on(self, done: set[str]) -> bool:
        with Program(self._command, self.works.folder) as program:
            try:
                eventually(lambda: not lives(program.pid) or (set(self.works.runs) >= done and self.dead), 60.0)
            except AssertionError as error:
                raise AssertionError(f"{program.output}\n{self.works.runs}\n{self.dead}") from error
            if not lives(program.pid):
                return False
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            return True


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("awaiting", [False, True], ids=["reactor", "proactor"])
@pytest.mark.parametrize(
    ("may_block", "attempts"), [(True, 2), pytest.param(False, 3, marks=pytest.mark.long)], ids=["may block", "plain"]
)
def test_a_message_that_kills_its_process_runs_as_often_as_it_may(
    url: str, works: Works, attempts: int, *, awaiting: bool, may_block: bool
) -> None:
    factory = Factory(works, url, awaiting=awaiting, may_block=may_block, max_attempts=attempts)
    factory.post(*jobs(12), Job("killer", fate="kills"), *jobs(11, prefix="more"))

    factory.works_until([*names(12), *names(11, "more")], most=attempts)

    ((name, headers),) = factory.dead
    assert name == "killer"
    assert headers["pump-reason"] == "process died"
    assert Counter(works.runs)["killer"] == factory.deaths == attempts


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize(
    "options",
    [{"performers": 2}, {"awaiting": True, "in_flight": 2}],
    ids=["performers", "in flight"],
)
def test_an_innocent_in_the_other_hand_is_handled(url: str, works: Works, options: dict[str, Any]) -> None:
    attempts = 2
    factory = Factory(works, url, may_block=True, max_attempts=attempts, **options)
    slow = jobs(3, seconds=0.5, prefix="slow")
    factory.post(Job("killer", fate="kills", seconds=0.2), *slow, *jobs(6))

    factory.works_until([*names(3, "slow"), *names(6)], most=2 * attempts)

    assert [name for name, _ in factory.dead] == ["killer"]
    assert attempts <= Counter(works.runs)["killer"] == factory.deaths <= 2 * attempts


@pytest.mark.requirement("P-04")
def test_a_supervisor_finds_out_what_kills_its_workers(redis_server: Redis, works: Works) -> None:
    url = f"redis+list://127.0.0.1:{redis_server.port}/0"
    settings = {"url": url, "channel": works.channel, "file": str(works.file), "state": works.state_folder}
    (works.folder / "work.py").write_text(WORK.format(tests=str(TESTS), **settings), "utf-8")
    works.post(url, *jobs(5), Job("killer", fate="kills"), *jobs(5, prefix="more"))

    with pump("run", "work:dispatcher", "--workers", "2", folder=works.folder) as supervisor:
        eventually(lambda: "process died" in supervisor.output, 60.0)
        eventually(lambda: set(works.runs) >= {*names(5), *names(5, "more")}, 30.0)
        supervisor.send(signal.SIGTERM)
        assert supervisor.ends() == 0

    assert 2 <= Counter(works.runs)["killer"] <= 3


WORK = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.works import dispatcher as made

dispatcher = made(
    {url!r}, {channel!r}, Path({file!r}), state_folder={state!r}, lease=1.0, may_block=True, max_attempts=2
)
"""
