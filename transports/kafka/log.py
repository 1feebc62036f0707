"""A topic as a log: read by offsets, outside of the channel's group, which is only told how far somebody is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pump.errors import PumpError, SetupError, TransportError
from pump.message import Message
from pump.telemetry import log
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.protocol import new_generation
from pump.transports.kafka.client import as_ours, made
from pump.transports.kafka.partitions import AssignedPartition
from pump.transports.kafka.records import read_message

if TYPE_CHECKING:
    from pump.transports.kafka.transport import KafkaTransport

AT_ONCE: Final = 500
POLL_SECONDS: Final = 0.5


class KafkaLog:
    """The records of one topic. It is no member of the group, and so takes no partition from anybody."""

    def __init__(self, transport: "KafkaTransport", destinations: Destinations) -> None:
        self._topic: Final = destinations.topic
        self._channel: Final = destinations.channel
        self._clock: Final = transport.clock
        self._seconds: Final = transport.timeout
        self._generation: Final = new_generation()
        settings = {
            **transport.cluster.settings(),
            "group.id": self._channel,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
        self._client: Final[Any] = made(Client, settings)

    def starts(self) -> Mapping[int, int]:
        """The group's committed offsets; where it has none, or its records are gone, the first offset there is."""
        partitions = [TopicPartition(self._topic, number) for number in self._partitions()]
        with self._errors("the offsets of its group"):
            committed = self._client.committed(partitions, self._seconds)
        starts: dict[int, int] = {}
        for each in committed:
            if each.error is not None:
                raise as_ours(each.error, f"the committed offset of partition {each.partition} of {self._topic}")
            starts[each.partition] = max(each.offset, self._watermarks(each.partition)[0])  # below 0: there is none
        return starts

    def ends(self) -> Mapping[int, int]:
        """The offset after the last record of each partition."""
        return {number: self._watermarks(number)[1] for number in self._partitions()}

    def read(self, partition: int, begin: int, end: int) -> Sequence[Message]:
        """The records of these offsets. There may be fewer: a topic may be compacted, or have markers in it."""
        first = self._watermarks(partition)[0]
        if first > begin:
            raise SetupError(
                f"kafka: the offsets {begin} to {min(first, end) - 1} of partition {partition} of {self._topic} were "
                "removed before they were read: begin again with a new checkpoint, and keep the topic for longer"
            )
        messages: list[Message] = []
        assigned = AssignedPartition(self._topic, partition)
        with self._errors(f"partition {partition}"):
            self._client.assign([TopicPartition(self._topic, partition, begin)])
            for record in self._records(partition, end):
                messages.append(read_message(record, assigned, self._generation))  # noqa: PERF401 - read in steps
            self._client.unassign()
        return messages

    def _records(self, partition: int, end: int) -> Iterator[Any]:
        """The records up to the end of the range, as they come; TransportError if none comes for long."""
        deadline = self._clock.monotonic() + self._seconds
        while True:
            records = self._client.consume(AT_ONCE, POLL_SECONDS)
            for record in records:
                error = record.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    raise as_ours(error, f"partition {partition} of {self._topic}")
                if record.offset() >= end:
                    return
                if error is None:
                    yield record
                    if record.offset() == end - 1:
                        return
            if records:
                deadline = self._clock.monotonic() + self._seconds
            elif self._clock.monotonic() > deadline:
                raise TransportError(f"kafka: partition {partition} of {self._topic}: no record came in time")

    def settle(self, positions: Mapping[int, int]) -> None:
        """Commit these offsets for the group. A group with members of its own refuses them, and goes its own way."""
        offsets = [TopicPartition(self._topic, number, offset) for number, offset in positions.items()]
        try:
            self._client.commit(offsets=offsets, asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            log.debug("kafka: channel %s: the offsets were not committed: %s", self._channel, error)

    def close(self) -> None:
        """Disconnect."""
        with suppress(KafkaException, RuntimeError):
            self._client.close()

    def _partitions(self) -> Sequence[int]:
        with self._errors("its partitions"):
            topic = self._client.list_topics(self._topic, timeout=self._seconds).topics[self._topic]
        if topic.error is not None:
            raise as_ours(topic.error, f"topic {self._topic!r}")
        return sorted(topic.partitions)

    def _watermarks(self, partition: int) -> tuple[int, int]:
        with self._errors(f"the offsets of partition {partition}"):
            first, end = self._client.get_watermark_offsets(TopicPartition(self._topic, partition), self._seconds)
        return first, end

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except PumpError:
            raise
        except KafkaException as error:
            raise as_ours(error, f"topic {self._topic!r}: {what}") from error
