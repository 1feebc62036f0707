"""Draining a JetStream durable: against nats-py's own fetch(100) and ack, and against FastStream; and explicit control.

Everybody drains the same 20,000 stored messages of 200 bytes, from the first handled to the last.
"""

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import msgspec
import nats
import pytest
from faststream.nats import JStream, NatsBroker, PullSub
from nats.js import api

from bench.orders import COUNT, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain, span
from bench.table import Row
from brokers.nats import Nats
from pump import Dispatcher, Message, RequestHandler
from pump.message import Header
from pump.transports.nats import AsyncNatsMessage, NatsMessage, NatsSubscription, NatsTransport
from pump.transports.nats.consumer import NatsReceipt
from support.nats_message_setup import MessageSetup

ROUNDS = 3
BATCH = 100

pytestmark = pytest.mark.requirement("P-01", "E-40")


BODIES = [msgspec.json.encode(asdict(order)) for order in ORDERS]


class Settling(RequestHandler[AsyncNatsMessage[PlaceOrder]]):
    """Settles its messages itself, and records how long each ack takes."""

    times: list[float] = []  # noqa: RUF012 - shared by all, and emptied for each round

    async def handle(self, message: AsyncNatsMessage[PlaceOrder]) -> None:
        """Acknowledge, and count."""
        began = time.perf_counter()
        await message.ack()
        Settling.times.append(time.perf_counter() - began)
        span.count()


class Bench:
    """One server, one stream with all orders, and a new durable of it for each round."""

    def __init__(self, server: Nats) -> None:
        self._server = server
        self._stream = f"bench-{uuid4().hex[:8]}"
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        connection = await nats.connect(self._server.url)
        js = connection.jetstream()
        await js.add_stream(name=self._stream, subjects=[self._stream])
        for body in BODIES:
            await asyncio.wait((await js.publish_async(self._stream, body),), timeout=0)
        await js.publish_async_completed()
        await connection.close()

    def durable(self) -> str:
        """A new durable that starts at the first order."""
        name = uuid4().hex[:8]
        asyncio.run(self._make(name))
        return name

    async def _make(self, name: str) -> None:
        connection = await nats.connect(self._server.url)
        config = api.ConsumerConfig(name=name, durable_name=name, ack_wait=30, max_ack_pending=-1, max_deliver=-1)
        await connection.jetstream().add_consumer(self._stream, config)
        await connection.close()

    def drain(self, handler: type, **options: Any) -> float:
        """With a pump."""
        rules = NatsSubscription(PlaceOrder, stream=self._stream, consumer=self.durable(), **options)
        return drain(Dispatcher(NatsTransport(self._server.url), handlers=[handler], subscriptions=[rules]))

    def drain_bare(self, batch: int) -> float:
        """By hand: fetch, decode, acknowledge."""
        return asyncio.run(self._drain_bare(self.durable(), batch))

    async def _drain_bare(self, durable: str, batch: int) -> float:
        connection = await nats.connect(self._server.url)
        pulled = await connection.jetstream().pull_subscribe_bind(durable, self._stream)
        decode = msgspec.json.Decoder(PlaceOrder).decode
        handled, began, took = 0, 0.0, 0.0
        while handled < COUNT:
            for message in await pulled.fetch(batch):
                began = began or time.perf_counter()
                decode(message.data)
                await message.ack()
                handled += 1
        took = time.perf_counter() - began
        await connection.close()
        return took

    def drain_faststream(self, **options: Any) -> float:
        """With FastStream."""
        return asyncio.run(self._drain_faststream(options))

    async def _drain_faststream(self, options: dict[str, Any]) -> float:
        broker = NatsBroker(self._server.url, logger=None)
        handled, began = 0, 0.0
        done = asyncio.Event()
        stream = JStream(self._stream, declare=False)

        subscriber: Any = broker.subscriber

        async def handle(order: PlaceOrder) -> None:
            nonlocal handled, began
            began = began or time.perf_counter()
            handled += 1
            if handled == COUNT:
                done.set()

        subscriber(self._stream, stream=stream, durable=uuid4().hex[:8], deliver_policy="all", **options)(handle)
        await broker.start()
        await done.wait()
        took = time.perf_counter() - began
        await broker.stop()
        return took


def drains(bench: Bench) -> Iterator[Row]:
    """Both pumps beside the others, with the same buffer as theirs and with the default one."""
    figures = best(
        {
            f"nats-py, fetch({BATCH}) and ack": lambda: bench.drain_bare(BATCH),
            f"FastStream, pull {BATCH}": lambda: bench.drain_faststream(pull_sub=PullSub(batch_size=BATCH)),
            "FastStream, push": bench.drain_faststream,
            f"reactor, buffer {BATCH}": lambda: bench.drain(Blocking, buffer_size=BATCH),
            f"proactor, buffer {BATCH}": lambda: bench.drain(Awaiting, buffer_size=BATCH),
            "nats-py, fetch(10) and ack": lambda: bench.drain_bare(10),
            "reactor": lambda: bench.drain(Blocking),
            "proactor": lambda: bench.drain(Awaiting),
        },
        ROUNDS,
    )
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    bare, fast = (min(figures[name] for name in figures if name.startswith(start)) for start in ("nats-py", "Fast"))
    for name in ("reactor", "proactor"):
        yield Row(f"{name} against fetch({BATCH}) and ack", bare / figures[f"{name}, buffer {BATCH}"], "×", 0.75)
        yield Row(f"{name} against FastStream", fast / figures[f"{name}, buffer {BATCH}"], "×", 2)
        yield Row(f"{name} against fetch(10) and ack", figures["nats-py, fetch(10) and ack"] / figures[name], "×", 0.75)


def explicit(bench: Bench) -> Iterator[Row]:
    """What a NatsMessage costs."""
    Settling.times.clear()
    took = bench.drain(Settling, buffer_size=BATCH)
    yield Row("proactor, AsyncNatsMessage", COUNT / took, "msg/s")
    yield Row("ack() of it, 99 of 100", statistics.quantiles(Settling.times, n=100)[98] * 1000, "ms", 10, "at most")
    yield Row("NatsMessage beyond its message", _bytes_each(), "B", 500, "at most")


def _bytes_each(count: int = 10_000) -> float:
    setup = MessageSetup("blocking")
    channel = setup.line.channel
    receipt = NatsReceipt(setup.raw, setup.delivery.receipt.consumer)  # type: ignore[attr-defined]
    messages = [Message(Header("1"), b"", receipt=receipt) for _ in range(count)]
    tracemalloc.start()
    wrappers = [NatsMessage(message, None, channel) for message in messages]
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    setup.close()
    return used / len(wrappers)


def rows() -> Iterator[Row]:
    """Every figure."""
    with Nats() as server:
        bench = Bench(server)
        yield from drains(bench)
        yield from explicit(bench)
