"""Processes that die with kill -9, again and again: nothing is lost, and nobody else's message is given up."""

import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from brokers.fixtures import ProxyTo
from brokers.nats import Nats
from support import nats_program
from support.nats_wire import Wire
from support.programs import Program
from support.pumps import Kind
from support.waiting import eventually

log = logging.getLogger("chaos")


class Book:
    """What the processes have written down."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def numbers(self, word: str) -> list[int]:
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [int(words[1]) for words in lines if len(words) > 1 and words[0] == word]

    @property
    def done(self) -> set[int]:
        return set(self.numbers("done"))


@contextmanager
def consuming(url: str, subject: str, book: Book, kind: Kind, *options: str) -> Iterator[Program]:
    """A consumer, until it is killed or the block ends."""
    colour = ["--awaits"] if kind.awaits else []
    command = [sys.executable, nats_program.__file__, url, subject, str(book.file), *colour, *options]
    with Program(command, book.file.parent) as program:
        yield program


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


@pytest.mark.requirement("R-14")
@pytest.mark.parametrize(("messages", "kills"), [(200, 4), pytest.param(1000, 20, marks=pytest.mark.long)])
def test_a_consumer_that_is_killed_again_and_again_loses_nothing(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, book: Book, messages: int, kills: int
) -> None:
    wire.stream(topic)
    wire.flood(topic, messages)
    options = ("--lease", "1", "--work", "0.005")
    for _ in range(kills):
        with consuming(nats_server.url, topic, book, kind, *options) as program:
            before = len(book.numbers("begun"))
            eventually(lambda before=before: len(book.numbers("begun")) > before + 10, 30)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()
    with consuming(nats_server.url, topic, book, kind, *options) as program:
        eventually(lambda: wire.settled(topic, topic), 60)
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    assert book.done == set(range(messages))
    assert wire.count(f"{topic}%2Edlq") == 0
    repeated = sum(count - 1 for count in Counter(book.numbers("begun")).values())
    assert repeated <= kills * (10 + 64)


@pytest.mark.requirement("P-04")
@pytest.mark.long
def test_one_message_that_kills_among_a_hundred_is_found_out_and_the_others_are_handled(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, book: Book
) -> None:
    wire.stream(topic)
    wire.flood(topic, 100)
    options = ("--lease", "0.5", "--killer", "50")
    deadline = time.monotonic() + 120
    while wire.count(f"{topic}%2Edlq") == 0:
        assert time.monotonic() < deadline
        with consuming(nats_server.url, topic, book, kind, *options) as program:
            eventually(lambda: _ended(program) or wire.count(f"{topic}%2Edlq") == 1, 30)
            program.send(signal.SIGTERM)
            program.ends()
    with consuming(nats_server.url, topic, book, kind, *options) as program:
        eventually(lambda: wire.settled(topic, topic), 30)
        program.send(signal.SIGTERM)
        program.ends()

    assert book.done == set(range(100)) - {50}
    assert wire.count(f"{topic}%2Edlq") == 1
    letter = wire.stored(f"{topic}%2Edlq")
    assert letter.data == b'{"number": 50}'
    assert letter.headers["pump-reason"] == "process died"  # type: ignore[index]


def _ended(program: Program) -> bool:
    return program._process.poll() is not None


@pytest.mark.requirement("P-05")
def test_a_deferred_message_outlives_the_kill_of_its_consumer(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, book: Book
) -> None:
    wire.stream(topic)
    wire.orders(topic, 7)
    with consuming(nats_server.url, topic, book, kind, "--lease", "30", "--defer", "1") as program:
        eventually(lambda: wire.words(topic), 20)
        deferred = time.monotonic()
        program.send(signal.SIGKILL)
        program.ends()
    with consuming(nats_server.url, topic, book, kind, "--lease", "30"):
        eventually(lambda: book.done == {7}, 20)
    took = time.monotonic() - deferred

    assert 0.8 <= took < 4


@pytest.mark.requirement("P-11")
def test_sigterm_under_load_ends_the_process_within_its_grace(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, book: Book
) -> None:
    wire.stream(topic)
    wire.flood(topic, 2000)
    with consuming(nats_server.url, topic, book, kind, "--work", "0.002") as program:
        eventually(lambda: len(book.done) > 50, 20)
        began = time.monotonic()
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        took = time.monotonic() - began
    info = wire.consumer(topic, topic)

    assert took < 3
    assert (info.num_pending or 0) + (info.num_ack_pending or 0) == 2000 - len(book.done)


@pytest.mark.requirement("P-13", "R-14", "R-15")
@pytest.mark.long
def test_ten_thousand_messages_through_ten_kills_three_restarts_and_three_cuts(
    own_nats_server: Nats, proxy_to: ProxyTo, topic: str, kind: Kind, book: Book
) -> None:
    messages, kills = 10_000, 0
    proxy = proxy_to(own_nats_server.port)
    url = proxy.url(own_nats_server.url)
    with Wire(own_nats_server.url) as wire:
        wire.stream(topic)
        wire.flood(topic, messages)
    troubles = ["kill", "kill", "restart", "kill", "cut", "kill", "kill", "restart", "cut", "kill"]
    troubles += ["kill", "kill", "restart", "kill", "cut", "kill"]
    with ExitStack() as programs:
        program = programs.enter_context(consuming(url, topic, book, kind, "--lease", "2"))
        for trouble in troubles:
            before = len(book.done)
            eventually(lambda before=before: len(book.done) > before + 100, 30)  # type: ignore[misc]
            if trouble == "kill":
                program.send(signal.SIGKILL)
                program.ends()
                program = programs.enter_context(consuming(url, topic, book, kind, "--lease", "2"))
                kills += 1
            elif trouble == "restart":
                own_nats_server.kill()
                own_nats_server.start()
            else:
                proxy.cut()
                time.sleep(0.5)
                proxy.heal()
        with Wire(own_nats_server.url) as wire:
            eventually(lambda: wire.settled(topic, topic), 120)
            assert wire.count(f"{topic}%2Edlq") == 0
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    repeated = sum(count - 1 for count in Counter(book.numbers("done")).values())
    log.warning("%s: %d messages, %d kills, %d handled again", kind.name, messages, kills, repeated)
    assert book.done == set(range(messages))
    assert repeated <= (10 + 64) * (kills + 6)
