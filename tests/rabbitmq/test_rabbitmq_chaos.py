"""Consumers killed, the broker restarted and the network cut while messages are handled: what is lost, what twice.

`pytest -m long tests/rabbitmq/test_rabbitmq_chaos.py -s` prints the rows of the table in docs/rabbitmq.md.
"""

import random
import signal
from collections import Counter
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.rabbitmq import RabbitMQ
from support.programs import Program
from support.rabbitmq_worker import Job
from support.rabbitmq_works import Works
from support.waiting import eventually

pytestmark = pytest.mark.requirement("P-13")

BUFFER = 10
PATIENCE = 120.0


class Score(NamedTuple):
    """What came of it."""

    lost: int
    twice: int
    """Runs beyond the first of each message."""
    dead: int
    most_runs: int


class Chaos:
    """One queue of jobs, a process that does them, and what happens to it, to its broker and to its network."""

    def __init__(self, broker: RabbitMQ, proxy: Proxy, works: Works, queue_type: str, *, colour: str) -> None:
        self._broker, self._proxy, self._works = broker, proxy, works
        self._query = f"?queue_type={queue_type}&heartbeat=2&timeout=5"
        self._colour = colour
        self._programs = ExitStack()

    def run(self, count: int, kills: int, restarts: int, cuts: int) -> Score:
        names = {f"job-{number}" for number in range(count)}
        self._works.post(self._broker.url + self._query, *(Job(name) for name in sorted(names)))
        events = ["kill"] * kills + ["restart"] * restarts + ["cut"] * cuts
        random.Random(count).shuffle(events)
        with ExitStack() as self._programs:
            program = self._start()
            for number, event in enumerate(events, start=1):
                self._until(count * number // (len(events) + 2))
                program = self._meet(event, program)
            eventually(lambda: set(self._works.runs) >= names, PATIENCE)
            eventually(lambda: self._broker.list_queues()[self._works.channel] == 0, PATIENCE)
        runs = Counter(self._works.runs)
        dead = self._broker.list_queues()[f"{self._works.channel}.dead"]
        return Score(len(names - set(runs)), sum(runs.values()) - len(runs), dead, max(runs.values()))

    def _start(self) -> Program:
        options = {"colour": self._colour, "buffer_size": BUFFER, "failure_backoff": (0.2, 2.0)}
        url = self._proxy.url(self._broker.url) + self._query
        return self._programs.enter_context(self._works.program(url, **options))

    def _until(self, done: int) -> None:
        eventually(lambda: len(set(self._works.runs)) >= done, PATIENCE)

    def _meet(self, event: str, program: Program) -> Program:
        if event == "kill":
            program.send(signal.SIGKILL)
            program.ends()
            return self._start()
        if event == "restart":
            self._broker.restart()
        else:
            self._proxy.cut()
            self._proxy.heal()
        return program


@pytest.fixture
def chaos(own_rabbitmq: RabbitMQ, proxy_to: ProxyTo, works: Works, queue_type: str, colour: str) -> Chaos:
    return Chaos(own_rabbitmq, proxy_to(own_rabbitmq.port), works, queue_type, colour=colour)


def test_nothing_is_lost_in_a_little_chaos(chaos: Chaos) -> None:
    score = chaos.run(1_000, kills=3, restarts=1, cuts=1)

    assert (score.lost, score.dead) == (0, 0)
    assert score.twice <= BUFFER * 5


@pytest.mark.long
def test_nothing_is_lost_in_chaos(chaos: Chaos, queue_type: str, colour: str) -> None:
    score = chaos.run(10_000, kills=10, restarts=3, cuts=3)

    print(f"| {queue_type} | {colour} | {score.lost} | {score.twice} | {BUFFER * 16} | {score.dead} |")  # noqa: T201
    assert (score.lost, score.dead) == (0, 0)
    assert score.twice <= BUFFER * 16
