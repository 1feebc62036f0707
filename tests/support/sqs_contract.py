"""What the contract has to know of SQS. Its tests stand in four files, so that no file takes long."""

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.sqs import Sqs, depth, queue_url
from pump.testing.contract import TransportContract
from pump.testing.driver import ChannelDriver, TransportDriver
from pump.transport_kit.protocol import Transport
from pump.transports.sqs import Account, SqsFifoTransport, SqsTransport
from support.waiting import eventually


class SqsContract(TransportContract):
    """Short polls, so that closing a consumer need not wait for a long one."""

    broker: Sqs
    proxy: Proxy
    scheme = "sqs"
    ending = ""
    made_by: type[SqsTransport] = SqsTransport
    silence_seconds = 0.25
    lease_seconds = 2.0
    released_within_seconds = 1.5
    wakes_within_seconds = 5.0
    late_seconds = 5.0

    @pytest.fixture(autouse=True)
    def _on(self, own_sqs_server: Sqs, proxy_to: ProxyTo) -> None:
        self.broker = own_sqs_server
        self.proxy = proxy_to(own_sqs_server.port)

    @pytest.fixture
    def transport(self, _on: None) -> Transport:
        account = Account(region="eu-central-1", endpoint=f"http://127.0.0.1:{self.proxy.port}")
        return self.made_by(account, poll=0)

    def break_connection(self, transport: Transport) -> None:
        self.proxy.reset()

    def expect_nothing_left(self, driver: TransportDriver, channel: ChannelDriver) -> None:
        """The broker says so itself: nobody need wait until leases have ended."""
        self.expect_nothing(channel)
        channel.close()
        eventually(lambda: depth(self.broker.client(), channel.subscription.channel + self.ending) == 0)

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()

    def in_another_process(self, transport: Transport) -> str:
        made, url = self.made_by.__name__, self.broker.url_for(self.scheme, poll=0)
        return f"from pump.transports.sqs import {made}\ntransport = {made}.from_url({url!r})"

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        client = self.broker.client()
        url = queue_url(client, topic + self.ending)
        order = {"MessageGroupId": "k", "MessageDeduplicationId": "1"} if self.ending else {}
        attributes = {"pump": {"DataType": "String", "StringValue": "{]"}}
        client.send_message(QueueUrl=url, MessageBody="what is this?", MessageAttributes=attributes, **order)
        return b"what is this?"


class FifoContract(SqsContract):
    """The same on FIFO queues."""

    scheme = "sqs+fifo"
    ending = ".fifo"
    made_by: type[SqsTransport] = SqsFifoTransport
