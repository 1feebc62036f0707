"""The contract on the broker within the client library, in one colour: two files run it in one each."""

import pytest
from confluent_kafka import Producer

from brokers.kafka import Kafka
from pump.colour import Colour
from pump.message import Header, Message
from pump.testing.contract import TransportContract
from pump.testing.driver import ChannelDriver, TransportDriver
from pump.transport_kit.protocol import Transport, transport_from
from support.kafka_topics import created_by


class KafkaContract(TransportContract):
    broker: Kafka
    patch: pytest.MonkeyPatch
    keyed = False
    silence_seconds = 0.25
    delay_seconds = 0.6
    lease_seconds = 1.0

    @pytest.fixture(autouse=True)
    def _on(self, own_kafka_broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        """With topics of one partition, which does not go to another consumer merely because that one came."""
        self.broker, self.patch = own_kafka_broker, monkeypatch
        created_by(own_kafka_broker, monkeypatch, partitions=1)

    @pytest.fixture
    def transport(self, own_kafka_broker: Kafka) -> Transport:
        return transport_from(f"{own_kafka_broker.url}&retry_delays=0.6&largest_body=300000")

    def test_a_nacked_message_blocks_its_partition_or_the_whole_channel(self, driver: TransportDriver) -> None:
        """With several partitions: in one alone, everything waits."""
        created_by(self.broker, self.patch, partitions=4)
        super().test_a_nacked_message_blocks_its_partition_or_the_whole_channel(driver)

    def test_what_a_killed_process_had_in_hand_comes_again(
        self, driver: TransportDriver, transport: Transport, colour: Colour
    ) -> None:
        """With keys: without one, those of a partition are in hand one at a time."""
        self.keyed = True
        super().test_what_a_killed_process_had_in_hand_comes_again(driver, transport, colour)

    def message(self, channel: ChannelDriver, body: bytes = b"", header: Header | None = None) -> Message:
        message = super().message(channel, body, header)
        if self.keyed and message.header.key is None:
            message.header = message.header._replace(key=body.decode())
        return message

    def in_another_process(self, transport: Transport) -> str:
        url = f"{self.broker.url}&retry_delays=0.6"
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
