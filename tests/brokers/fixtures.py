"""The fixtures of brokers, for every test to ask for by name.

A broker is started when the first test asks for it, and shared by all tests of the run. A test that kills, stops,
pauses or floods a broker asks for `own_…`: a second broker, which is running again whatever the last test did to it.
Their contents are shared too, so use new names of queues, streams and keys in each test.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

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


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    with Nats() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    return postgres.url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with Redis() as broker:
        yield broker


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[Mosquitto]:
    with Mosquitto() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Kafka]:
    with Kafka() as broker:
        yield broker


@pytest.fixture
def own_kafka_broker(second_kafka_broker: Kafka) -> Kafka:
    second_kafka_broker.revive()
    return second_kafka_broker


@pytest.fixture(scope="session")
def second_kafka_broker() -> Iterator[Kafka]:
    with Kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def servicebus() -> Iterator[ServiceBus]:
    with ServiceBus() as broker:
        yield broker


@pytest.fixture
def own_rabbitmq(second_rabbitmq: RabbitMQ) -> RabbitMQ:
    second_rabbitmq.revive()
    return second_rabbitmq


@pytest.fixture
def own_nats_server(second_nats_server: Nats) -> Nats:
    second_nats_server.revive()
    return second_nats_server


@pytest.fixture
def own_postgres(second_postgres: Postgres) -> Postgres:
    second_postgres.revive()
    return second_postgres


@pytest.fixture
def own_redis_server(second_redis_server: Redis) -> Redis:
    second_redis_server.revive()
    return second_redis_server


@pytest.fixture
def own_mosquitto(second_mosquitto: Mosquitto) -> Mosquitto:
    second_mosquitto.revive()
    return second_mosquitto


@pytest.fixture
def own_servicebus(second_servicebus: ServiceBus) -> ServiceBus:
    second_servicebus.revive()
    return second_servicebus


@pytest.fixture(scope="session")
def second_rabbitmq() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="session")
def second_nats_server() -> Iterator[Nats]:
    with Nats() as broker:
        yield broker


@pytest.fixture(scope="session")
def second_postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def second_redis_server() -> Iterator[Redis]:
    with Redis() as broker:
        yield broker


@pytest.fixture(scope="session")
def second_mosquitto() -> Iterator[Mosquitto]:
    with Mosquitto() as broker:
        yield broker


@pytest.fixture(scope="session")
def second_servicebus() -> Iterator[ServiceBus]:
    with ServiceBus() as broker:
        yield broker


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[PubSub]:
    with PubSub() as broker:
        yield broker


@pytest.fixture(scope="session")
def pubsub_emulator() -> Iterator[PubSubEmulator]:
    """Google's own; skips where it is not installed."""
    with PubSubEmulator() as broker:
        yield broker


@pytest.fixture
def own_pubsub_server(second_pubsub_server: PubSub) -> PubSub:
    second_pubsub_server.revive()
    return second_pubsub_server


@pytest.fixture(scope="session")
def second_pubsub_server() -> Iterator[PubSub]:
    with PubSub() as broker:
        yield broker


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that boto3 finds, here and in the programs that a test starts; nothing else that this machine may have."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture(scope="session")
def running_sqs() -> Iterator[Sqs]:
    with Sqs() as broker:
        yield broker


@pytest.fixture
def sqs_server(running_sqs: Sqs, aws_credentials: None) -> Sqs:
    return running_sqs


@pytest.fixture
def own_sqs_server(second_sqs_server: Sqs, aws_credentials: None) -> Sqs:
    second_sqs_server.revive()
    return second_sqs_server


@pytest.fixture(scope="session")
def second_sqs_server() -> Iterator[Sqs]:
    with Sqs() as broker:
        yield broker


@pytest.fixture
def proxy_to() -> Iterator[ProxyTo]:
    """A function that makes a proxy to a port; the proxy ends with the test."""
    with ExitStack() as proxies:
        yield lambda port: proxies.enter_context(Proxy(port))
