"""Draining a Service Bus queue: against bare loops of the vendor's client, which complete each message.

The broker is the tests' own, so the figures compare clients; they say nothing of Azure.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import msgspec
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AwaitingClient

from bench.orders import LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, span
from bench.table import Row
from brokers.servicebus import ServiceBus
from pump import Dispatcher, Publication, Subscription

ROUNDS = 3
BATCH = 100
COUNT = 3_000
"""Fewer than elsewhere: each is completed with an answer of its own."""
LEAST = 0.75
"""Of the faster bare loop."""


class Bench:
    """One broker, and queues with all orders in them."""

    def __init__(self, broker: ServiceBus) -> None:
        self._broker = broker

    def stored(self, handler: type) -> tuple[str, Dispatcher]:
        """A dispatcher on a queue of its own with all orders in it."""
        name = f"bench-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            self._broker.url,
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, buffer_size=BATCH)],
            publications=[Publication(PlaceOrder, topic=name)],
        )
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS[:COUNT])
        return name, dispatcher

    def drain(self, handler: type) -> float:
        """Seconds from the first order to the last, in our pump."""
        _, dispatcher = self.stored(handler)
        span.begin(COUNT)
        with dispatcher:
            if not span.done.wait(LONG):
                raise TimeoutError("the orders were not handled in time")
            return span.took

    def drain_bare(self) -> float:
        """A loop by hand: a hundred at a time, each decoded and completed."""
        queue, _ = self.stored(Blocking)
        decode = msgspec.json.Decoder(PlaceOrder).decode
        done, began = 0, 0.0
        with (
            ServiceBusClient.from_connection_string(self._broker.connection_string) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            while done < COUNT:
                for message in receiver.receive_messages(BATCH, max_wait_time=5):
                    began = began or time.perf_counter()
                    decode(b"".join(message.body))
                    receiver.complete_message(message)
                    done += 1
            return time.perf_counter() - began

    def drain_bare_awaiting(self) -> float:
        """The same, awaiting."""
        return asyncio.run(self._drain_bare_awaiting(self.stored(Blocking)[0]))

    async def _drain_bare_awaiting(self, queue: str) -> float:
        decode = msgspec.json.Decoder(PlaceOrder).decode
        done, began = 0, 0.0
        async with (
            AwaitingClient.from_connection_string(self._broker.connection_string) as client,
            client.get_queue_receiver(queue) as receiver,
        ):
            while done < COUNT:
                for message in await receiver.receive_messages(BATCH, max_wait_time=5):
                    began = began or time.perf_counter()
                    decode(b"".join(message.body))
                    await receiver.complete_message(message)
                    done += 1
            return time.perf_counter() - began


def measured() -> dict[str, float]:
    """The best seconds of each."""
    with ServiceBus() as broker:
        bench = Bench(broker)
        measures: dict[str, Callable[[], float]] = {
            "bare azure-servicebus, blocking": bench.drain_bare,
            "bare azure-servicebus, awaiting": bench.drain_bare_awaiting,
            "reactor": lambda: bench.drain(Blocking),
            "proactor": lambda: bench.drain(Awaiting),
        }
        return best(measures, ROUNDS)


def rows() -> Iterator[Row]:
    """Every figure; the bound is on what a pump reaches of the faster bare loop."""
    figures = measured()
    bare = min(figures[name] for name in figures if name.startswith("bare"))
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
        if not name.startswith("bare"):
            yield Row(f"{name} against the bare loop", bare / figure, "", LEAST)
