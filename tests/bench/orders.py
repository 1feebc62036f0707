"""The orders that every broker's benchmark drains, the handlers that count them, and the best of several rounds."""

import asyncio
import gc
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from pump import Command, Dispatcher, RequestHandler

COUNT: Final = 20_000
LONG: Final = 120.0


@dataclass(frozen=True)
class PlaceOrder(Command):
    """The body that each of them decodes: 200 bytes of JSON."""

    order_id: str
    sku: str
    quantity: int
    price: float
    express: bool
    note: str


NOTE = "leave it with the neighbours at number seven, please, and ring twice, as the dog is deaf; thank you very"
ORDERS: Final = [
    PlaceOrder(f"{number:06}", "earl-grey-100g", number % 7, 4.25, express=False, note=NOTE) for number in range(COUNT)
]
assert len(msgspec.json.encode(asdict(ORDERS[0]))) == 200


class Span:
    """Measures from the first count to the last, so that connecting is never included. Counting costs little."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, count: int = COUNT) -> None:
        """Count from the first one again, to so many."""
        self._numbers = itertools.count(1)
        self._last = count
        self.began = 0.0
        self.took = 0.0
        self.done = threading.Event()

    def count(self) -> None:
        """One more was handled."""
        number = next(self._numbers)
        if number == 1:
            self.began = time.perf_counter()
        elif number == self._last:
            self.took = time.perf_counter() - self.began
            self.done.set()


span: Final = Span()
"""Handlers are made by class, so what they share is here."""


class Blocking(RequestHandler[PlaceOrder]):
    """Does nothing but count."""

    def handle(self, order: PlaceOrder) -> None:
        """Count."""
        span.count()


class Awaiting(RequestHandler[PlaceOrder]):
    """The same, async."""

    async def handle(self, order: PlaceOrder) -> None:
        """Count."""
        span.count()


def drain(dispatcher: Dispatcher) -> float:
    """Seconds from the first order handled to the last."""
    span.begin()
    with dispatcher:
        if not span.done.wait(LONG):
            raise TimeoutError("the orders were not handled in time")
        return span.took


def post_each(dispatcher: Dispatcher, count: int) -> float:
    """Seconds for posts one after another, each confirmed, over a connection that is there."""
    with dispatcher.publishing():
        dispatcher.post(ORDERS[0])
        began = time.perf_counter()
        for order in ORDERS[:count]:
            dispatcher.post(order)
        return time.perf_counter() - began


async def post_by_hundreds(dispatcher: Dispatcher, count: int) -> float:
    """Seconds for as many, a hundred awaited at once."""
    async with dispatcher.publishing():
        await dispatcher.post_async(ORDERS[0])
        began = time.perf_counter()
        for begin in range(0, count, 100):
            await asyncio.gather(*(dispatcher.post_async(order) for order in ORDERS[begin : min(begin + 100, count)]))
        return time.perf_counter() - began


def best(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The best of several rounds of each, taken in turns: whatever else runs can only add time."""
    figures = dict.fromkeys(measures, math.inf)
    for _ in range(rounds):
        for name, measure in measures.items():
            gc.collect()
            figures[name] = min(figures[name], measure())
    return figures
