"""One consumer of one channel: it receives messages, and carries verdicts out."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pump.clock import Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, PumpError, SetupError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.dead_letters import LetterTries, report_gone
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.parking import Parking
from pump.transport_kit.protocol import new_generation
from pump.transports.kafka.client import is_too_large
from pump.transports.kafka.member import GroupMember
from pump.transports.kafka.records import KafkaMessage, copy_record, dead_letter_records

if TYPE_CHECKING:
    from pump.transports.kafka.transport import KafkaTransport

CLOSE_SECONDS: Final = 1.8
LONGEST_DELAY: Final = 365 * 86_400.0
FORWARD_AGAIN_SECONDS: Final = 1.0


class KafkaConsumer:
    """Consumes the channel's topic as a member of the group of the channel's name, and its retry topics as another.

    They are two groups, so that the partitions of the topic are shared evenly among the consumers, however those of
    the retry topics are shared. One thread receives; any thread settles or interrupts.
    """

    broker_limit: int | None = None

    def __init__(self, transport: "KafkaTransport", subscription: Subscription, destinations: Destinations) -> None:
        self.generation: Final = new_generation()
        self._transport: Final = transport
        self._destinations: Final = destinations
        self._channel: Final = destinations.channel
        self._retry: Final = transport.retry_topics(destinations)
        self._parking: Final = Parking(log, self._channel, subscription.max_attempts)
        self._clock: Final = transport.clock
        self._store: Final = transport.stores.take()
        self._arrived: Final = Signal()
        self._interrupted = False
        self._closed = False

        def member(group: str, topics: Sequence[str], longest_wait: float = 0.0) -> GroupMember:
            return GroupMember(
                transport,
                group=group,
                topics=topics,
                generation=self.generation,
                arrived=self._arrived,
                forward=self._forward,
                longest_wait=longest_wait,
            )

        self._retrying: Final = member(f"{self._channel}.retry", self._retry.names, max(transport.retry_delays))
        self._consuming: Final = member(self._channel, (destinations.topic,))
        self._members: Final = (self._retrying, self._consuming)

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are there, or the first to come within `timeout` seconds, or none."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._arrived.clear()
            messages = self._take(limit)
            left = deadline - self._clock.monotonic()
            if messages or self._interrupted or left <= 0:
                self._interrupted = False
                return messages
            self._clock.wait(self._arrived, left)

    def receive_soon(self, limit: int) -> Sequence[Message]:
        """As `receive`, without waiting."""
        return self._take(limit)

    def _take(self, limit: int) -> Sequence[Message]:
        for member in self._members:
            if member.failure is not None:
                raise member.failure
        messages = self._retrying.take(limit)
        return messages or self._consuming.take(limit)

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        self._arrived.set()

    # -- settling

    def acknowledge_soon(self, message: Message) -> bool:
        """The same as `acknowledge`, which never waits."""
        self.acknowledge(message)
        return True

    def acknowledge(self, message: Message) -> None:
        """The message is done; it is committed soon, if everything before it is done."""
        first = self._ours(message)
        first.done = True
        if first.assigned.held is first:
            first.assigned.held = None
            self._arrived.set()

    def _ours(self, message: Message) -> KafkaMessage:
        """The message as it was received; LeaseLost if it is settled, or not this consumer's any more."""
        if isinstance(message, KafkaMessage) and not self._closed and message.first.is_ours:
            return message.first
        raise LeaseLost(f"message {message.id} of {self._channel} no longer belongs to this consumer")

    def nack(self, message: Message) -> None:
        """Nothing is sent: what is not settled is not committed. The channel holds the message."""

    def extend(self, message: Message) -> None:
        """There is no lease to extend: a delivery is this consumer's for as long as it has the partition."""
        self._ours(message)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Store a copy that comes to this channel after the delay; then settle the original."""
        self.extend(message)
        now = self._clock.wall()
        delay = min(delay, LONGEST_DELAY) if delay > 0 else 0.0
        topic, wait = self._retry.place(delay)
        self._store.store_and_wait([copy_record(message, topic, attempts, now, due=now + delay, wait=now + wait)])
        self.acknowledge(message)

    def _forward(self, message: KafkaMessage) -> None:
        """Store a copy once more, since it has waited as long as its retry topic allows and is still not due."""
        now = self._clock.wall()
        topic, wait = self._retry.place(message.due - now)
        record = copy_record(message, topic, message.attempts, now, due=message.due, wait=now + wait)

        def done(failures: object) -> None:
            if failures:
                self._clock.alarm(FORWARD_AGAIN_SECONDS, lambda: self._forward(message))
                return
            with suppress(PumpError):  # another consumer has it now, and stores it once more as well
                self.acknowledge(message)

        if not message.lost and not self._closed:
            self._store.store([record], done)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store a dead letter; then settle the original."""
        self.extend(message)
        topic = self._destinations.for_rejected(rejection.kind)
        if topic is None:
            report_gone(log, message, self._channel, rejection)
        else:
            try:
                self._store_dead_letter(topic, message, rejection)
            except PublishError:
                self._parking.park(message, rejection, self.requeue)
                raise
        self.acknowledge(message)

    def _store_dead_letter(self, topic: str, message: Message, rejection: Rejection) -> None:
        room = self._transport.capabilities.largest_body or 0
        records = dead_letter_records(message, rejection, topic, room)
        for each in LetterTries(log, message, self._channel, rejection, records, is_too_large=is_too_large):
            with each:
                self._store.store_and_wait([each.letter])

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Take back messages that no handler has begun: they come next here, or elsewhere when this consumer closes."""
        ours = [each for each in messages if isinstance(each, KafkaMessage)]
        copied = self._retry.names
        self._retrying.put_back([each for each in ours if each.assigned.topic in copied])
        self._consuming.put_back([each for each in ours if each.assigned.topic not in copied])

    def purge(self) -> int:
        """Remove nothing: on Kafka only an operator can do that, and for all groups at once."""
        raise SetupError(f"kafka: channel {self._channel} cannot be emptied: set the offsets of its group instead")

    # -- ending

    def close(self) -> None:
        """Commit what is settled and leave the groups. If the brokers do not answer, the close soon stops waiting."""
        if self._closed:
            return
        self._closed = True
        for member in self._members:
            member.stop()
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        left = [member.has_left(deadline - self._clock.monotonic()) for member in self._members]
        if not all(left):
            log.warning(
                "kafka: channel %s: the brokers do not answer; its consumer leaves the group without telling them",
                self._channel,
            )
        self._transport.stores.release()
