"""The contract on a real Redis: streams and lists, each from a blocking and from an awaiting pump's side."""

from typing import cast

import pytest

from brokers.redis import Redis
from pump.colour import Colour
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.redis import RedisListTransport, RedisTransport, Server
from pump.transports.redis import consumer as redis_consumer
from pump.transports.redis import lists as redis_lists
from pump.transports.redis.entries import MAGIC


def made(transport: str, broker: Redis) -> str:
    return (
        f"from pump.transports.redis import {transport}, Server\n"
        f"transport = {transport}(Server(host='127.0.0.1', port={broker.port}))"
    )


class RedisContract(TransportContract):
    """On a server that may be restarted. What is looked for every so often is looked for more often than usual."""

    broker: Redis
    silence_seconds = 0.25
    delay_seconds = 0.4
    lease_seconds = 0.6

    @pytest.fixture(autouse=True)
    def _hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (redis_consumer, redis_lists):
            monkeypatch.setattr(module, "POLL_SECONDS", 0.1)

    @pytest.fixture(autouse=True)
    def _on(self, own_redis_server: Redis) -> None:
        self.broker = own_redis_server

    def break_connection(self, transport: Transport) -> None:
        with self.broker.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()


class TestStreams(RedisContract):
    @pytest.fixture
    def transport(self, own_redis_server: Redis) -> Transport:
        return RedisTransport(Server(host="127.0.0.1", port=own_redis_server.port), largest_body=300_000)

    def in_another_process(self, transport: Transport) -> str:
        return made("RedisTransport", self.broker)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        with self.broker.client() as client:
            client.xadd(topic, {"temperature": b"\xff\x00", "unit": "K"})
        return b""


class TestLists(RedisContract):
    @pytest.fixture
    def transport(self, own_redis_server: Redis) -> Transport:
        return RedisListTransport(Server(host="127.0.0.1", port=own_redis_server.port), largest_body=300_000)

    def in_another_process(self, transport: Transport) -> str:
        return made("RedisListTransport", self.broker)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = MAGIC + b"0123456789abcdef" + b"\0\0\0\2" + b"{]" + b"body"
        with self.broker.client() as client:
            client.rpush(topic, body)
        return body


@pytest.mark.long
class TestStreamsUnhurried(TestStreams):
    silence_seconds = 0.6
    delay_seconds = 1.0
    lease_seconds = 2.0

    @pytest.fixture(autouse=True)
    def _hurry(self) -> None:
        """As it is."""


@pytest.mark.long
class TestListsUnhurried(TestLists):
    silence_seconds = 0.6
    delay_seconds = 1.0
    lease_seconds = 2.0

    @pytest.fixture(autouse=True)
    def _hurry(self) -> None:
        """As it is."""


class TestStreamsInOrder(TestStreams):
    ordered = True

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


@pytest.mark.long
class TestListsInOrder(TestLists):
    ordered = True
