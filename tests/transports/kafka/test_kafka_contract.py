"""The contract on the broker within the client library, from a blocking and from an awaiting pump's side."""

import pytest
from confluent_kafka import Producer

from brokers.kafka import Kafka
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport, transport_from
from support.kafka_topics import created_by


class TestKafka(TransportContract):
    broker: Kafka
    silence_seconds = 0.3
    lease_seconds = 1.0

    @pytest.fixture(autouse=True)
    def _on(self, own_kafka_broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        """With topics of one partition, which does not go to another consumer merely because that one came."""
        self.broker = own_kafka_broker
        created_by(own_kafka_broker, monkeypatch, partitions=1)

    @pytest.fixture
    def transport(self, own_kafka_broker: Kafka) -> Transport:
        return transport_from(f"{own_kafka_broker.url}&retry_delays=1&largest_body=300000")

    def in_another_process(self, transport: Transport) -> str:
        url = f"{self.broker.url}&retry_delays=1"
        return f"from pump.transport_kit.protocol import transport_from\ntransport = transport_from({url!r})"

    def break_connection(self, transport: Transport) -> None:
        self.broker.blink()

    def restart_broker(self, transport: Transport) -> None:
        self.broker.blink()

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        producer = Producer(self.broker.client())
        producer.produce(topic, b"\xff\x00", headers=[("pump-id", b"\xff")])
        assert producer.flush(10) == 0
        return b"\xff\x00"
