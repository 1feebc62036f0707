"""The pump on the in-memory bus: against Dramatiq's StubBroker, its overhead, and the CPU time of a blocked queue."""

import asyncio
import gc
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from bench.table import Row
from pump import Command, Dispatcher, DontAckAction, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError
from pump.mapping.mapper import JsonMapper
from pump.message import Header, Message

COUNT = 30_000
ROUNDS = 5

pytestmark = pytest.mark.requirement("B-09")


@dataclass(frozen=True)
class PlaceOrder(Command):
    """The body that each of them decodes."""

    order_id: str
    sku: str
    quantity: int
    price: float
    express: bool


ORDERS = [
    PlaceOrder(f"order-{number:06}", "earl-grey-100g", number % 7, 4.25, express=False) for number in range(COUNT)
]


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


def drain(handler: type, **options: Any) -> float:
    """Seconds to handle all orders, which are there already."""
    global countdown  # noqa: PLW0603 - handlers are made by class, so what they share is here
    countdown = _Countdown(COUNT)
    dispatcher = Dispatcher(
        "memory://",
        handlers=[handler],
        subscriptions=[Subscription(PlaceOrder, topic="orders", **options)],
        publications=[Publication(PlaceOrder, topic="orders")],
    )
    with dispatcher.publishing():
        dispatcher.post_many(ORDERS)
    began = time.perf_counter()
    with dispatcher:
        if not countdown.done.wait(60):
            raise TimeoutError("the orders were not handled within a minute")
        return time.perf_counter() - began


def drain_dramatiq(threads: int) -> float:
    """The same with Dramatiq's in-memory broker and worker: JSON to dataclass, no-op actor."""
    broker = StubBroker()
    counter = _Countdown(COUNT)

    def handle(**fields: Any) -> None:
        PlaceOrder(**fields)
        counter.count()

    make: Any = dramatiq.actor  # whether it is typed depends on what is installed
    actor = make(handle, broker=broker, actor_name="place_order", queue_name="orders")
    for order in ORDERS:
        broker.enqueue(actor.message_with_options(kwargs=asdict(order)))
    worker = dramatiq.Worker(broker, worker_threads=threads)
    began = time.perf_counter()
    worker.start()
    if not counter.done.wait(120):
        raise TimeoutError("Dramatiq did not handle the orders within two minutes")
    took = time.perf_counter() - began
    worker.stop()
    broker.close()
    return took


def decode_only() -> float:
    """Seconds to map all orders, and do nothing else."""
    mapper = JsonMapper(PlaceOrder)
    header = Header("x", type="PlaceOrder")
    messages = [Message(header, mapper.encode(order)) for order in ORDERS]
    began = time.perf_counter()
    for message in messages:
        mapper.decode(message)
    return time.perf_counter() - began


def median(measure: Callable[[], float]) -> float:
    """The median of several rounds, each after a garbage collection."""
    figures = []
    for _ in range(ROUNDS):
        gc.collect()
        figures.append(measure())
    return statistics.median(figures)


def rows() -> Iterator[Row]:
    """Every figure, the slow ones last."""
    reactor = median(lambda: drain(Blocking))
    proactor = median(lambda: drain(Awaiting))
    concurrent = median(lambda: drain(Awaiting, in_flight=10))
    decoding = median(decode_only)
    rivals = {threads: median(lambda threads=threads: drain_dramatiq(threads)) for threads in (1, 8)}  # type: ignore[misc]
    rival = min(rivals.values())
    yield Row("reactor", COUNT / reactor, "msg/s")
    yield Row("proactor", COUNT / proactor, "msg/s")
    yield Row("proactor, in_flight=10", COUNT / concurrent, "msg/s")
    for threads, took in rivals.items():
        yield Row(f"Dramatiq StubBroker, {threads} threads", COUNT / took, "msg/s")
    yield Row("reactor against Dramatiq", rival / reactor, "×", 5)
    yield Row("proactor against Dramatiq", rival / proactor, "×", 5)
    yield Row("mapping alone", decoding / COUNT * 1e6, "µs/msg")
    yield Row("reactor beyond mapping", (reactor - decoding) / COUNT * 1e6, "µs/msg", 8, "at most")
    yield Row("proactor beyond mapping", (proactor - decoding) / COUNT * 1e6, "µs/msg", 8, "at most")
    yield from burned()
    yield from memory()


class Refuses(RequestHandler[PlaceOrder]):
    """Acknowledges no message."""

    runs = 0

    def handle(self, order: PlaceOrder) -> None:
        """Count, and do not acknowledge."""
        Refuses.runs += 1
        raise DontAckAction


class RefusesAsync(RequestHandler[PlaceOrder]):
    """The same, async."""

    async def handle(self, order: PlaceOrder) -> None:
        """Count, and do not acknowledge."""
        Refuses.runs += 1
        raise DontAckAction


def burned(wall_seconds: float = 10.0) -> Iterator[Row]:
    """What a permanently refused message costs."""
    for name, handler in (("reactor", Refuses), ("proactor", RefusesAsync)):
        Refuses.runs = 0
        dispatcher = Dispatcher(
            "memory://",
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic="orders", may_block=True)],
            publications=[Publication(PlaceOrder, topic="orders")],
        )
        with dispatcher:
            dispatcher.post_many(ORDERS[:100])
            began = time.process_time()
            threading.Event().wait(wall_seconds)
            share = (time.process_time() - began) / wall_seconds
        yield Row(f"{name}: CPU with a message left for ever", share * 100, "%", 5, "at most")
        yield Row(f"{name}: runs in {wall_seconds:g} s", Refuses.runs, "runs", wall_seconds + 1, "at most")


def memory(total: int = 1_000_000) -> Iterator[Row]:
    """How much the memory in use grows from the first ninety thousand messages to a million."""
    dispatcher = Dispatcher(
        "memory://",
        handlers=[Awaiting],
        subscriptions=[Subscription(PlaceOrder, topic="orders")],
        publications=[Publication(PlaceOrder, topic="orders")],
    )

    async def run() -> tuple[int, int]:
        global countdown  # noqa: PLW0603 - as above
        early = 0
        async with dispatcher:
            for part in range(total // COUNT):
                countdown = _Countdown(COUNT)
                await dispatcher.post_many_async(ORDERS)
                while not countdown.done.is_set():  # noqa: ASYNC110 - what is measured shall not set an event
                    await asyncio.sleep(0.01)
                gc.collect()
                if part == 2:
                    early = tracemalloc.get_traced_memory()[0]
            return early, tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    early, late = asyncio.run(run())
    tracemalloc.stop()
    yield Row(f"growth over {total:,} messages", (late - early) / 1024, "KiB", 256, "at most")
