"""One queue of the Service Bus peer, and consumers of it, for tests of the transport without a pump."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue

from brokers.servicebus import ServiceBus
from pump import Command, Publication, Subscription
from pump.message import Header, Message
from pump.transports.servicebus import ServiceBusSessionsTransport, ServiceBusTransport
from pump.transports.servicebus.consumer import ServiceBusConsumer
from support.waiting import eventually

PATIENCE = 30.0


class Sample(Command):
    """The request of these messages."""


class QueueBench:
    """A queue with a name of its own; what is opened is closed with the stack."""

    made_by: type[ServiceBusTransport] = ServiceBusTransport

    def __init__(self, broker: ServiceBus, stack: ExitStack, **options: Any) -> None:
        self.broker, self.stack = broker, stack
        self.name = f"q-{uuid4().hex[:10]}"
        self.transport = self.made_by(broker.connection_string, management_port=broker.admin_port, **options)

    def subscription(self, **options: Any) -> Subscription:
        return Subscription(Sample, **{"topic": self.name, "channel": self.name, "lease": 5.0, **options})

    def consumer(self, **options: Any) -> ServiceBusConsumer:
        """A consumer of the queue, which is made if it is missing."""
        subscription = self.subscription(**options)
        self.transport.prepare([subscription], [Publication(Sample, topic=self.name)])
        consumer = self.transport.consumer(subscription)
        self.stack.callback(consumer.close)
        return consumer

    def again(self, **options: Any) -> ServiceBusConsumer:
        """Another consumer of what is there."""
        consumer = self.transport.consumer(self.subscription(**options))
        self.stack.callback(consumer.close)
        return consumer

    def send(self, *bodies: str, **header: Any) -> list[Message]:
        """Send by our own producer."""
        sent = [Message(Header(uuid4().hex, self.name, **header), body.encode()) for body in bodies]
        producer = self.transport.producer()
        try:
            producer.send(sent)
        finally:
            producer.close()
        return sent

    def send_foreign(self, *messages: ServiceBusMessage) -> None:
        """Send as another program does."""
        with self.client() as client, client.get_queue_sender(self.name) as sender:
            sender.send_messages(list(messages))

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.broker.connection_string)

    def dead(self) -> Sequence[ServiceBusReceivedMessage]:
        """The dead letters that Azure keeps, looked at."""
        dead = ServiceBusSubQueue.DEAD_LETTER
        with self.client() as client, client.get_queue_receiver(self.name, sub_queue=dead) as receiver:
            return receiver.peek_messages(100)

    def count(self, name: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.broker.command("count", entity=name or self.name)
        return found

    def holds(self, number: int, name: str = "") -> None:
        """Wait until there are so many messages, in hand or not."""
        eventually(lambda: self.count(name)["all"] == number, PATIENCE)


class SessionsBench(QueueBench):
    """A queue that requires sessions."""

    made_by: type[ServiceBusTransport] = ServiceBusSessionsTransport

    def sessions(self) -> list[str]:
        """Those that somebody has locked."""
        found: list[str] = self.count()["sessions"]
        return found


def receive(consumer: ServiceBusConsumer, limit: int = 1, number: int = 1) -> list[Message]:
    """So many messages; fails if they do not come."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(consumer.receive(min(limit, number - len(found)), 0.3))
        return len(found) >= number

    eventually(enough, PATIENCE)
    return found
