"""Processes are killed with kill -9, again and again: no message is lost, and no innocent message is given up."""

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
from support.nats_wire import Wire, in_each_pump
from support.programs import Program
from support.pumps import Kind
from support.waiting import eventually

log = logging.getLogger("chaos")
GRACE = 10.0
"""The default grace of a subscription, in seconds."""


class Mortal(Program):
    """A program that may end by itself."""

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


class Book:
    """The notes that the processes have written."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def numbers(self, word: str) -> list[int]:
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [int(words[1]) for words in lines if len(words) > 1 and words[0] == word]

    def times(self, word: str) -> list[float]:
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [float(words[2]) for words in lines if words and words[0] == word]

    @property
    def done(self) -> set[int]:
        return set(self.numbers("done"))


@contextmanager
def consuming(url: str, subject: str, book: Book, kind: Kind, *options: str) -> Iterator[Mortal]:
    """A consumer, until it is killed or the block ends."""
    colour = ["--awaits"] if kind.awaits else []
    command = [sys.executable, nats_program.__file__, url, subject, str(book.file), *colour, *options]
    with Mortal(command, book.file.parent) as program:
        yield program


@pytest.mark.requirement("R-14")
@pytest.mark.parametrize(("messages", "kills"), [(200, 4), pytest.param(1000, 20, marks=pytest.mark.long)])
@in_each_pump
def test_a_consumer_that_is_killed_again_and_again_loses_nothing(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, tmp_path: Path, messages: int, kills: int
) -> None:
    book = Book(tmp_path / topic)
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
    assert wire.count(f"{topic}=2Edlq") == 0
    repeated = sum(count - 1 for count in Counter(book.numbers("begun")).values())
    assert repeated <= kills * (10 + 64)


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize(("messages", "attempts"), [(20, 1), pytest.param(100, 3, marks=pytest.mark.long)])
@in_each_pump
def test_one_message_that_kills_among_others_is_found_out_and_the_others_are_handled(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, tmp_path: Path, messages: int, attempts: int
) -> None:
    book = Book(tmp_path / topic)
    killer = messages // 2
    wire.stream(topic)
    wire.flood(topic, messages)
    options = ("--lease", "1", "--killer", f"{killer}", "--attempts", f"{attempts}")
    deaths = 0
    while wire.count(f"{topic}=2Edlq") == 0:
        assert deaths <= attempts + 1
        with consuming(nats_server.url, topic, book, kind, *options) as program:
            eventually(lambda: program.ended or wire.count(f"{topic}=2Edlq") == 1, 30)
            program.send(signal.SIGTERM)
            program.ends()
        deaths = len(book.numbers("killed"))
    with consuming(nats_server.url, topic, book, kind, *options) as program:
        eventually(lambda: wire.settled(topic, topic), 30)
        program.send(signal.SIGTERM)
        program.ends()

    assert deaths
    assert book.done == set(range(messages)) - {killer}
    assert wire.count(f"{topic}=2Edlq") == 1
    letter = wire.stored(f"{topic}=2Edlq")
    assert letter.data == b'{"number": %d}' % killer
    assert letter.headers["pump-reason"] == "process died"  # type: ignore[index]


@pytest.mark.requirement("P-05")
@in_each_pump
def test_a_deferred_message_outlives_the_kill_of_its_consumer(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, tmp_path: Path
) -> None:
    book = Book(tmp_path / topic)
    wire.stream(topic)
    wire.orders(topic, 7)
    with consuming(nats_server.url, topic, book, kind, "--lease", "30", "--defer", "1") as program:
        eventually(lambda: wire.acknowledgements(topic), 20)
        program.send(signal.SIGKILL)
        program.ends()
    with consuming(nats_server.url, topic, book, kind, "--lease", "30"):
        eventually(lambda: book.done == {7}, 20)  # sooner than by its lease

    first, again = book.times("begun")
    assert again - first >= 0.9


@pytest.mark.requirement("P-11")
def test_sigterm_under_load_ends_the_process_within_its_grace(
    nats_server: Nats, wire: Wire, topic: str, kind: Kind, tmp_path: Path
) -> None:
    book = Book(tmp_path / topic)
    wire.stream(topic)
    wire.flood(topic, 2000)
    with consuming(nats_server.url, topic, book, kind, "--work", "0.002") as program:
        eventually(lambda: len(book.done) > 50, 20)
        began = time.monotonic()
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        took = time.monotonic() - began

    assert took < GRACE + 2
    left = 2000 - len(book.done)
    assert left  # the intake has stopped
    eventually(lambda: _waiting(wire, topic) == left)


def _waiting(wire: Wire, topic: str) -> int:
    info = wire.consumer(topic, topic)
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


@pytest.mark.requirement("P-13", "R-14", "R-15")
@pytest.mark.long
def test_ten_thousand_messages_through_ten_kills_three_restarts_and_three_cuts(
    own_nats_server: Nats, proxy_to: ProxyTo, topic: str, kind: Kind, tmp_path: Path
) -> None:
    book = Book(tmp_path / topic)
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
                lost = program.output.count("is lost")
                proxy.cut()
                program.says("is lost", lost + 1)
                proxy.heal()
        with Wire(own_nats_server.url) as wire:
            eventually(lambda: wire.settled(topic, topic), 120)
            assert wire.count(f"{topic}=2Edlq") == 0
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    repeated = sum(count - 1 for count in Counter(book.numbers("done")).values())
    log.warning("%s: %d messages, %d kills, %d handled again", kind.name, messages, kills, repeated)
    assert book.done == set(range(messages))
    assert repeated <= (10 + 64) * (kills + 6)
