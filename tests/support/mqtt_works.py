"""What waits on an MQTT broker, and programs that work it off, for the tests of faults and budgets."""

from typing import Any
from uuid import uuid4

from brokers.mosquitto import Mosquitto
from pump import Dispatcher, Publication, Subscription
from pump.transports.mqtt import MqttServer, MqttTransport
from support.pumps import Body, Kind, Order
from support.works import Job

FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 0.5),
}


def url(broker: Mosquitto, version: str = "5", port: int = 0, **options: Any) -> str:
    words = "&".join(f"{name}={value}" for name, value in {"version": version, **options}.items())
    return f"mqtt://127.0.0.1:{port or broker.port}?{words}"


def take_all(broker: Mosquitto, channel: str, expected: int = 0, seconds: float = 0.3) -> list[bytes]:
    """Everything that waits in a channel that nobody consumes now, taken away."""
    transport = MqttTransport(MqttServer(host="127.0.0.1", port=broker.port))
    consumer = transport.consumer(Subscription(Job, topic=channel, channel=channel, dead_letter=None))
    found: list[bytes] = []
    try:
        while messages := consumer.receive(100, 10.0 if len(found) < expected else seconds):
            for message in messages:
                consumer.acknowledge(message)
                found.append(message.body)
    finally:
        consumer.close()
    return found


class Shop:
    """One channel, and dispatchers of its orders, one after another."""

    def __init__(self, broker: Mosquitto, version: str, kind: Kind) -> None:
        self.broker = broker
        self.topic = f"orders-{uuid4().hex[:8]}"
        self._url = url(broker, version)
        self._kind = kind

    def dispatcher(self, body: Body, **options: Any) -> Dispatcher:
        rules = {**FAST, **self._kind.options, **options}
        return Dispatcher(
            self._url,
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.topic, **rules)],
            publications=[Publication(Order, topic=self.topic)],
        )

    def dead(self, expected: int = 1) -> int:
        """How many dead letters there are; takes them away."""
        return len(take_all(self.broker, f"{self.topic}.dead", expected))

    def left(self) -> int:
        """How many messages are left; takes them away."""
        return len(take_all(self.broker, self.topic))
