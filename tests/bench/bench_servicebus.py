"""Draining a Service Bus queue, and posting to one: against bare loops of the vendor's client.

The broker is the tests' own, so the figures compare clients; they say nothing of Azure.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import msgspec
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.aio import ServiceBusClient as AwaitingClient

from bench.orders import LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, post_by_hundreds, post_each, span
from bench.table import Row
from brokers.servicebus import ServiceBus
from pump import Dispatcher, Publication, Subscription

ROUNDS = 3
BATCH = 100
COUNT = 3_000
"""Fewer than elsewhere: each is completed with an answer of its own."""
POSTS = 1_000
LEAST = 0.75
"""Of the faster bare loop."""


class Bench:
    """One broker, and queues with all orders in them."""

    def __init__(self, broker: ServiceBus) -> None:
        self._broker = broker

    def stored(self, handler: type) -> tuple[str, Dispatcher]:
        """A dispatcher on a queue of its own with all orders in it."""
        name, dispatcher = self.made(handler)
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS[:COUNT])
        return name, dispatcher

    def made(self, handler: type) -> tuple[str, Dispatcher]:
        """A dispatcher on a queue of its own."""
        name = f"bench-{uuid4().hex[:8]}"
        return name, Dispatcher(
            self._broker.url,
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, buffer_size=BATCH)],
            publications=[Publication(PlaceOrder, topic=name)],
        )

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

    def post_each(self) -> float:
        """Seconds for posts one after another, each confirmed."""
        return post_each(self.made(Blocking)[1], POSTS)

    def post_hundred(self) -> float:
        """Seconds for as many, a hundred awaited at once."""
        return asyncio.run(post_by_hundreds(self.made(Awaiting)[1], POSTS))

    def post_together(self) -> float:
        """Seconds for as many in one call."""
        _, dispatcher = self.made(Blocking)
        with dispatcher.publishing():
            dispatcher.post(ORDERS[0])
            began = time.perf_counter()
            dispatcher.post_many(ORDERS[:POSTS])
            return time.perf_counter() - began

    def post_bare(self) -> float:
        """The same one after another, with the vendor's client."""
        with self._sender() as sender:
            began = time.perf_counter()
            for order in ORDERS[:POSTS]:
                sender.send_messages(ServiceBusMessage(msgspec.json.encode(order)))
            return time.perf_counter() - began

    def post_bare_together(self) -> float:
        """The same, a hundred by one call, with the vendor's client."""
        with self._sender() as sender:
            began = time.perf_counter()
            for begin in range(0, POSTS, BATCH):
                orders = ORDERS[begin : min(begin + BATCH, POSTS)]
                sender.send_messages([ServiceBusMessage(msgspec.json.encode(order)) for order in orders])
            return time.perf_counter() - began

    @contextmanager
    def _sender(self) -> Iterator[ServiceBusSender]:
        name, dispatcher = self.made(Blocking)
        with dispatcher.publishing():
            pass
        with (
            ServiceBusClient.from_connection_string(self._broker.connection_string) as client,
            client.get_queue_sender(name) as sender,
        ):
            yield sender


def measured() -> tuple[dict[str, float], dict[str, float]]:
    """The best seconds of each way to drain, and of each way to post."""
    with ServiceBus() as broker:
        bench = Bench(broker)
        posting: dict[str, Callable[[], float]] = {
            "bare send": bench.post_bare,
            "bare send by 100": bench.post_bare_together,
            "post": bench.post_each,
            "100 posts at once": bench.post_hundred,
            "post_many": bench.post_together,
        }
        measures: dict[str, Callable[[], float]] = {
            "bare azure-servicebus, blocking": bench.drain_bare,
            "bare azure-servicebus, awaiting": bench.drain_bare_awaiting,
            "reactor": lambda: bench.drain(Blocking),
            "proactor": lambda: bench.drain(Awaiting),
        }
        return best(measures, ROUNDS), best(posting, ROUNDS)


def rows() -> Iterator[Row]:
    """Every figure; the bound is on what a pump reaches of the faster bare loop."""
    figures, posting = measured()
    bare = min(figures[name] for name in figures if name.startswith("bare"))
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
        if not name.startswith("bare"):
            yield Row(f"{name} against the bare loop", bare / figure, "", LEAST)
    for name, figure in posting.items():
        yield Row(name, POSTS / figure, "msg/s")
    yield Row("post against a bare send", posting["bare send"] / posting["post"], "", LEAST)
    yield Row("post_many against bare sends by 100", posting["bare send by 100"] / posting["post_many"], "", LEAST)
