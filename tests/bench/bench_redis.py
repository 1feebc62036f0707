"""Draining a Redis stream or list: against a bare loop of redis-py on the same messages, and against FastStream."""

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from faststream.redis import RedisBroker, StreamSub

from bench.table import Row
from brokers.redis import Redis
from pump import Command, Dispatcher, Publication, RequestHandler, Subscription

COUNT = 20_000
ROUNDS = 5
LONG = 120.0
BATCH = 100

pytestmark = pytest.mark.requirement("P-01")


@dataclass(frozen=True)
class PlaceOrder(Command):
    """The body that everybody decodes: 200 bytes of JSON."""

    order_id: str
    sku: str
    quantity: int
    price: float
    express: bool
    note: str


NOTE = "leave it with the neighbours at number seven, please, and ring twice, as the dog is deaf; thank you very"
ORDERS = [
    PlaceOrder(f"{number:06}", "earl-grey-100g", number % 7, 4.25, express=False, note=NOTE) for number in range(COUNT)
]
assert len(msgspec.json.encode(asdict(ORDERS[0]))) == 200


class _Countdown:
    """Set once so many have been counted; counting costs as little as can be."""

    def __init__(self, count: int) -> None:
        self._numbers = iter(range(count - 1))
        self.done = threading.Event()

    def count(self) -> None:
        if next(self._numbers, None) is None:
            self.done.set()


countdown = _Countdown(COUNT)


class Blocking(RequestHandler[PlaceOrder]):
    """Does nothing but count."""

    def handle(self, order: PlaceOrder) -> None:
        """Count."""
        countdown.count()


class Awaiting(RequestHandler[PlaceOrder]):
    """The same, async."""

    async def handle(self, order: PlaceOrder) -> None:
        """Count."""
        countdown.count()


class Bench:
    """One server, and topics with all orders in them."""

    def __init__(self, server: Redis) -> None:
        self._server = server

    def stored(self, scheme: str, handler: type, **options: Any) -> tuple[str, Dispatcher]:
        """A dispatcher on a topic of its own with all orders in it."""
        self._clean()
        name = f"bench-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            f"{scheme}://127.0.0.1:{self._server.port}/0",
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, **options)],
            publications=[Publication(PlaceOrder, topic=name)],
        )
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS)
        return name, dispatcher

    def drain(self, scheme: str, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last; connecting is not measured, for nobody."""
        global countdown  # noqa: PLW0603 - handlers are made by class, so what they share is here
        _, dispatcher = self.stored(scheme, handler, **options)
        countdown = _Countdown(COUNT)
        began = 0.0

        def count() -> None:
            nonlocal began
            began = time.perf_counter()
            del countdown.count  # from now on, it is the method of its class
            countdown.count()

        countdown.count = count  # type: ignore[method-assign]
        with dispatcher:
            if not countdown.done.wait(LONG):
                raise TimeoutError("the orders were not handled in time")
            return time.perf_counter() - began

    def drain_bare(self) -> float:
        """A loop by hand: XREADGROUP of a hundred, each decoded, XACK of the hundred."""
        topic, _ = self.stored("redis", Blocking)
        decode = msgspec.json.Decoder(PlaceOrder).decode
        done, began = 0, 0.0
        with self._server.client() as client:
            while done < COUNT:
                ((_, entries),) = client.xreadgroup(topic, "bare", {topic: ">"}, count=BATCH, block=1000)
                began = began or time.perf_counter()
                for _, fields in entries:
                    decode(fields[b"body"])
                client.xack(topic, topic, *(entry for entry, _ in entries))
                done += len(entries)
            return time.perf_counter() - began

    def drain_faststream(self, max_records: int | None) -> float:
        """The same with FastStream, which acknowledges each; it reads as many at a time as it is told."""
        self._clean()
        return asyncio.run(self._drain_faststream(f"bench-{uuid4().hex[:8]}", max_records))

    async def _drain_faststream(self, stream: str, max_records: int | None) -> float:
        broker: Any = RedisBroker(self._server.url, logger=None)  # type: ignore[arg-type,unused-ignore] # it may be None
        await broker.connect()
        async with broker._connection.pipeline(transaction=False) as pipeline:
            for order in ORDERS:
                await broker.publish(asdict(order), stream=stream, pipeline=pipeline)
            await pipeline.execute()
        handled, began = 0, 0.0
        done = asyncio.Event()

        @broker.subscriber(stream=StreamSub(stream, group="g", consumer="c", last_id=">", max_records=max_records))  # type: ignore[untyped-decorator,unused-ignore]
        async def handle(order: PlaceOrder) -> None:
            nonlocal handled, began
            began = began or time.perf_counter()
            handled += 1
            if handled == COUNT:
                done.set()

        with self._server.client() as client:
            client.xgroup_create(stream, "g", id="0")
        await broker.start()
        await asyncio.wait_for(done.wait(), LONG)
        took = time.perf_counter() - began
        await broker.stop()
        return took

    def _clean(self) -> None:
        with self._server.client() as client:
            client.flushall()


def best(measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The best of several rounds of each, taken in turns: all else that this machine does only adds."""
    figures = dict.fromkeys(measures, math.inf)
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            gc.collect()
            figures[name] = min(figures[name], measure())
    return figures


def rows() -> Iterator[Row]:
    """Every figure."""
    pumps = {"reactor": Blocking, "proactor": Awaiting}
    with Redis() as server:
        bench = Bench(server)
        measures: dict[str, Callable[[], float]] = {
            "bare redis-py": bench.drain_bare,
            "FastStream": lambda: bench.drain_faststream(None),
            f"FastStream, {BATCH} at a time": lambda: bench.drain_faststream(BATCH),
        }
        for scheme, kind in (("redis", "streams"), ("redis+list", "lists")):
            for pump, handler in pumps.items():
                for buffer in (BATCH, 10):
                    measures[f"{pump}, {kind}, buffer {buffer}"] = (
                        lambda scheme=scheme, handler=handler, buffer=buffer: bench.drain(  # type: ignore[misc]
                            scheme, handler, buffer_size=buffer
                        )
                    )
        figures = best(measures)
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    rival = min(figure for name, figure in figures.items() if name.startswith("FastStream"))
    for pump in pumps:
        ours = figures[f"{pump}, streams, buffer {BATCH}"]
        yield Row(f"{pump} against bare redis-py", figures["bare redis-py"] / ours, "×", 0.5)
        yield Row(f"{pump} against FastStream", rival / ours, "×", 8)
