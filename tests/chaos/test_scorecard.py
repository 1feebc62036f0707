"""Kill consumers, restart the broker, cut the network, while messages fail, come again and are given up.

On every transport: no message is lost, none is given up unless its job asks for it, and few run twice.
`pytest -m long tests/chaos -s` prints a table of the results.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pytest

from brokers.proxy import Proxy
from pump import Dispatcher, Publication, Subscription
from pump.clock import SystemClock
from pump.testing.driver import TransportDriver
from pump.transport_kit.protocol import transport_from
from support import chaos_worker
from support.chaos_worker import Job
from support.programs import Program
from support.waiting import eventually

if TYPE_CHECKING:
    from brokers.fixtures import ProxyTo
    from brokers.kafka import Kafka

PATIENCE = 240.0
"""Longer than a wait that succeeds, also where the broker's disk is slow, in seconds."""
LARGEST_BUFFER = 10 + 64
"""The most messages that one kill may make run twice: those in hand or buffered, and those with an unsent ack."""


@dataclass
class Place:
    """A broker, and the faults that a test can cause there."""

    url: str
    restart: Callable[[], object] | None = None
    cut: Callable[[], object] | None = None


BROKERS: Mapping[str, tuple[str, Callable[[Any, Proxy], str]]] = {
    "quorum": ("own_rabbitmq", lambda server, proxy: f"{proxy.url(server.url)}?queue_type=quorum"),
    "classic": ("own_rabbitmq", lambda server, proxy: f"{proxy.url(server.url)}?queue_type=classic"),
    "nats": ("own_nats_server", lambda server, proxy: proxy.url(server.url)),
    "streams": ("own_redis_server", lambda _, proxy: f"redis://127.0.0.1:{proxy.port}"),
    "lists": ("own_redis_server", lambda _, proxy: f"redis+list://127.0.0.1:{proxy.port}"),
    "mqtt": ("own_mosquitto", lambda _, proxy: f"mqtt://127.0.0.1:{proxy.port}?version=5"),
    "mqtt-3.1.1": ("own_mosquitto", lambda _, proxy: f"mqtt://127.0.0.1:{proxy.port}?version=3.1.1"),
    "sqs": ("own_sqs_server", lambda server, proxy: server.url_for("sqs", proxy.port)),
    "fifo": ("own_sqs_server", lambda server, proxy: server.url_for("sqs+fifo", proxy.port)),
    "servicebus": ("own_servicebus", lambda server, proxy: proxy.url(server.url)),
    "sessions": (
        "own_servicebus",
        lambda server, proxy: proxy.url(server.url).replace("servicebus", "servicebus+sessions", 1),
    ),
    "pubsub": (
        "own_pubsub_server",
        lambda server, proxy: server.url.replace(server.endpoint, f"127.0.0.1:{proxy.port}"),
    ),
    "streaming": (
        "own_pubsub_server",
        lambda server, proxy: server.url.replace(server.endpoint, f"127.0.0.1:{proxy.port}") + "&streaming=true",
    ),
}
"""For each transport that a proxy can cut off: the fixture of its broker, and its URL by way of the proxy."""


KINDS = [*BROKERS, "kafka", "sqlite", "postgres"]
ONLY_LONG = {"fifo", "sessions", "streaming"}


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.long) if each in ONLY_LONG else each for each in KINDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    found: Callable[[str], Any] = request.getfixturevalue
    proxy_to: ProxyTo = found("proxy_to")
    match request.param:
        case "sqlite":
            return Place(f"sqlite:///{tmp_path / 'queue.db'}")
        case "postgres":
            server = found("own_postgres")
            separator = "&" if "?" in server.url else "?"
            url = f"{server.url}{separator}schema=chaos_{uuid4().hex[:12]}"
            return Place(url, server.restart, lambda: server.kill_backends("message-pump%"))
        case "kafka":
            broker: Kafka = found("own_kafka_broker")
            return Place(f"{broker.url}&retry_delays=0.2", broker.blink, broker.blink)
        case _:
            pass
    fixture, url_of = BROKERS[request.param]
    server = found(fixture)
    proxy = proxy_to(server.port)
    return Place(url_of(server, proxy), server.restart, proxy.reset)


