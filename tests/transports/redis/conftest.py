"""The fixtures of the tests of the Redis transports."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from brokers.redis import Redis
from support.redis_bench import ListBench, RedisBench, StreamBench


def brisk(server: Redis) -> Redis:
    """The server, changed to end a blocking read within 10 ms of its time-out, not within 100: tests wait a lot."""
    server._options["hz"] = "100"
    with server.client() as client:
        client.config_set("hz", 100)
    return server


@pytest.fixture(scope="session")
def redis_server(redis_server: Redis) -> Redis:
    return brisk(redis_server)


@pytest.fixture(scope="session")
def second_redis_server(second_redis_server: Redis) -> Redis:
    return brisk(second_redis_server)


@pytest.fixture
def streams(redis_server: Redis) -> Iterator[StreamBench]:
    with ExitStack() as stack:
        yield StreamBench(redis_server, stack)


@pytest.fixture
def lists(redis_server: Redis) -> Iterator[ListBench]:
    with ExitStack() as stack:
        yield ListBench(redis_server, stack)


@pytest.fixture(params=[StreamBench, ListBench], ids=["streams", "lists"])
def bench(request: pytest.FixtureRequest, redis_server: Redis) -> Iterator[RedisBench]:
    """Either kind in turn."""
    with ExitStack() as stack:
        yield request.param(redis_server, stack)


@pytest.fixture(params=["redis", "redis+list"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Either kind in turn, as the scheme of its URL."""
    return str(request.param)


@pytest.fixture
def key() -> str:
    """A key that nobody uses."""
    return f"key-{uuid4().hex[:12]}"
