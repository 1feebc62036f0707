"""One channel of the MQTT transport: consumers, producers and what is sent to them, without a pump."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

from brokers.mosquitto import Mosquitto
from pump import Subscription
from pump.dead_letter import Rejection
from pump.message import Header, Message
from pump.request import Command
from pump.transports.mqtt import MqttServer, MqttTransport
from pump.transports.mqtt.consumer import MqttConsumer
from support.waiting import LIMIT, eventually

REJECTED = Rejection("delivery error", "OutOfTea", attempts=3)


class Order(Command):
    """What the messages are."""


class MqttBench:
    """A channel of its own on a broker, and whatever is opened on it, closed with the stack."""

    def __init__(self, broker: Mosquitto, stack: ExitStack, version: Any = "5", **options: Any) -> None:
        self.broker, self._stack = broker, stack
        self.topic = f"bench-{uuid4().hex[:12]}"
        self.server = MqttServer(host="127.0.0.1", port=broker.port, version=version)
        self.transport = MqttTransport(self.server, **options)
        self.subscription = Subscription(Order, topic=self.topic, channel=self.topic)
        self.dead_letters = replace(
            self.subscription, topic=f"{self.topic}.dead", channel=f"{self.topic}.dead", dead_letter=None
        )

    def consumer(
        self, subscription: Subscription | None = None, transport: MqttTransport | None = None
    ) -> MqttConsumer:
        """Open; `close` it, or let the stack do so."""
        consumer = (transport or self.transport).consumer(subscription or self.subscription)
        self._stack.callback(consumer.close)
        return consumer

    def post(self, *bodies: bytes, **fields: Any) -> None:
        """Confirmed when this returns."""
        producer = self.transport.producer()
        try:
            producer.send([Message(Header(uuid4().hex, self.topic, "Order", **fields), body) for body in bodies])
        finally:
            producer.close()


def receive(consumer: MqttConsumer, count: int) -> list[Message]:
    """So many messages; fails if they do not come in time."""
    found: list[Message] = []

    def all_came() -> bool:
        found.extend(consumer.receive(count - len(found), 0.5))
        return len(found) >= count

    eventually(all_came, LIMIT)
    return found


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]
