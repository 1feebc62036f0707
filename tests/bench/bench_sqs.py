"""Draining an SQS queue: against a bare loop of boto3 that receives and deletes ten at a time, on the same messages."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from bench.orders import LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, span
from bench.table import Row
from brokers.sqs import CREDENTIALS, Sqs, queue_url
from pump import Dispatcher, Publication, Subscription

COUNT = 2000
ROUNDS = 3
TEN = 10

pytestmark = pytest.mark.requirement("P-01")


class Bench:
    """One server, and queues with the orders in them."""

    def __init__(self, server: Sqs) -> None:
        self._server = server

    def stored(self, scheme: str, handler: type, **options: Any) -> tuple[str, Dispatcher]:
        """A dispatcher on a queue of its own with the orders in it."""
        name = f"bench-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            self._server.url_for(scheme),
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, **options)],
            publications=[Publication(PlaceOrder, topic=name)],
        )
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS[:COUNT])
        return name, dispatcher

    def drain(self, scheme: str, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last, in our pump."""
        name, dispatcher = self.stored(scheme, handler, **options)
        span.begin(COUNT)
        with dispatcher:
            if not span.done.wait(LONG):
                raise TimeoutError("the orders were not handled in time")
        client = self._server.client()
        client.delete_queue(QueueUrl=queue_url(client, name))
        return span.took

    def drain_bare(self) -> float:
        """A loop by hand: receive ten, decode each, delete the ten."""
        name, _ = self.stored("sqs", Blocking)
        decode = msgspec.json.Decoder(PlaceOrder).decode
        client, done, began = self._server.client(), 0, 0.0
        url = queue_url(client, name)
        while done < COUNT:
            reply = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=TEN,
                WaitTimeSeconds=1,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
            began = began or time.perf_counter()
            for each in reply["Messages"]:
                decode(each["Body"])
            entries = [
                {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]}
                for place, each in enumerate(reply["Messages"])
            ]
            client.delete_message_batch(QueueUrl=url, Entries=entries)
            done += len(entries)
        took = time.perf_counter() - began
        client.delete_queue(QueueUrl=url)
        return took


def rows() -> Iterator[Row]:
    """Every figure."""
    pumps = {"reactor": Blocking, "proactor": Awaiting}
    with pytest.MonkeyPatch.context() as patch, Sqs() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        bench = Bench(server)
        measures: dict[str, Callable[[], float]] = {"bare boto3": bench.drain_bare}
        for pump, handler in pumps.items():
            for buffer in (10, 40):
                measures[f"{pump}, buffer {buffer}"] = partial(bench.drain, "sqs", handler, buffer_size=buffer)
        figures = best(measures, ROUNDS)
    for name, figure in figures.items():
        yield Row(name, COUNT / figure, "msg/s")
    for pump in pumps:
        yield Row(f"{pump} against bare boto3", figures["bare boto3"] / figures[f"{pump}, buffer 10"], "×", 0.8)
