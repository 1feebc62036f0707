"""The contract on a real RabbitMQ: quorum and classic queues, natively in both colours."""

from typing import cast

import pika
import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.rabbitmq import RabbitMQ
from pump.colour import Colour
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.rabbitmq import RabbitMQTransport, delivery_channel


class RabbitMQContract(TransportContract):
    """The contract through a proxy, which breaks connections."""

    silence_seconds = 0.15
    lease_seconds = 0.5  # there are none
    queue_type: str
    broker: RabbitMQ
    proxy: Proxy

    @pytest.fixture(autouse=True)
    def _on(self, own_rabbitmq: RabbitMQ, proxy_to: ProxyTo, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.proxy = own_rabbitmq, proxy_to(own_rabbitmq.port)
        monkeypatch.setattr(delivery_channel, "IDLE_SECONDS", 0.1)  # what is given back then shall break a silence

    @pytest.fixture
    def transport(self, _on: None) -> Transport:
        return RabbitMQTransport.from_url(f"{self.proxy.url(self.broker.url)}?queue_type={self.queue_type}")

    def in_another_process(self, transport: Transport) -> str:
        url = f"{self.broker.url}?queue_type={self.queue_type}"
        return f"from pump.transports.rabbitmq import RabbitMQTransport as T\ntransport = T.from_url({url!r})"

    def break_connection(self, transport: Transport) -> None:
        self.proxy.reset()

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = b"\xff\xfe no sense"
        with self.broker.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(headers={"pump-carried-attempts": "some"})
            channel.basic_publish(topic, "", body, properties, mandatory=True)
        return body


class TestQuorumQueues(RabbitMQContract):
    queue_type = "quorum"


class TestClassicQueues(RabbitMQContract):
    queue_type = "classic"


class TestQuorumQueuesInOrder(TestQuorumQueues):
    ordered = True

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


@pytest.mark.long
class TestClassicQueuesInOrder(TestClassicQueues):
    ordered = True
