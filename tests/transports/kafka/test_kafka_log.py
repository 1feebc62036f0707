"""What the log of a topic, which Spark reads, does where a broker's answer is an error."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, TopicPartition

from brokers.kafka import Kafka
from pump import Command, Publication, Subscription
from pump.errors import SetupError
from pump.transports.kafka import KafkaTransport

OFFSET_FETCH = 9
NOT_ALLOWED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class Order(Command):
    """What the records ask for."""


class PartlyCommitted:
    """A client that may not know the offset of one of its partitions: the broker here refuses all of them or none."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        *known, last = self._client.committed(partitions, timeout)
        return [*known, SimpleNamespace(partition=last.partition, offset=last.offset, error=KafkaError(NOT_ALLOWED))]


@pytest.fixture
def log(kafka_broker: Kafka) -> Iterator[Any]:
    topic = f"orders-{uuid4().hex[:8]}"
    transport, rules = KafkaTransport.from_url(kafka_broker.url), Subscription(Order, topic=topic, channel=topic)
    transport.prepare([rules], [Publication(Order, topic=topic)])
    made = transport.topic_log(rules)
    yield made
    kafka_broker.tell("accept", OFFSET_FETCH)
    made.close()


def test_offsets_that_the_broker_does_not_tell_are_no_reason_to_begin_anew(log: Any, kafka_broker: Kafka) -> None:
    assert set(log.starts().values()) == {0}

    kafka_broker.tell("refuse", OFFSET_FETCH, NOT_ALLOWED)

    with pytest.raises(SetupError, match="the offsets of its group"):
        log.starts()


def test_neither_is_the_offset_of_one_partition(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_client", PartlyCommitted(log._client))

    with pytest.raises(SetupError, match="the committed offset of partition"):
        log.starts()
