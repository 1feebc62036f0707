"""Consumers of both Redis transports without a channel above them, and a client that reads the server's state."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from brokers.redis import Redis
from pump.dead_letter import Rejection
from pump.message import Header, Message
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.transports.redis import RedisListTransport, RedisTransport, Server
from pump.transports.redis.consumer import RedisConsumer

REJECTED = Rejection("delivery error", "OutOfTea", "no tea left")
INVALID = Rejection("unacceptable", "Unreadable")


class Sample(Command):
    """The request in the messages."""


class RedisBench(ABC):
    """One server, one topic with one channel, and the consumers that a test opens."""

    def __init__(self, server: Redis, stack: ExitStack) -> None:
        self.server = server
        self.stack = stack
        self.topic = f"topic-{uuid4().hex[:12]}"
        self.client: Any = stack.enter_context(server.client())
        self.channel, self.shipping = (f"{name}-{uuid4().hex[:12]}" for name in ("billing", "shipping"))

    @property
    def address(self) -> Server:
        return Server(host="127.0.0.1", port=self.server.port, password=self.server.password)

    @abstractmethod
    def transport(self, **options: Any) -> RedisTransport | RedisListTransport: ...

    @abstractmethod
    def depth(self, name: str) -> int:
        """How many messages the topic of this name keeps."""

    @property
    @abstractmethod
    def in_hand(self) -> int:
        """How many messages of the channel are in the hands of consumers."""

    def consumer(self, transport: Any = None, **options: Any) -> RedisConsumer:
        """A consumer of the channel, closed at the end."""
        opened: RedisConsumer = (transport or self.transport()).consumer(self.rules(**options))
        self.stack.callback(opened.close)
        return opened

    @property
    def dead_letter(self) -> str:
        """The topic of the channel's dead letters."""
        return f"{self.channel}.dead"

    def key(self, what: str) -> str:
        """A key of the channel."""
        return f"{{{self.topic}}}:{self.channel}:{what}"

    def rules(self, **options: Any) -> Subscription:
        return Subscription(Sample, **{"topic": self.topic, "channel": self.channel, "lease": 30.0, **options})

    def post(self, *bodies: str, delay: float = 0.0, **header: Any) -> None:
        producer = self.transport().producer()
        self.stack.callback(producer.close)
        producer.send([self.message(body, **header) for body in bodies], delay)

    def message(self, body: str = "", **header: Any) -> Message:
        return Message(Header(**{"id": uuid4().hex, "topic": self.topic, "type": "Sample", **header}), body.encode())

    def prepare(self, **options: Any) -> None:
        self.transport().prepare([self.rules(**options)], [Publication(Sample, topic=self.topic)])


class StreamBench(RedisBench):
    def transport(self, **options: Any) -> RedisTransport:
        return RedisTransport(self.address, **options)

    def depth(self, name: str) -> int:
        return int(self.client.xlen(name))

    @property
    def in_hand(self) -> int:
        return sum(self.pending().values())

    def pending(self, name: str = "") -> dict[str, int]:
        """How many messages of the topic's stream each consumer has."""
        found = self.client.xpending(name or self.topic, self.channel)["consumers"]
        return {each["name"].decode(): each["pending"] for each in found}

    @property
    def own(self) -> str:
        """The channel's own stream."""
        return self.key("again")


class ListBench(RedisBench):
    def transport(self, **options: Any) -> RedisListTransport:
        return RedisListTransport(self.address, **options)

    def depth(self, name: str) -> int:
        return int(self.client.llen(name))

    def held(self, channel: str) -> str:
        """The key that holds the messages of the only consumer of the channel."""
        (key,) = self.client.keys(f"{{{self.topic}}}:{channel}:held:*")
        return str(key.decode())

    @property
    def in_hand(self) -> int:
        return sum(self.client.llen(key) for key in self.client.keys(self.key("held:*")))


def receive(consumer: RedisConsumer, count: int, limit: int = 64) -> list[Message]:
    """This many messages."""
    found: list[Message] = []
    while len(found) < count:
        some = consumer.receive(min(limit, count - len(found)), 5.0)
        assert some, f"only {len(found)} of {count} messages came"
        found += some
    return found


def bodies(messages: Sequence[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


def left(server: Redis, channel: str) -> int:
    """How many messages of the channel wait, are in hand, or come later."""
    with server.client() as client:
        found = 0
        for key in client.keys(f"*{channel}*"):
            kind, name = client.type(key), key.decode()
            if kind == b"stream" and not name.endswith(".dead"):
                group = client.xinfo_groups(key)
                later = client.xlen(key) if name.endswith(":later") else 0
                found += later + sum(each["pending"] + (each["lag"] or 0) for each in group)
            elif kind == b"list" and not name.endswith(".dead"):
                found += client.llen(key)
            elif kind == b"zset":
                found += client.zcard(key)
        return found


def dead(server: Redis, channel: str) -> int:
    """How many dead letters the channel has."""
    with server.client() as client:
        name = f"{channel}.dead"
        return int({b"stream": client.xlen, b"list": client.llen}.get(client.type(name), lambda _: 0)(name))
