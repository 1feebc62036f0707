"""Consumers are killed, the broker is restarted and the network is cut: which messages are lost, which run twice.

`pytest -m long tests/transports/rabbitmq/test_rabbitmq_chaos.py -s` prints the rows of the table in docs/rabbitmq.md.
"""

import json
import random
import signal
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.rabbitmq import RabbitMQ
from support.programs import Program
from support.waiting import eventually
from support.works import Job, Works

BUFFER = 10
PATIENCE = 120.0


class Score(NamedTuple):
    """The result for one line."""

    lost: int
    """Messages that were not run as often as they have to be, or were refused and are no dead letter."""
    twice: int
    """Runs beyond those."""
    dead: int
    """Dead letters that nobody refused."""


def job(number: int) -> Job:
    """Of ten jobs two come again later, and one is refused."""
    fate = {3: "deferred once", 6: "deferred once", 8: "rejected"}.get(number % 10, "done")
    return Job(f"job-{number}", fate=fate, delay=0.3)


class Line:
    """One queue of jobs, and the one process that handles them."""

    def __init__(self, broker: RabbitMQ, url: str, works: Works, jobs: Sequence[Job], colour: str) -> None:
        self._broker, self._url, self._works = broker, url, works
        self._runs_needed = {each.name: 1 + (each.fate == "deferred once") for each in jobs}
        self._refused = {each.name for each in jobs if each.fate == "rejected"}
        self._options = {"awaiting": colour == "proactor", "buffer_size": BUFFER, "failure_backoff": (0.2, 2.0)}
        self._programs = ExitStack()

    def __enter__(self) -> Self:
        self.starts()
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def has_done(self, count: int) -> bool:
        return len(set(self._works.runs)) >= count

    def dies(self) -> None:
        self._program.send(signal.SIGKILL)
        self._program.ends()
        eventually(lambda: self._consumers == 0)

    def starts(self) -> None:
        """Start the program, and wait until it has found the broker: without a broker it would end."""
        self._program = self._programs.enter_context(
            Program(self._works.command(self._url, **self._options), self._works.folder)
        )
        eventually(lambda: self._consumers == 1)

    @property
    def _consumers(self) -> int:
        with self._broker.connect() as connection:
            return int(connection.channel().queue_declare(self._works.channel, passive=True).method.consumer_count)

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, here or in a delay queue."""
        return not self._not_run and self._broker.list_queues()[self._works.channel] == 0

    @property
    def _not_run(self) -> set[str]:
        runs = Counter(self._works.runs)
        return {name for name, needed in self._runs_needed.items() if runs[name] < needed}

    @property
    def score(self) -> Score:
        dead = self._dead_letters()
        lost = self._not_run | (self._refused - dead)
        twice = len(self._works.runs) - sum(self._runs_needed.values())
        return Score(len(lost), twice, len(dead - self._refused))

    def _dead_letters(self) -> set[str]:
        """The names of the jobs that were given up; takes them away."""
        found: set[str] = set()
        with self._broker.connect() as connection:
            channel = connection.channel()
            while True:
                method, _, body = channel.basic_get(f"{self._works.channel}.dead", auto_ack=True)
                if method is None:
                    return found
                found.add(json.loads(body)["name"])


class Chaos:
    """A line for each type of queue in each colour, and the faults of the lines, their broker and its network."""

    def __init__(self, broker: RabbitMQ, proxy: Proxy, folder: Path) -> None:
        self._broker, self._proxy, self._folder = broker, proxy, folder

    def run(self, count: int, kills: int, restarts: int, cuts: int) -> dict[tuple[str, str], Score]:
        events = ["kill"] * kills + ["restart"] * restarts + ["cut"] * cuts
        random.Random(count).shuffle(events)
        jobs = [job(number) for number in range(count)]
        lines = {way: self._line(jobs, *way) for way in product(("quorum", "classic"), ("reactor", "proactor"))}
        with ExitStack() as stack:
            for line in lines.values():
                stack.enter_context(line)
            for number, event in enumerate(events, start=1):
                self._until(lines.values(), count * number // (len(events) + 2))
                self._meet(event, lines.values())
            self._until(lines.values(), count)
            eventually(lambda: all(line.is_over for line in lines.values()), PATIENCE)
        return {way: line.score for way, line in lines.items()}

    def _line(self, jobs: Sequence[Job], queue_type: str, colour: str) -> Line:
        works, query = Works(self._folder), f"?queue_type={queue_type}&heartbeat=2&timeout=5"
        works.post(self._broker.url + query, *jobs)
        return Line(self._broker, self._proxy.url(self._broker.url) + query, works, jobs, colour)

    def _until(self, lines: Collection[Line], done: int) -> None:
        eventually(lambda: all(line.has_done(done) for line in lines), PATIENCE)

    def _meet(self, event: str, lines: Collection[Line]) -> None:
        if event == "kill":
            for line in lines:
                line.dies()
                line.starts()
        elif event == "restart":
            self._broker.restart()
        else:
            self._proxy.cut()
            self._proxy.heal()


@pytest.fixture
def chaos(own_rabbitmq: RabbitMQ, proxy_to: ProxyTo, tmp_path: Path) -> Chaos:
    return Chaos(own_rabbitmq, proxy_to(own_rabbitmq.port), tmp_path)


def test_nothing_is_lost_in_a_little_chaos(chaos: Chaos) -> None:
    for way, score in chaos.run(1_000, kills=3, restarts=1, cuts=1).items():
        assert (score.lost, score.dead) == (0, 0), way
        assert score.twice <= BUFFER * 5, way


@pytest.mark.long
@pytest.mark.requirement("P-13")
def test_nothing_is_lost_in_chaos(chaos: Chaos) -> None:
    scores = chaos.run(10_000, kills=10, restarts=3, cuts=3)

    for (queue_type, colour), score in scores.items():
        print(f"| {queue_type} | {colour} | {score.lost} | {score.twice} | {BUFFER * 16} | {score.dead} |")  # noqa: T201
    for way, score in scores.items():
        assert (score.lost, score.dead) == (0, 0), way
        assert score.twice <= BUFFER * 16, way
