"""Draining a RabbitMQ queue: against bare pika with the same prefetch and the same coalesced acks, and FastStream."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Literal, get_args
from uuid import uuid4

import msgspec
import pika
import pytest
from faststream.rabbit import RabbitBroker, RabbitQueue

from bench.orders import COUNT, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain
from bench.table import Row
from brokers.rabbitmq import RabbitMQ
from pump import Dispatcher, Publication, Subscription
from pump.transports.rabbitmq import RabbitMQTransport

ROUNDS = 5
MOST_UNFLUSHED = 64

QueueType = Literal["quorum", "classic"]

pytestmark = pytest.mark.requirement("P-01")


class Bench:
    """One broker, and queues with all orders in them."""

    def __init__(self, broker: RabbitMQ) -> None:
        self._broker = broker

    def stored(self, queue_type: QueueType, handler: type, **options: Any) -> Dispatcher:
        """A dispatcher on a queue of its own with all orders in it."""
        name = f"bench-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            RabbitMQTransport.from_url(f"{self._broker.url}?queue_type={queue_type}"),
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, **options)],
            publications=[Publication(PlaceOrder, topic=name)],
        )
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS)
        return dispatcher

    def drain(self, queue_type: QueueType, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last, in our pump."""
        return drain(self.stored(queue_type, handler, **options))

    def drain_pika(self, queue_type: QueueType, prefetch: int) -> float:
        """The same by hand."""
        queue = self.stored(queue_type, Blocking).subscriptions[0].channel
        decode = msgspec.json.Decoder(PlaceOrder).decode
        step = max(1, min(MOST_UNFLUSHED, prefetch // 2))
        handled, began, took = 0, 0.0, 0.0

        def on_message(channel: Any, method: Any, _properties: object, body: bytes) -> None:
            nonlocal handled, began, took
            began = began or time.perf_counter()
            decode(body)
            handled += 1
            if handled % step == 0 or handled == COUNT:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if handled == COUNT:
                took = time.perf_counter() - began
                channel.connection.close()

        def on_channel(channel: Any) -> None:
            channel.basic_qos(prefetch_count=prefetch)
            channel.basic_consume(queue, on_message)

        connection = pika.SelectConnection(
            pika.URLParameters(self._broker.url),
            on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
            on_close_callback=lambda closed, _: closed.ioloop.stop(),
        )
        connection.ioloop.start()
        return took

    def drain_faststream(self, queue_type: QueueType) -> float:
        """The same with FastStream, which acknowledges each, and fetches ahead without limit by default."""
        queue = self.stored(queue_type, Blocking).subscriptions[0].channel
        return asyncio.run(self._drain_faststream(queue))

    async def _drain_faststream(self, queue: str) -> float:
        broker = RabbitBroker(self._broker.url, logger=None)
        handled, began = 0, 0.0
        done = asyncio.Event()

        @broker.subscriber(RabbitQueue(queue, declare=False))  # type: ignore[untyped-decorator,unused-ignore]
        async def handle(order: PlaceOrder) -> None:
            nonlocal handled, began
            began = began or time.perf_counter()
            handled += 1
            if handled == COUNT:
                done.set()

        await broker.start()
        await done.wait()
        took = time.perf_counter() - began
        await broker.stop()
        return took


def compared(bench: Bench, queue_type: QueueType, buffer: int, bound: float | None) -> Iterator[Row]:
    """Both pumps beside bare pika. With a small buffer each waits for the broker, and ours for one more thread."""
    figures = best(
        {
            "bare pika": lambda: bench.drain_pika(queue_type, buffer),
            "reactor": lambda: bench.drain(queue_type, Blocking, buffer_size=buffer),
            "proactor": lambda: bench.drain(queue_type, Awaiting, buffer_size=buffer),
        },
        ROUNDS,
    )
    bare = figures["bare pika"]
    for name, figure in figures.items():
        yield Row(f"{name}, {queue_type}, buffer {buffer}", COUNT / figure, "msg/s")
    for name in ("reactor", "proactor"):
        yield Row(f"{name} against bare pika, {queue_type}, buffer {buffer}", bare / figures[name], "×", bound)


def rows() -> Iterator[Row]:
    """Every figure."""
    with RabbitMQ() as broker:
        bench = Bench(broker)
        for queue_type in get_args(QueueType):
            yield from compared(bench, queue_type, 128, 0.75)
            yield from compared(bench, queue_type, 10, None)
        figures = best(
            {
                "FastStream": lambda: bench.drain_faststream("quorum"),
                "reactor": lambda: bench.drain("quorum", Blocking, buffer_size=128),
                "proactor": lambda: bench.drain("quorum", Awaiting, buffer_size=128),
            },
            ROUNDS,
        )
        yield Row("FastStream, quorum", COUNT / figures["FastStream"], "msg/s")
        for name in ("reactor", "proactor"):
            yield Row(f"{name} against FastStream", figures["FastStream"] / figures[name], "×", 4)
