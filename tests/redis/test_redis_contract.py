"""The contract on a real Redis: streams and lists, each from a blocking and from an awaiting pump's side."""

import pytest

from brokers.redis import Redis
from pump.testing_contract import TransportContract
from pump.transport import Transport
from pump.transports.redis import RedisListTransport, RedisTransport
from pump.transports.redis_envelopes import MAGIC
from pump.transports.redis_server import Server


class RedisContract(TransportContract):
    """On a server that may be restarted."""

    broker: Redis

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

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        with self.broker.client() as client:
            client.xadd(topic, {"temperature": b"\xff\x00", "unit": "K"})
        return b""


class TestLists(RedisContract):
    @pytest.fixture
    def transport(self, own_redis_server: Redis) -> Transport:
        return RedisListTransport(Server(host="127.0.0.1", port=own_redis_server.port), largest_body=300_000)

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = MAGIC + b"0123456789abcdef" + b"\0\0\0\2" + b"{]" + b"body"
        with self.broker.client() as client:
            client.rpush(topic, body)
        return body
