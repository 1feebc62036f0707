"""One member of a consumer group: it goes on polling while handlers run, and commits only what is settled."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pump.clock import Signal
from pump.errors import PumpError, TransportError
from pump.message import Message
from pump.telemetry import log
from pump.transports.kafka.client import Outage, as_ours, ends_consuming, made
from pump.transports.kafka.partitions import AssignedPartition
from pump.transports.kafka.records import KafkaMessage, read_message

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


class _PartitionRun:
    """Some of what one partition has ready, in order: records as they came, and messages that were read already."""

    __slots__ = ("items", "partition")

    def __init__(self, partition: AssignedPartition, items: Iterable[Any]) -> None:
        self.partition: Final = partition
        self.items: Final[deque[Any]] = deque(items)


class GroupMember:
    """A client that consumes some topics as a member of a group.

    A thread of its own polls the client, and is the only one that the client calls back; it lives until `close`. It
    passes records on as they come; whoever takes them reads them. The lock guards the partitions and what is ready. To
    settle a message takes no lock: the message is marked.
    """

    def __init__(
        self,
        transport: "KafkaTransport",
        *,
        group: str,
        topics: Sequence[str],
        generation: int,
        arrived: Signal,
        forward: Callable[[KafkaMessage], None],
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
        self._ready: deque[_PartitionRun] = deque()
        self._count = 0
        """How many messages are ready."""
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
        """Up to `limit` messages that are ready, those of a partition in their order."""
        if not self._ready:
            return ()
        with self._lock:
            messages = self._take(limit)
            if messages and self._count <= self._most() // 2:
                self._taken.set()
        return messages

    def _take(self, limit: int) -> Sequence[Message]:
        messages: list[Message] = []
        blocked: list[_PartitionRun] = []
        while self._ready and len(messages) < limit:
            run = self._ready.popleft()
            if run.partition.leaving:
                self._count -= len(run.items)
            elif run.partition.is_blocked:
                blocked.append(run)  # they would only take the room of those that may be handled
            else:
                messages += self._read(run, limit - len(messages))
                if run.items:
                    self._ready.appendleft(run)
        self._ready.extendleft(reversed(blocked))
        return messages

    def _read(self, run: _PartitionRun, limit: int) -> Iterable[Message]:
        items, partition = run.items, run.partition
        number = min(limit, len(items))
        self._count -= number
        for _ in range(number):
            item = items.popleft()
            if not isinstance(item, KafkaMessage):
                item = self._message(item, partition)
            if not item.lost:
                yield item

    def _message(self, record: Any, partition: AssignedPartition) -> KafkaMessage:  # noqa: ANN401 - the vendor's
        message = read_message(record, partition, self._generation)
        if not partition.read(message):
            text = "kafka: group %s: topic %s was deleted and created again: what was received before is void"
            log.warning(text, self._group, partition.topic)
        return message

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
        room = self._most() - self._count
        if room <= 0 and not self._full:
            self._taken.clear()
            if self._count >= self._most():
                self._clock.wait(self._taken, FULL_SECONDS)
            room = self._most() - self._count
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
        self._largest = max(*map(len, records), self._largest // 2, 1)
        for key, some in self._by_partition(records):
            partition = self._partitions.get(key)
            if partition is None:
                continue  # it was revoked meanwhile
            if self._longest_wait:
                self._take_in_copies(partition, some)
            else:
                self._present(partition, some)

    def _by_partition(self, records: Sequence[Any]) -> Iterable[tuple[tuple[str, int], Sequence[Any]]]:
        """The records that are no errors, those of one partition together where they came together."""
        key, some = ("", -1), list[Any]()
        for record in records:
            error = record.error()
            if error is not None:
                self._note_failure(error)
                continue
            own = (record.topic(), record.partition())
            if own != key and some:
                yield key, some
                some = []
            key = own
            some.append(record)
        if some:
            yield key, some

    def _take_in_copies(self, partition: AssignedPartition, records: Sequence[Any]) -> None:
        """Read copies at once: some are not due yet."""
        now, ready = self._clock.wall(), []
        with self._lock:
            for record in records:
                message = self._message(record, partition).bounded(now, self._longest_wait)
                if partition.waiting or message.wait > now:
                    partition.waiting.append(message)
                else:
                    ready.append(message)
        self._present_copies(partition, ready)

    def _present_due(self) -> None:
        now = self._clock.wall()
        for partition in tuple(self._partitions.values()):
            if partition.waiting:
                self._present_copies(partition, partition.due(now))

    def _present_copies(self, partition: AssignedPartition, messages: Sequence[KafkaMessage]) -> None:
        """Make messages ready that are due. Copies that are not due, but leave their topic, are stored again."""
        soon = self._clock.wall() + SOON_SECONDS
        self._present(partition, [message for message in messages if message.due <= soon])
        for message in messages:
            if message.due > soon:
                self._forward(message)

    def _present(self, partition: AssignedPartition, items: Sequence[Any]) -> None:
        if items:
            with self._lock:
                self._ready.append(_PartitionRun(partition, items))
                self._count += len(items)
            self._arrived.set()

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
        leaving, messages = self._leaving(partitions)
        for message in messages:
            message.lost = not message.has_begun or self.closing.is_set()
        if not self.closing.is_set():
            self._drain(messages)
        for partition in leaving:  # whatever becomes of commits that are under way
            partition.was_not_committed()
        self._commit(leaving, asynchronous=False)
        self._forget(leaving, messages)

    def _lost(self, _client: object, partitions: Sequence[TopicPartition]) -> None:
        """Other consumers have these partitions already."""
        self._forget(*self._leaving(partitions))

    def _leaving(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[Sequence[AssignedPartition], Sequence[KafkaMessage]]:
        """The partitions that are still here, and their unsettled messages. Nothing is taken of them from now on."""
        with self._lock:
            leaving = [self._partitions[key] for each in partitions if (key := _key(each)) in self._partitions]
            for partition in leaving:
                partition.leaving = True
            return leaving, [message for partition in leaving for message in partition.unsettled]

    def _drain(self, messages: Sequence[KafkaMessage]) -> None:
        """Wait until the handlers of these messages have ended: the next ones of a key must not run beside them."""
        deadline = self._clock.monotonic() + DRAIN_SECONDS
        while messages and self._clock.monotonic() < deadline and not self.closing.is_set():
            self._clock.wait(self.closing, LOOK_SECONDS)
            messages = [message for message in messages if message.has_begun and not message.done]
            for message in messages:  # also messages that were taken before, and begun only after they were lost
                message.lost = False

    def _forget(self, leaving: Sequence[AssignedPartition], messages: Sequence[KafkaMessage]) -> None:
        with self._lock:
            for partition in leaving:
                partition.lose()
                self._partitions.pop(partition.domain, None)
            self._ready = deque(run for run in self._ready if not run.partition.leaving)
            self._count = sum(len(run.items) for run in self._ready)
        for message in messages:
            message.lost = True
            interrupt = message.interrupt
            if interrupt is not None and not self.closing.is_set():
                with suppress(Exception):  # the error belongs to the handler, whose verdict has no effect any more
                    interrupt()

    def put_back(self, messages: Sequence[KafkaMessage]) -> None:
        """Take these back: they come next."""
        runs = [_PartitionRun(partition, some) for partition, some in groupby(messages, key=attrgetter("assigned"))]
        with self._lock:
            self._ready.extendleft(reversed(runs))
            self._count += len(messages)
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
