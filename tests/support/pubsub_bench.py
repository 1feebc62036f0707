"""A channel on the test bed's Pub/Sub: consumers without a channel above them, dispatchers, and what is left there."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from brokers.pubsub import PROJECT, PubSub
from pump import Command, Dispatcher, Publication, Subscription
from pump.dead_letter import Rejection
from pump.message import Header, Message
from pump.transports.pubsub import PubSubSettings, PubSubTransport
from pump.transports.pubsub.consumer import PubSubConsumer
from support.pumps import Body, Kind, Order
from support.recovery import everything_was_run
from support.waiting import eventually
from support.works import Works

REJECTED = Rejection("delivery error", "OutOfTea", "no tea left")
LEASE = 30.0
SLOW = 30.0
"""Seconds; what works never waits for it."""


class Sample(Command):
    """What the messages ask for."""


class PubSubBench:
    """One server, one topic with one channel, and whatever a test opens there."""

    def __init__(self, server: PubSub, stack: ExitStack, port: int = 0) -> None:
        self.server, self.stack = server, stack
        self.port = port or server.port
        self.topic = self.channel = f"billing-{uuid4().hex[:12]}"

    def transport(self, **options: Any) -> PubSubTransport:
        given: dict[str, Any] = {"plaintext": True, "lease": LEASE, **options}
        return PubSubTransport(PubSubSettings(project=PROJECT, endpoint=f"127.0.0.1:{self.port}", **given))

    def rules(self, **options: Any) -> Subscription:
        return Subscription(Sample, **{"topic": self.topic, "channel": self.channel, **options})

    def consumer(self, transport: PubSubTransport | None = None, **options: Any) -> PubSubConsumer:
        opened = (transport or self.transport()).consumer(self.rules(**options))
        self.stack.callback(opened.close)
        return opened

    def message(self, body: str | bytes = "", **header: Any) -> Message:
        data = body if isinstance(body, bytes) else body.encode()
        return Message(Header(**{"id": uuid4().hex, "topic": self.topic, "type": "Sample", **header}), data)

    def post(self, *bodies: str | bytes, **header: Any) -> None:
        producer = self.transport().producer()
        self.stack.callback(producer.close)
        producer.send([self.message(body, **header) for body in bodies])

    def url(self, **options: Any) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"pubsub://{PROJECT}?endpoint=127.0.0.1:{self.port}&plaintext=true{more}"

    def dispatcher(self, kind: Kind, body: Body, url: str = "", **options: Any) -> Dispatcher:
        return Dispatcher(
            url or self.url(),
            handlers=[kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.channel, **{**kind.options, **options})],
            publications=[Publication(Order, topic=self.topic)],
        )

    def fully(self, name: str) -> str:
        return f"projects/{PROJECT}/subscriptions/{name}"

    def left(self, name: str = "") -> int:
        """How many messages a subscription has, the channel's and what comes again to it by default."""
        names = [name] if name else [self.channel, f"{self.channel}.retry"]
        return sum(int(self.server.state(each).get("unacknowledged", 0)) for each in names)

    @property
    def dead(self) -> int:
        return self.left(f"{self.channel}.dead")

    def everything_was_run(self, works: Works, count: int, at_most_twice: int) -> None:
        channel = works.channel
        everything_was_run(works, count, at_most_twice, lambda: self.left(channel) + self.left(f"{channel}.retry"))
        assert self.left(f"{channel}.dead") == 0

    def ends(self, dead: int = 0) -> None:
        """Wait until nothing is left, and there are so many dead letters."""
        eventually(lambda: self.left() == 0 and self.dead == dead, SLOW)


def receive(consumer: PubSubConsumer, count: int, limit: int = 64, within: float = SLOW) -> list[Message]:
    """So many messages; fails if they do not come."""
    found: list[Message] = []
    deadline = time.monotonic() + within
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += consumer.receive(min(limit, count - len(found)), 0.2)
    return found


def nothing(consumer: PubSubConsumer, seconds: float = 0.3) -> bool:
    return not consumer.receive(10, seconds)


def bodies(messages: Sequence[Message]) -> list[str]:
    return [each.body.decode() for each in messages]
