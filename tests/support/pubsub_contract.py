"""The contract on the test bed's Pub/Sub, which the files of its two colours share."""

from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.pubsub import PROJECT, PubSub
from pump.testing.contract import TransportContract
from pump.testing.driver import ChannelDriver, TransportDriver
from pump.transport_kit.protocol import Transport
from pump.transports.pubsub import PubSubSettings, PubSubTransport
from support.waiting import eventually

LEASE = 2.0
"""Shorter than Pub/Sub has it: tests have no time."""


def made(port: int) -> str:
    return (
        "from pump.transports.pubsub import PubSubSettings, PubSubTransport\n"
        f"where = dict(project={PROJECT!r}, endpoint='127.0.0.1:{port}', plaintext=True)\n"
        "transport = PubSubTransport(PubSubSettings(**where, lease=2))"
    )


def transport_to(port: int, **options: object) -> PubSubTransport:
    given: dict[str, object] = {"lease": LEASE, "plaintext": True, **options}
    return PubSubTransport(PubSubSettings(project=PROJECT, endpoint=f"127.0.0.1:{port}", **given))  # type: ignore[arg-type]


class PubSubContract(TransportContract):
    """What is left in a subscription is asked of the server, which takes less time than to wait for its leases."""

    broker: PubSub
    network: Proxy
    streaming = False
    silence_seconds = 0.3
    lease_seconds = LEASE

    @pytest.fixture(autouse=True)
    def _on(self, own_pubsub_server: PubSub) -> None:
        self.broker = own_pubsub_server

    @pytest.fixture
    def transport(self, own_pubsub_server: PubSub, proxy_to: ProxyTo) -> Transport:
        self.network = proxy_to(own_pubsub_server.port)
        return transport_to(self.network.port, streaming=self.streaming)

    def break_connection(self, transport: Transport) -> None:
        self.network.reset()

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()

    def in_another_process(self, transport: Transport) -> str:
        return made(self.broker.port)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        publish(self.broker.port, topic, b"\xff\x00 body", {"pump-kind": "nonsense", "pump-time": "soon"})
        return b"\xff\x00 body"

    def expect_nothing_left(self, driver: TransportDriver, channel: ChannelDriver) -> None:
        self.expect_nothing(channel)
        channel.close()
        names = (channel.subscription.channel, f"{channel.subscription.channel}.retry")
        eventually(lambda: not any(self.broker.state(name)["unacknowledged"] for name in names), 10.0)


def publish(port: int, topic: str, body: bytes, attributes: dict[str, str], key: str = "") -> None:
    """As a stranger does it."""
    import grpc
    from google.pubsub_v1 import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        message: Any = {"data": body, "attributes": attributes, "ordering_key": key}
        client.publish(topic=f"projects/{PROJECT}/topics/{topic}", messages=[message], timeout=10.0)