class Line:
    """One channel of jobs, and the program that handles them."""

    def __init__(self, place: Place, colour: str, folder: Path) -> None:
        self.place, self.channel = place, f"chaos-{uuid4().hex[:12]}"
        self._notes = folder / "notes"
        self._settings = {
            "url": place.url, "channel": self.channel, "colour": colour, "notes": str(self._notes),
            "state": str(folder / "state"),
        }  # fmt: skip
        self._folder = folder
        self._programs = ExitStack()
        dead = f"{self.channel}-dead"
        self._dead_letters = Subscription(Job, topic=dead, channel=dead, dead_letter=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def post(self, jobs: Sequence[Job]) -> None:
        """Make the channel and its dead-letter channel, and post all jobs, before the program starts."""
        rules = chaos_worker.dispatcher(self._settings).subscriptions
        with closing(TransportDriver(transport_from(self.place.url), "blocking", SystemClock())) as driver:
            driver.prepare(*rules, self._dead_letters)
        dispatcher = Dispatcher(self.place.url, publications=[Publication(Job, topic=self.channel)])
        with dispatcher.publishing():
            dispatcher.post_many(jobs)

    def starts(self) -> None:
        command = [sys.executable, chaos_worker.__file__, json.dumps(self._settings)]
        self._program = self._programs.enter_context(Program(command, self._folder))

    def dies(self) -> None:
        self._program.send(signal.SIGKILL)
        self._program.ends()

    def has_done(self, count: int) -> None:
        """Wait until so many different jobs are done; an error tells what the program said last."""
        try:
            eventually(lambda: len(self.noted("done")) >= count, PATIENCE)
        except AssertionError as error:
            done, words = len(self.noted("done")), self._program.output.splitlines()[-3:]
            raise AssertionError(f"{error}: {done} of {count} are done; it said last: {words}") from None

    def noted(self, what: str) -> Counter[str]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return Counter(line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} "))

    def dead_letters(self, expected: int) -> Counter[str]:
        """Receive and count all dead letters, by the names of their jobs."""
        found: Counter[str] = Counter()
        with closing(TransportDriver(transport_from(self.place.url), "blocking", SystemClock())) as driver:
            channel = driver.open(self._dead_letters)
            while (message := channel.receive(PATIENCE if found.total() < expected else 1.0)) is not None:
                found[json.loads(message.body)["name"]] += 1
                channel.acknowledge(message)
        return found


def jobs(count: int) -> Sequence[Job]:
    fates = {0: "fails", 1: "rejected"}
    return [Job(f"job-{number}", fates.get(number % 10, "done")) for number in range(count)]


def blows(place: Place, kills: int, restarts: int, cuts: int) -> Iterator[str]:
    """The faults, mixed: each kind as often as asked for, if the place allows it."""
    rest = {"kill": kills, "restart": restarts if place.restart else 0, "cut": cuts if place.cut else 0}
    while any(rest.values()):
        for kind, left in rest.items():
            if left:
                rest[kind] -= 1
                yield kind


@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_nothing_is_lost_whatever_breaks(place: Place, colour: str, tmp_path: Path) -> None:
    scores(place, colour, tmp_path, count=400, kills=2, restarts=1, cuts=1)


def scores(place: Place, colour: str, folder: Path, *, count: int, kills: int, restarts: int, cuts: int) -> str:
    """Run everything, check the results, and return the row of the table."""
    posted = jobs(count)
    rejected = {job.name for job in posted if job.fate == "rejected"}
    planned = list(blows(place, kills, restarts, cuts))
    began = time.monotonic()
    with Line(place, colour, folder) as line:
        line.post(posted)
        line.starts()
        for number, blow in enumerate(planned, 1):
            enough = number * (count - len(rejected)) // (len(planned) + 1)
            line.has_done(enough)
            if blow == "kill":
                line.dies()
                line.starts()
            elif blow == "restart" and place.restart is not None:
                place.restart()
            elif place.cut is not None:
                place.cut()
        line.has_done(count - len(rejected))
        dead = line.dead_letters(len(rejected))
        twice = line.noted("done").total() - len(line.noted("done"))

    assert set(dead) == rejected, "an innocent was given up, or a dead letter is lost"
    assert twice <= LARGEST_BUFFER * len(planned)
    seconds = time.monotonic() - began
    return f"{count} messages, {', '.join(planned)}: 0 lost, {twice} done twice, {dead.total()} dead, {seconds:.0f} s"


@pytest.mark.long
@pytest.mark.requirement("P-13")
@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_nothing_is_lost_in_ten_thousand(
    place: Place, colour: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    row = scores(place, colour, tmp_path, count=10_000, kills=10, restarts=3, cuts=3)

    with capsys.disabled():
        sys.stdout.write(f"\n| {request.node.callspec.id} | {row} |\n")
