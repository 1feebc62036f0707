"""The contract that every transport keeps, on a real NATS server, through a network that breaks."""

import asyncio
from typing import cast

import pytest

from brokers.fixtures import ProxyTo
from brokers.nats import Nats
from brokers.proxy import Proxy
from pump.colour import Colour
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.nats import NatsTransport


class TestNatsKeepsTheContract(TransportContract):
    silence_seconds = 0.2
    lease_seconds = 1.0

    @pytest.fixture
    def server(self, own_nats_server: Nats) -> Nats:
        return own_nats_server

    @pytest.fixture
    def network(self, server: Nats, proxy_to: ProxyTo) -> Proxy:
        return proxy_to(server.port)

    @pytest.fixture
    def transport(self, server: Nats, network: Proxy) -> Transport:
        self._server, self._network = server, network
        return NatsTransport(network.url(server.url))

    def in_another_process(self, transport: Transport) -> str:
        return f"from pump.transports.nats import NatsTransport\ntransport = NatsTransport({self._server.url!r})"

    def break_connection(self, transport: Transport) -> None:
        self._network.reset()

    def restart_broker(self, transport: Transport) -> None:
        self._server.restart()

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        async def send() -> None:
            connection = await self._server.connect()
            await connection.jetstream().publish(topic, body, headers={"pump-time": "yesterday"})
            await connection.close()

        body = b"\x00\xff not to be parsed"
        asyncio.run(send())
        return body


class TestNatsInOrder(TestNatsKeepsTheContract):
    ordered = True

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)
