"""The fixtures of brokers, for every test to ask for by name.

A broker is started when the first test asks for it, and shared by all tests of the run. A test that kills, stops,
pauses or floods a broker asks for `own_…`: a second broker, which is running again whatever the last test did to it.
Their contents are shared too, so use new names of queues, streams and keys in each test.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

import pytest

from brokers.kafka import Kafka
from brokers.mosquitto import Mosquitto
from brokers.nats import Nats
from brokers.postgres import Postgres
from brokers.proxy import Proxy
from brokers.pubsub import PubSub, PubSubEmulator
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis
from brokers.servicebus import ServiceBus
from brokers.sqs import CREDENTIALS, Sqs

ProxyTo = Callable[[int], Proxy]
Broker = TypeVar("Broker")


def started(make: Callable[[], AbstractContextManager[Broker]]) -> Callable[[], Iterator[Broker]]:
    """What a fixture does that starts a broker and ends it."""

    def start() -> Iterator[Broker]:
        with make() as broker:
            yield broker

    return start


def revived(fixture: str) -> Callable[[pytest.FixtureRequest], object]:
    """What a fixture does that has the broker of another one running, whatever the last test did to it."""

    def revive(request: pytest.FixtureRequest) -> object:
        broker = request.getfixturevalue(fixture)
        broker.revive()
        return broker

    return revive


rabbitmq = pytest.fixture(scope="session")(started(RabbitMQ))
nats_server = pytest.fixture(scope="session")(started(Nats))
postgres = pytest.fixture(scope="session")(started(Postgres))
redis_server = pytest.fixture(scope="session")(started(Redis))
mosquitto = pytest.fixture(scope="session")(started(Mosquitto))
kafka_broker = pytest.fixture(scope="session")(started(Kafka))
servicebus = pytest.fixture(scope="session")(started(ServiceBus))
pubsub_server = pytest.fixture(scope="session")(started(PubSub))
pubsub_emulator = pytest.fixture(scope="session")(started(PubSubEmulator))
"""Google's own; skips where it is not installed."""
running_sqs = pytest.fixture(scope="session")(started(Sqs))

second_rabbitmq = pytest.fixture(scope="session")(started(RabbitMQ))
second_nats_server = pytest.fixture(scope="session")(started(Nats))
second_postgres = pytest.fixture(scope="session")(started(Postgres))
second_redis_server = pytest.fixture(scope="session")(started(Redis))
second_mosquitto = pytest.fixture(scope="session")(started(Mosquitto))
second_kafka_broker = pytest.fixture(scope="session")(started(Kafka))
second_servicebus = pytest.fixture(scope="session")(started(ServiceBus))
second_pubsub_server = pytest.fixture(scope="session")(started(PubSub))
second_sqs_server = pytest.fixture(scope="session")(started(Sqs))

own_rabbitmq = pytest.fixture(revived("second_rabbitmq"))
own_nats_server = pytest.fixture(revived("second_nats_server"))
own_postgres = pytest.fixture(revived("second_postgres"))
own_redis_server = pytest.fixture(revived("second_redis_server"))
own_mosquitto = pytest.fixture(revived("second_mosquitto"))
own_kafka_broker = pytest.fixture(revived("second_kafka_broker"))
own_servicebus = pytest.fixture(revived("second_servicebus"))
own_pubsub_server = pytest.fixture(revived("second_pubsub_server"))


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    return postgres.url


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that boto3 finds, here and in the programs that a test starts; nothing else that this machine may have."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def sqs_server(running_sqs: Sqs, aws_credentials: None) -> Sqs:
    return running_sqs


@pytest.fixture
def own_sqs_server(second_sqs_server: Sqs, aws_credentials: None) -> Sqs:
    second_sqs_server.revive()
    return second_sqs_server


@pytest.fixture
def proxy_to() -> Iterator[ProxyTo]:
    """A function that makes a proxy to a port; the proxy ends with the test."""
    with ExitStack() as proxies:
        yield lambda port: proxies.enter_context(Proxy(port))
