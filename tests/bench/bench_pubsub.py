"""Draining a Pub/Sub subscription, against a bare streaming pull that acknowledges in batches, and posting to one.

On the test bed's server, which is written in Python: all of them share what it can give.
"""

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import grpc
import msgspec
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from bench.orders import COUNT, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain, post_by_hundreds, post_each
from bench.table import Row
from brokers.pubsub import PROJECT, PubSub
from pump import Dispatcher, Publication, Subscription

ROUNDS = 3
BUFFER = 500
POSTS = 2000

pytestmark = pytest.mark.requirement("P-01")


class Bench:
    """One server, and channels with all orders in them."""

    def __init__(self, server: PubSub) -> None:
        self._server = server

    def dispatcher(self, handler: type, *, streaming: bool = False, **options: Any) -> tuple[str, Dispatcher]:
        """On a topic of its own."""
        name = f"bench-{uuid4().hex[:8]}"
        return name, Dispatcher(
            f"{self._server.url}&streaming={str(streaming).lower()}",
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, **options)],
            publications=[Publication(PlaceOrder, topic=name)],
        )

    def stored(self, handler: type, **options: Any) -> tuple[str, Dispatcher]:
        """The same, with all orders in it."""
        name, dispatcher = self.dispatcher(handler, **options)
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS)
        return name, dispatcher

    def drain(self, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last, in our pump."""
        return drain(self.stored(handler, **options)[1])

    def drain_bare(self) -> float:
        """A loop by hand: each response decoded, and acknowledged by one request."""
        name = f"projects/{PROJECT}/subscriptions/{self.stored(Blocking)[0]}"
        decode = msgspec.json.Decoder(PlaceOrder).decode
        first: Any = {
            "subscription": name,
            "stream_ack_deadline_seconds": 60,
            "max_outstanding_messages": BUFFER,
        }
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(first)
        done, began = 0, 0.0
        with grpc.insecure_channel(self._server.endpoint) as channel:
            client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
            for response in client.streaming_pull(requests=iter(requests.get, None)):
                began = began or time.perf_counter()
                for received in response.received_messages:
                    decode(received.message.data)
                ack_ids = [received.ack_id for received in response.received_messages]
                client.acknowledge(subscription=name, ack_ids=ack_ids)
                done += len(ack_ids)
                if done == COUNT:
                    break
            took = time.perf_counter() - began
            requests.put(None)
        return took

    def post_each(self) -> float:
        """Seconds for posts one after another, each confirmed."""
        return post_each(self.dispatcher(Blocking)[1], POSTS)

    def post_hundred(self) -> float:
        """Seconds for as many, a hundred awaited at once."""
        return asyncio.run(post_by_hundreds(self.dispatcher(Awaiting)[1], POSTS))

    def post_bare(self) -> float:
        """The same one after another, with Google's client."""
        name, dispatcher = self.dispatcher(Blocking)
        with dispatcher.publishing():
            pass
        with grpc.insecure_channel(self._server.endpoint) as channel:
            client = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
            began = time.perf_counter()
            for order in ORDERS[:POSTS]:
                message: Any = {"data": msgspec.json.encode(order)}
                client.publish(topic=f"projects/{PROJECT}/topics/{name}", messages=[message])
            return time.perf_counter() - began


def rows() -> Iterator[Row]:
    """Every figure."""
    pumps = {"reactor": Blocking, "proactor": Awaiting}
    with PubSub() as server:
        bench = Bench(server)
        measures: dict[str, Callable[[], float]] = {"bare streaming pull": bench.drain_bare}
        for pump, handler in pumps.items():
            for buffer in (BUFFER, 10):
                for streaming in (False, True):
                    name = f"{pump}, buffer {buffer}{', streaming' if streaming else ''}"
                    options: dict[str, Any] = {"buffer_size": buffer, "streaming": streaming}
                    measures[name] = lambda handler=handler, options=options: bench.drain(handler, **options)  # type: ignore[misc]
        figures = best(measures, ROUNDS)
        posting = best(
            {"bare publish": bench.post_bare, "post": bench.post_each, "100 posts at once": bench.post_hundred}, ROUNDS
        )
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    for name, figure in posting.items():
        yield Row(name, POSTS / figure, "msg/s")
    for pump in pumps:
        for way in ("", ", streaming"):
            ours = figures[f"{pump}, buffer {BUFFER}{way}"]
            yield Row(f"{pump}{way} against a bare streaming pull", figures["bare streaming pull"] / ours, "×", 0.75)
    yield Row("post against a bare publish", posting["bare publish"] / posting["post"], "×", 0.75)
