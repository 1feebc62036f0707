"""What a message costs when many are in hand at once: much the same at 5,000 as at 50.

Python looks for garbage in all that is alive, so it is not quite the same: without that, the figures are equal.
"""

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.table import Row
from pump import Command, Dispatcher, Publication, Subscription

ROUNDS = 5
COUNT = 20_000
FEW, MANY = 50, 5_000
KEYS = 100


@dataclass(frozen=True)
class Order(Command):
    """What is handled."""

    number: int


def cpu(in_flight: int, keys: int = 0) -> float:
    """Seconds of CPU a message, with handlers that wait a moment each; with keys, most messages wait for others."""
    left, done = iter(range(COUNT - 1)), threading.Event()

    async def handle(_: Order) -> None:
        await asyncio.sleep(0.005)
        if next(left, None) is None:
            done.set()

    dispatcher = Dispatcher(
        "memory://",
        handlers=[handle],
        subscriptions=[Subscription(Order, topic="orders", in_flight=in_flight)],
        publications=[Publication(Order, topic="orders", key=lambda order: str(order.number % keys) if keys else None)],
    )
    with dispatcher.publishing():
        dispatcher.post_many([Order(number) for number in range(COUNT)])
    gc.collect()
    began = time.process_time()
    with dispatcher:
        if not done.wait(120):
            raise TimeoutError("the orders were not handled within two minutes")
        return (time.process_time() - began) / COUNT


def rows() -> Iterator[Row]:
    """The figures, measured in alternation."""
    figures: dict[tuple[int, int], list[float]] = {(FEW, 0): [], (MANY, 0): [], (MANY, KEYS): []}
    for _ in range(ROUNDS):
        for (in_flight, keys), found in figures.items():
            found.append(cpu(in_flight, keys))
    few, many, keyed = (statistics.median(found) for found in figures.values())
    yield Row(f"in_flight={FEW}", few * 1e6, "µs CPU/msg")
    yield Row(f"in_flight={MANY}", many * 1e6, "µs CPU/msg")
    yield Row(f"in_flight={MANY}, {KEYS} keys", keyed * 1e6, "µs CPU/msg")
    yield Row(f"{MANY} in hand against {FEW}", many / few, "×", 1.6, "at most")
    yield Row(f"{MANY} in hand, {KEYS} keys, against {FEW}", keyed / few, "×", 1.6, "at most")
