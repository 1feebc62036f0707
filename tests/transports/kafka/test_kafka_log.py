"""What the log of a topic, which Spark reads, does where a broker's answer is an error."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from pump import Command, Subscription
from pump.errors import TransportError
from pump.transports.kafka import KafkaTransport


class Order(Command):
    """What the records ask for."""


class Committed:
    """A client whose coordinator cannot say where one partition stands: no broker here can be made to answer so."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        unknown = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        return [
            SimpleNamespace(partition=each.partition, offset=-1001, error=unknown if each.partition else None)
            for each in partitions
        ]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, 10


def test_an_offset_that_is_not_known_is_no_reason_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log = KafkaTransport.from_url("kafka://127.0.0.1:1").topic_log(Subscription(Order, topic="orders"))
    try:
        monkeypatch.setattr(log, "_client", Committed())

        with pytest.raises(TransportError, match="the committed offset of partition 1 of orders"):
            log.starts()
    finally:
        monkeypatch.undo()
        log.close()
