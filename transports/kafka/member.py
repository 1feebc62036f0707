"""One member of a consumer group: it goes on polling while handlers run, and commits only what is settled."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pump.clock import Signal
from pump.errors import LeaseLost, PumpError, TransportError
from pump.message import Message
from pump.telemetry import log
from pump.transports.kafka.client import Outage, as_ours, ends_consuming, made
from pump.transports.kafka.partitions import AssignedPartition
from pump.transports.kafka.records import KafkaMessage, KafkaReceipt, ReadRecord, read_record

if TYPE_CHECKING:
    from pump.transports.kafka.transport import KafkaTransport

POLL_SECONDS: Final = 0.1
"""The longest poll: a stop, or a message that becomes due, waits no longer."""
MOST: Final = 500
"""The most messages that wait here, and …"""
HEAVIEST: Final = 8 * 2**20
"""… the most bytes of them."""
FULL_SECONDS: Final = 0.3
"""How long to wait for room before everything is paused: pausing throws away what the client has fetched."""
BUSY_SECONDS: Final = 0.02
"""The longest poll while messages are unsettled, so that they are committed soon."""
COMMIT_SECONDS: Final = 0.05
"""How often what is settled is committed."""
DRAIN_SECONDS: Final = 5.0
"""How long a partition that another consumer gets waits until the handlers of its messages have ended."""
LOOK_SECONDS: Final = 0.02
LEAVE_SECONDS: Final = 1.0
SOON_SECONDS: Final = 0.05
"""A copy that is due this soon waits here, and is not stored once more."""


class GroupMember:
    """A client that consumes some topics as a member of a group.

    A thread of its own polls the client, and is the only one that the client calls back; it lives until `close`. Any
    thread takes and settles. The lock guards the partitions and what is ready.
    """

    def __init__(
        self,
        transport: "KafkaTransport",
        *,
        group: str,
        topics: Sequence[str],
        generation: int,
        arrived: Signal,
        forward: Callable[[ReadRecord], None],
        longest_wait: float = 0.0,
    ) -> None:
        self._transport: Final = transport
        self._group: Final = group
        self._topics: Final = topics
        self._generation: Final = generation
        self._arrived: Final = arrived
        """Set when there is something to take, or to raise."""
        self._forward: Final = forward
        """Called with each copy that has waited as long as its topic allows, and is not due yet."""
        self._longest_wait: Final = longest_wait
        """Seconds for which a copy may wait in these topics; 0 where there are no copies."""
        self._clock: Final = transport.clock
        self._outage: Final = Outage(f"group {group}", self._clock)
        self._lock: Final = threading.Lock()
        self._partitions: Final[dict[tuple[str, int], AssignedPartition]] = {}
        self._ready: Final[deque[KafkaMessage]] = deque()
        self._largest = 1
        """The size of the largest body that came lately."""
        self._taken: Final = Signal()
        self.closing: Final = Signal()
        self._ended: Final = Signal()
        self.failure: TransportError | None = None
        """Why nothing can be received any more; None if it can."""
        self._commit_at = 0.0
        self._full = False
        """Whether everything is paused, because nobody takes the messages that wait here."""
        self._client: Final[Any] = made(Client, self._settings())
        threading.Thread(target=self._run, name="pump-kafka-poll", daemon=True).start()

    def _settings(self) -> dict[str, Any]:
        session = round(self._transport.session * 1000)
        return {
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": max(100, session // 4),
            "topic.metadata.refresh.interval.ms": 30_000,
            **self._transport.cluster.settings(),
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "on_commit": self._committed,
            "allow.auto.create.topics": False,
            "error_cb": self._note_error,
        }

    # -- taking

    def take(self, limit: int) -> Sequence[Message]:
        """Up to `limit` messages that are ready, in their order."""
        with self._lock:
            return self._take(limit)

    def _take(self, limit: int) -> Sequence[Message]:
        ready = self._ready
        messages: list[Message] = []
        behind: list[KafkaMessage] = []
        while ready and len(messages) < limit:
            message = ready.popleft()
            receipt: KafkaReceipt = message.receipt  # type: ignore[assignment]
            if receipt.lost:
                continue
            if receipt.partition.is_blocked:
                behind.append(message)  # it would only take the room of those that may be handled
            else:
                messages.append(message)
        ready.extendleft(reversed(behind))
        if messages and len(ready) <= self._most() // 2:
            self._taken.set()
        return messages

    def _most(self) -> int:
        return max(1, min(MOST, HEAVIEST // self._largest))

    # -- the polling thread

    def _run(self) -> None:
        try:
            self._client.subscribe(
                list(self._topics),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
            while not self.closing.is_set() and self.failure is None:
                self._turn()
        except Exception as error:
            self._fail(as_ours(error, f"group {self._group}"))
        finally:
            self._leave()

    def _turn(self) -> None:
        room = self._room()
        records = self._poll(room, self._until_due())
        if records:
            self._outage.is_over()
            self._take_in(records)
        self._present_due()
        if self._clock.monotonic() >= self._commit_at:
            self._commit_at = self._clock.monotonic() + COMMIT_SECONDS
            self._commit(list(self._partitions.values()), asynchronous=True)
        if self._outage.should_probe():
            with suppress(KafkaException):
                self._client.list_topics(self._topics[0], timeout=POLL_SECONDS)
                self._outage.is_over()

    def _room(self) -> int:
        """How many messages there is room for. If there is none for long, everything is paused."""
        room = self._most() - len(self._ready)
        if room <= 0 and not self._full:
            self._taken.clear()
            if len(self._ready) >= self._most():
                self._clock.wait(self._taken, FULL_SECONDS)
            room = self._most() - len(self._ready)
            if room <= 0 and not self.closing.is_set():
                self._full = True
        elif self._full and room > self._most() // 2:
            self._full = False
        self._pause_and_resume()
        return 0 if self._full else max(1, room)

    def _pause_and_resume(self) -> None:
        """Pause and resume partitions, so that nothing is fetched that could not be used now."""
        pausing: list[TopicPartition] = []
        resuming: list[TopicPartition] = []
        for partition in self._partitions.values():
            wanted = self._full or bool(partition.waiting)
            if wanted != partition.paused:
                partition.paused = wanted
                (pausing if wanted else resuming).append(TopicPartition(*partition.domain))
        if pausing:
            self._client.pause(pausing)
        if resuming:
            self._client.resume(resuming)

    def _until_due(self) -> float:
        """For how long to poll."""
        partitions = self._partitions.values()
        dues = [due for each in partitions if each.waiting and (due := each.next_due) is not None]
        longest = BUSY_SECONDS if any(each.is_busy for each in partitions) else POLL_SECONDS
        return min(longest, max(0.0, min(dues) - self._clock.wall())) if dues else longest

    def _poll(self, room: int, timeout: float) -> list[Any]:
        first = self._client.poll(timeout)
        if first is None:
            return []
        return [first, *(self._client.consume(room - 1, 0) if room > 1 else ())]

    def _take_in(self, records: Sequence[Any]) -> None:
        now, ready = self._clock.wall(), []
        largest = 1
        with self._lock:
            for record in records:
                error = record.error()
                if error is not None:
                    self._note_failure(error)
                    continue
                partition = self._partitions.get((record.topic(), record.partition()))
                if partition is None:
                    continue  # it was revoked meanwhile
                read = read_record(record, partition, self._generation).bounded(now, self._longest_wait)
                largest = max(largest, len(read.message.body))
                self._note_received(partition, read)
                if partition.waiting or read.wait > now:
                    partition.waiting.append(read)
                else:
                    ready.append(read)
            self._largest = max(largest, self._largest // 2)
        self._present(ready)

    def _note_received(self, partition: AssignedPartition, read: ReadRecord) -> None:
        receipt: KafkaReceipt = read.message.receipt  # type: ignore[assignment]
        if not partition.received(receipt):
            text = "kafka: group %s: topic %s was deleted and created again: what was received before is void"
            log.warning(text, self._group, partition.topic)

    def _present_due(self) -> None:
        now = self._clock.wall()
        with self._lock:
            ready = [read for each in self._partitions.values() if each.waiting for read in each.due(now)]
        self._present(ready)

    def _present(self, ready: Sequence[ReadRecord]) -> None:
        """Make messages ready that are due. Copies that are not due, but leave their topic, are stored again."""
        if not ready:
            return
        soon = self._clock.wall() + SOON_SECONDS
        later = [read for read in ready if read.due > soon]
        with self._lock:
            self._ready.extend(read.message for read in ready if read.due <= soon)
            self._arrived.set()
        for read in later:
            self._forward(read)

    def _commit(self, partitions: Sequence[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit what is settled. Only on this thread: on another one the client may wait for this one, and block."""
        with self._lock:
            moved = [(each, offset) for each in partitions if (offset := each.to_commit()) is not None]
        if not moved:
            return
        offsets = [TopicPartition(each.topic, each.number, offset) for each, offset in moved]
        try:
            self._client.commit(offsets=offsets, asynchronous=asynchronous)
        except (KafkaException, RuntimeError):
            for each, _ in moved:
                each.was_not_committed()

    # -- what the client tells, in the polling thread

    def _committed(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """After a failed commit, try again later, together with what is settled by then."""
        for each in offsets:
            partition = self._partitions.get(_key(each))
            if partition is not None and (error is not None or each.error is not None):
                partition.was_not_committed()

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(as_ours(error, f"group {self._group}: the client has failed"))
        else:
            self._outage.note(error)

    def _note_failure(self, error: KafkaError) -> None:
        if ends_consuming(error):
            self.failure = _transport_error(as_ours(error, f"group {self._group}"))
            self._arrived.set()
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001 - the library's public name for it
            log.warning(
                "kafka: group %s: this process did not run for too long, and its partitions went to other consumers",
                self._group,
            )

    def _fail(self, error: PumpError) -> None:
        if self.failure is None and not self.closing.is_set():
            self.failure = _transport_error(error)
        self._arrived.set()

    def _assigned(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        with self._lock:
            for each in partitions:
                self._partitions[each.topic, each.partition] = AssignedPartition(each.topic, each.partition)

    def _revoked(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        """Other consumers get these partitions, with all messages that nobody has begun. Handlers that run may end."""
        with self._lock:
            leaving = [self._partitions[key] for each in partitions if (key := _key(each)) in self._partitions]
            receipts = [receipt for partition in leaving for receipt in partition.unsettled]
            for receipt in receipts:
                receipt.lost = not receipt.begun or self.closing.is_set()
        if not self.closing.is_set():
            self._drain(receipts)
        self._commit(leaving, asynchronous=False)
        self._forget(leaving, receipts)

    def _lost(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        """Other consumers have these partitions already."""
        with self._lock:
            leaving = [self._partitions[key] for each in partitions if (key := _key(each)) in self._partitions]
            receipts = [receipt for partition in leaving for receipt in partition.unsettled]
        self._forget(leaving, receipts)

    def _drain(self, receipts: Sequence[KafkaReceipt]) -> None:
        """Wait until the handlers of these messages have ended: the next ones of a key must not run beside them."""
        deadline = self._clock.monotonic() + DRAIN_SECONDS
        while receipts and self._clock.monotonic() < deadline and not self.closing.is_set():
            self._clock.wait(self.closing, LOOK_SECONDS)
            with self._lock:
                receipts = [receipt for receipt in receipts if receipt.begun and receipt.partition.has(receipt)]
                for receipt in receipts:  # also messages that were taken before, and begun only after they were lost
                    receipt.lost = False

    def _forget(self, leaving: Sequence[AssignedPartition], receipts: Sequence[KafkaReceipt]) -> None:
        with self._lock:
            for partition in leaving:
                partition.lose()
                self._partitions.pop(partition.domain, None)
            staying = [message for message in self._ready if not message.lost]
            self._ready.clear()
            self._ready.extend(staying)
        for receipt in receipts:
            receipt.lost = True
            interrupt = receipt.interrupt
            if interrupt is not None and not self.closing.is_set():
                with suppress(Exception):  # the error belongs to the handler, whose verdict has no effect any more
                    interrupt()

    # -- settling

    def check(self, message: Message) -> KafkaReceipt:
        """The message's receipt; LeaseLost if the message is settled, or no longer belongs to this member."""
        receipt = message.receipt
        if not isinstance(receipt, KafkaReceipt) or self.closing.is_set() or not receipt.partition.holds(receipt):
            raise LeaseLost(f"message {message.id} of {self._group} no longer belongs to this consumer")
        return receipt

    def settle(self, message: Message) -> None:
        """The message is done; it is committed soon, if everything before it is done."""
        with self._lock:
            receipt = self.check(message)
            was_blocked = receipt.partition.is_blocked
            receipt.partition.settle(receipt)
        if was_blocked:
            self._arrived.set()

    def put_back(self, messages: Sequence[KafkaMessage]) -> None:
        """Take these back: they come next."""
        with self._lock:
            self._ready.extendleft(reversed([each for each in messages if not each.lost]))
        self._arrived.set()

    # -- ending

    def stop(self) -> None:
        """Begin to leave the group."""
        self.closing.set()
        self._taken.set()

    def has_left(self, timeout: float) -> bool:
        """Whether the member has left the group, after waiting at most this many seconds."""
        return self._clock.wait(self._ended, timeout)

    def _leave(self) -> None:
        """Give up the partitions before closing the client: one that gets a partition while it closes would hang."""
        with suppress(KafkaException, RuntimeError):
            self._client.unsubscribe()
            deadline = self._clock.monotonic() + LEAVE_SECONDS
            while self._client.assignment() and self._clock.monotonic() < deadline:
                self._client.poll(LOOK_SECONDS)
        with suppress(KafkaException, RuntimeError):
            self._client.close()
        self._ended.set()


def _key(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic, partition.partition


def _transport_error(error: PumpError) -> TransportError:
    if isinstance(error, TransportError):
        return error
    failure = TransportError(str(error))
    failure.__cause__ = error
    return failure
