"""The contract on the project's own Service Bus, driven by the vendor's client through a network that breaks."""

from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.servicebus import ServiceBus
from pump.subscription import Subscription
from pump.testing.contract import TransportContract
from pump.testing.driver import ChannelDriver, TransportDriver
from pump.transport_kit.protocol import Transport
from pump.transports.servicebus import ServiceBusSessionsTransport, ServiceBusTransport


class ServiceBusContract(TransportContract):
    silence_seconds = 0.3
    lease_seconds = 2.0
    released_within_seconds = 1.0
    broker: ServiceBus
    network: Proxy
    made_by: type[ServiceBusTransport] = ServiceBusTransport

    def expect_nothing_left(self, driver: TransportDriver, channel: ChannelDriver) -> None:
        """The broker itself says what it has: nobody need wait until a lock would have ended."""
        self.expect_nothing(channel)
        channel.close()
        assert self.broker.command("count", entity=channel.subscription.channel)["all"] == 0

    @pytest.fixture(autouse=True)
    def _on(self, own_servicebus: ServiceBus, proxy_to: ProxyTo, hurried: None) -> None:
        self.broker, self.network = own_servicebus, proxy_to(own_servicebus.port)

    @pytest.fixture
    def transport(self, _on: None) -> Transport:
        return self.made_by.from_url(self._with_scheme(self.network.url(self.broker.url)))

    def _with_scheme(self, url: str) -> str:
        return url.replace("servicebus", self.made_by.scheme, 1)

    def in_another_process(self, transport: Transport) -> str:
        url, made_by = self._with_scheme(self.broker.url), self.made_by.__name__
        return f"from pump.transports.servicebus import {made_by} as T\ntransport = T.from_url({url!r})"

    def break_connection(self, transport: Transport) -> None:
        self.network.reset()

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = b"\xff\xfe no sense"
        client = ServiceBusClient.from_connection_string(self.broker.connection_string)
        with client, client.get_queue_sender(topic) as sender:
            properties: dict[str | bytes, Any] = {"pump-time": "yesterday"}
            sender.send_messages(ServiceBusMessage(body, application_properties=properties, session_id="k"))
        return body


class TopicsContract(ServiceBusContract):
    """Each channel is a queue that a subscription of a topic forwards to."""

    def subscription(self, topic: str = "") -> Subscription:
        made = super().subscription(topic)
        return replace(made, topic=topic or f"{made.topic}.topic")


class QueuesContract(ServiceBusContract):
    """Each channel is a queue of its topic's name, and the only channel of that topic."""

    def subscription(self, topic: str = "") -> Subscription:
        self.skip_if(bool(topic), "a queue has one channel")
        return super().subscription()


class SessionsContract(TopicsContract):
    """The same, and each queue requires sessions."""

    made_by: type[ServiceBusTransport] = ServiceBusSessionsTransport

    def test_one_message_goes_back_alone_or_all_of_its_consumer_do(self, driver: TransportDriver) -> None:
        pytest.skip("one message of a session is here at a time: the second comes when the first is settled")

    def test_a_nacked_message_blocks_its_partition_or_the_whole_channel(self, driver: TransportDriver) -> None:
        pytest.skip("to accept another session may take longer than the delay after which the nacked one is due")
