"""What a journal costs the pump on the in-memory bus, where nothing else waits; and how long a large one takes to read.

The journal is compared with the same pump without one, in alternation, while its thread writes all the time.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.alone import alone
from bench.table import Row
from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError
from pump.journal.counting import row_count
from pump.journal.files import live
from pump.journal.summary import Summary
from pump.journal.writer import Journal
from pump.spark.journal.command import session_settings
from support.journals import generate

COUNT = 100_000
ROUNDS = 7
FLUSH = 0.2
"""Shorter than anybody needs: so that what is written is written while it is measured."""


@dataclass(frozen=True)
class PlaceOrder(Command):
    """The body that is decoded."""

    order_id: str
    sku: str
    quantity: int
    price: float
    express: bool


class _Countdown:
    """Sets an event at the last count; counting costs as little as possible."""

    def __init__(self, count: int) -> None:
        self._numbers = iter(range(count - 1))
        self.done = threading.Event()

    def count(self) -> None:
        if next(self._numbers, None) is None:
            self.done.set()


countdown = _Countdown(COUNT)


class Blocking(RequestHandler[PlaceOrder]):
    """Does nothing but count."""

    @DontAckOnError()
    def handle(self, order: PlaceOrder) -> None:
        """Count."""
        countdown.count()


class Awaiting(RequestHandler[PlaceOrder]):
    """The same, async."""

    @DontAckOnError()
    async def handle(self, order: PlaceOrder) -> None:
        """Count."""
        countdown.count()


def drain(handler: type, folder: Path | None, count: int) -> tuple[float, float]:
    """Seconds to handle all orders, which are there already; and the CPU time of all, until the journal is closed."""
    global countdown  # noqa: PLW0603 - handlers are made by class, so what they share is here
    countdown = _Countdown(count)
    dispatcher = Dispatcher(
        "memory://",
        handlers=[handler],
        subscriptions=[Subscription(PlaceOrder, topic="orders")],
        publications=[Publication(PlaceOrder, topic="orders")],
        listeners=[] if folder is None else [Journal(folder, flush=FLUSH)],
    )
    with dispatcher.publishing():
        dispatcher.post_many(PlaceOrder(f"order-{n:06}", "earl-grey", n % 7, 4.25, express=False) for n in range(count))
    began, cpu = time.perf_counter(), time.process_time()
    with dispatcher:
        if not countdown.done.wait(120):
            raise TimeoutError("the orders were not handled within two minutes")
        took = time.perf_counter() - began
    return took, time.process_time() - cpu


@dataclass(frozen=True)
class Compared:
    """A pump without a journal and with one."""

    ratio: float
    """The throughput with a journal as a part of that without one: the median of pairs."""
    without: float
    """Messages a second, the best of all rounds."""
    with_it: float
    cpu_without: float
    """Microseconds of CPU time for a message, of all threads, until all is written: the least of all rounds."""
    cpu_with_it: float


def compared(name: str, count: int = COUNT, rounds: int = ROUNDS) -> Compared:
    """Both in alternation."""
    handler = {"reactor": Blocking, "proactor": Awaiting}[name]
    without: list[tuple[float, float]] = []
    with_it: list[tuple[float, float]] = []
    place = Path(tempfile.mkdtemp(prefix="pump-journal-"))
    try:
        drain(handler, place / "warm", count // 4)
        for number in range(rounds):
            without.append(drain(handler, None, count))
            with_it.append(drain(handler, place / f"{number}", count))
    finally:
        shutil.rmtree(place)
    ratio = statistics.median(first / second for (first, _), (second, _) in zip(without, with_it, strict=True))
    (took, cpu), (took_with, cpu_with) = (map(min, zip(*times, strict=True)) for times in (without, with_it))
    return Compared(ratio, count / took, count / took_with, cpu / count * 1e6, cpu_with / count * 1e6)


def summarised(count: int, files: int) -> tuple[float, float, float]:
    """Seconds of `pump spark summary` for a journal of so many events; of Spark for the same; of the start of Spark."""
    folder = Path(tempfile.mkdtemp(prefix="pump-journal-"))
    try:
        generate(folder, count, files)
        command = summary_command(folder)
        took, opened, summary = summarised_in(folder)
    finally:
        shutil.rmtree(folder)
    if (summary.events, sum(each.deliveries for each in summary.windows)) != (count, count):
        raise ValueError(f"of {count} events {summary.events} were counted")
    return command, took, opened


def summary_command(folder: Path) -> float:
    """Seconds of `pump spark summary`, with the start of Python."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pump", "spark", "summary", str(folder)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    took = time.perf_counter() - began
    if not shown.splitlines()[0].endswith("counted by this process"):
        raise ValueError(shown.splitlines()[0])
    return took


def summarised_in(folder: Path) -> tuple[float, float, Summary]:
    """Seconds to start a session and count everything; seconds to start alone; and what was counted."""
    from pump.spark.journal.counting import summarise_on
    from pump.spark.session import open_session

    began = time.perf_counter()
    files = live(folder).all
    spark = open_session("bench", settings=session_settings(row_count(files)))
    opened = time.perf_counter() - began
    summary = summarise_on(spark, files)
    took = time.perf_counter() - began
    spark.stop()
    return took, opened, summary


def rows() -> Iterator[Row]:
    """All figures."""
    command, took, opened = alone(summarised, 1_000_000, 8)
    yield Row("a million events are summarised by the command", command, "s", 15, "at most")
    yield Row("a session of Spark begins", opened, "s")
    yield Row("it begins, and a million events are summarised", took, "s")
    for name in ("reactor", "proactor"):
        found = alone(compared, name)
        yield Row(f"{name} without a journal", found.without, "msg/s")
        yield Row(f"{name} with a journal", found.with_it, "msg/s")
        yield Row(f"{name}: with against without", found.ratio, "×", 0.95)
        yield Row(f"{name}: CPU time of all threads, without", found.cpu_without, "µs")
        yield Row(f"{name}: CPU time of all threads, with", found.cpu_with_it, "µs")
