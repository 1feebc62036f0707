"""Draining a Redis stream or list: against a bare loop of redis-py on the same messages, and against FastStream."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from faststream.redis import RedisBroker, StreamSub

from bench.orders import COUNT, LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain
from bench.table import Row
from brokers.redis import Redis
from pump import Dispatcher, Publication, Subscription

ROUNDS = 5
BATCH = 100

pytestmark = pytest.mark.requirement("P-01")


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
        """Seconds from the first order to the last, in our pump."""
        return drain(self.stored(scheme, handler, **options)[1])

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
        figures = best(measures, ROUNDS)
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    rival = min(figure for name, figure in figures.items() if name.startswith("FastStream"))
    for pump in pumps:
        ours = figures[f"{pump}, streams, buffer {BATCH}"]
        yield Row(f"{pump} against bare redis-py", figures["bare redis-py"] / ours, "×", 0.5)
        yield Row(f"{pump} against FastStream", rival / ours, "×", 8)
