"""Draining a Kafka topic: against a bare loop of the client library on the same messages, and against FastStream.

On the broker within the client library, which keeps 5 MB of each partition: all drain one topic, each as a new group.
The bare loop decodes each message to the same dataclass and calls the same handler. One that does neither is beside it:
it shows what the client library alone costs.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from faststream.confluent import KafkaBroker

from bench.orders import COUNT, LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain, span
from bench.table import Row
from brokers.kafka import Kafka
from pump import Dispatcher, Publication, Subscription

ROUNDS = 3
BATCH = 500

pytestmark = pytest.mark.requirement("P-01")


class Bench:
    """One broker, and one topic with all orders in it."""

    def __init__(self, broker: Kafka) -> None:
        self._broker = broker
        self._topic = f"bench-{uuid4().hex[:8]}"
        posting = Dispatcher(broker.url, publications=[Publication(PlaceOrder, topic=self._topic, key="order_id")])
        with posting.publishing():
            posting.post_many(ORDERS)

    def drain(self, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last, in our pump."""
        rules = Subscription(PlaceOrder, topic=self._topic, channel=f"g-{uuid4().hex[:8]}", **options)
        return drain(Dispatcher(self._broker.url, handlers=[handler], subscriptions=[rules]))

    def drain_bare(self, *, decoded: bool = True) -> float:
        """A loop by hand: five hundred at a time, each decoded and handled, the last of each partition stored."""
        settings = {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
        client: Any = Consumer(self._broker.client(**settings))
        decode, handle = msgspec.json.Decoder(PlaceOrder).decode, Blocking().handle
        span.begin()
        done, began = 0, 0.0
        client.subscribe([self._topic])
        while done < COUNT:
            records = client.consume(BATCH, 0.1)
            if not records:
                continue
            began = began or time.perf_counter()
            if decoded:
                for record in records:
                    handle(decode(record.value()))
            last = {record.partition(): record for record in records}
            client.store_offsets(
                offsets=[TopicPartition(self._topic, number, record.offset() + 1) for number, record in last.items()]
            )
            done += len(records)
        took = time.perf_counter() - began
        client.close()
        return took

    def drain_faststream(self) -> float:
        """With FastStream's broker on the same client library."""
        return asyncio.run(self._drain_faststream())

    async def _drain_faststream(self) -> float:
        broker: Any = KafkaBroker(self._broker.server, logger=None, allow_auto_create_topics=False)  # type: ignore[arg-type,unused-ignore]
        handled, began = 0, 0.0
        done = asyncio.Event()

        @broker.subscriber(self._topic, group_id=uuid4().hex, auto_offset_reset="earliest")  # type: ignore[untyped-decorator,unused-ignore]
        async def handle(order: PlaceOrder) -> None:
            nonlocal handled, began
            began = began or time.perf_counter()
            handled += 1
            if handled == COUNT:
                done.set()

        await broker.start()
        await asyncio.wait_for(done.wait(), LONG)
        took = time.perf_counter() - began
        await broker.stop()
        return took


def rows() -> Iterator[Row]:
    """Every figure."""
    pumps = {"reactor": Blocking, "proactor": Awaiting}
    with Kafka() as broker:
        bench = Bench(broker)
        measures: dict[str, Callable[[], float]] = {
            "bare confluent-kafka": bench.drain_bare,
            "bare confluent-kafka, nothing decoded or handled": partial(bench.drain_bare, decoded=False),
            "FastStream": bench.drain_faststream,
        }
        for pump, handler in pumps.items():
            for buffer in (BATCH, 10):
                measures[f"{pump}, buffer {buffer}"] = lambda handler=handler, buffer=buffer: bench.drain(  # type: ignore[misc]
                    handler, buffer_size=buffer
                )
        figures = best(measures, ROUNDS)
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    for pump in pumps:
        ours = figures[f"{pump}, buffer {BATCH}"]
        yield Row(f"{pump} against bare confluent-kafka", figures["bare confluent-kafka"] / ours, "×")
        yield Row(f"{pump} against FastStream", figures["FastStream"] / ours, "×", 2)
