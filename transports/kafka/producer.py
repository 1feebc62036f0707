"""Stores records, each once and those of a key in their order, and reports for each whether it was confirmed."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from pump.clock import Clock, Signal
from pump.errors import PublishError
from pump.message import Message
from pump.telemetry import log
from pump.transport_kit.sending import check_sizes, not_sent, together
from pump.transports.kafka.client import Outage, kafka_error, made, not_stored
from pump.transports.kafka.records import KafkaRecord, new_record

if TYPE_CHECKING:
    from pump.transports.kafka.transport import KafkaTransport

POLL_SECONDS: Final = 0.1
FLUSH_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 1.5
WAIT_BEYOND_SECONDS: Final = 5.0
"""How long to wait for the client's report beyond the client's own limit."""
LARGEST_RECORD: Final = 100 * 2**20
"""In bytes, as far as the client is concerned: the broker has a limit of its own, and says so."""

Failures = Mapping[int, PublishError]


class _Reports:
    """The results of the records of one call; calls `done` when all are known."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self.failures: Final[dict[int, PublishError]] = {}
        self._left = count + 1
        """The records without a result, plus one until all were given to the client."""
        self._done: Final = done
        self._lock: Final = threading.Lock()

    def note(self, place: int, topic: str, error: KafkaError | None, _: object = None) -> None:
        """The client's report on one record."""
        if error is not None:
            self.failures[place] = not_stored(error, topic)
        self.one_less()

    def fail(self, place: int, error: PublishError) -> None:
        """Note a record that could not even be given to the client."""
        self.failures[place] = error
        self.one_less()

    def one_less(self) -> None:
        """Count one result; after the last one, call `done`."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._done()


class RecordStore:
    """One producing client and the thread that serves it. From any thread.

    A client that has failed for good is replaced by a new one when the next record comes.
    """

    def __init__(self, transport: "KafkaTransport") -> None:
        self._settings: Final[dict[str, Any]] = {
            "linger.ms": 0,
            "partitioner": "murmur2_random",  # as Java's clients do
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": LARGEST_RECORD,
            **transport.cluster.settings(),
            "enable.idempotence": True,
            "message.timeout.ms": round(transport.timeout * 1000),
            "error_cb": self._note,
        }
        self._clock: Final[Clock] = transport.clock
        self.longest_wait: Final = transport.timeout + WAIT_BEYOND_SECONDS
        self._outage: Final = Outage("sending", self._clock)
        self._lock: Final = threading.Lock()
        self._client: Any = None
        self._failed = False
        self._closing: Final = Signal()
        self._ended: Final = Signal()
        self._ended.set()

    def store(self, records: Sequence[KafkaRecord], done: Callable[[Failures], None]) -> None:
        """Give the records to the client. `done` is called once, perhaps from another thread."""
        reports = _Reports(len(records), lambda: done(reports.failures))
        for place, record in enumerate(records):
            try:
                self._give(record, partial(reports.note, place, record.topic))
            except PublishError as error:
                reports.fail(place, error)
        reports.one_less()

    def store_and_wait(self, records: Sequence[KafkaRecord]) -> None:
        """Return when all are confirmed; PublishError otherwise."""
        outcome: list[Failures] = []
        known = Signal()

        def done(failures: Failures) -> None:
            outcome.append(failures)
            known.set()

        self.store(records, done)
        if not self._clock.wait(known, self.longest_wait):
            raise PublishError(
                f"kafka: the brokers did not confirm the messages within {self.longest_wait:g} s", sent=None
            )
        if outcome[0]:
            raise together(outcome[0], len(records))

    def _give(self, record: KafkaRecord, report: Callable[..., None]) -> None:
        try:
            self._working_client().produce(
                record.topic, record.value, record.key, on_delivery=report, headers=list(record.headers)
            )
        except BufferError as error:
            raise not_sent("the client's queue is full", retriable=True) from error
        except KafkaException as error:
            told = kafka_error(error)
            if told is None:
                raise not_sent(f"kafka: {record.topic}: {error}") from error
            if told.fatal():
                self._failed = True
                raise not_sent(f"kafka: the client has failed: {told.str()}", retriable=True) from error
            failure = not_stored(told, record.topic)
            failure.sent = False
            raise failure from error
        except (ValueError, TypeError) as error:
            raise not_sent(f"kafka: {record.topic!r}: the client cannot take the message: {error}") from error

    def _working_client(self) -> Any:  # noqa: ANN401 - the vendor's
        client = self._client
        if client is not None and not self._failed:
            return client
        with self._lock:
            if self._closing.is_set():
                raise not_sent("the producer is closed", retriable=True)
            if self._client is None or self._failed:
                if self._failed:
                    log.warning("kafka: the client that sends has failed, and a new one is started")
                self._client, self._failed = made(Client, self._settings), False
                self._ended.clear()
                threading.Thread(target=self._serve, args=(self._client,), name="pump-kafka-send", daemon=True).start()
            return self._client

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed = True
        else:
            self._outage.note(error)

    def _serve(self, client: Any) -> None:  # noqa: ANN401 - the vendor's
        """Deliver the client's reports, until the store is closed or another client replaces this one."""
        while not self._closing.is_set() and client is self._client:
            client.poll(POLL_SECONDS)
            if self._outage.should_probe():
                with suppress(KafkaException):
                    client.list_topics(timeout=POLL_SECONDS)
                    self._outage.is_over()
        with suppress(KafkaException):
            client.flush(FLUSH_SECONDS)
            client.purge()
            client.poll(0)
        if client is self._client:
            self._ended.set()

    def close(self) -> None:
        """Wait a moment for the records under way; those that are not confirmed by then are reported as such."""
        with self._lock:
            self._closing.set()
        self._clock.wait(self._ended, CLOSE_SECONDS)


class SharedStore:
    """The one store of a transport, shared by all who send; closed when its last user releases it."""

    def __init__(self, transport: "KafkaTransport") -> None:
        self._transport: Final = transport
        self._lock: Final = threading.Lock()
        self._users = 0
        self._process = 0
        self._store: RecordStore | None = None

    def take(self) -> RecordStore:
        """The store. The caller must release it once."""
        with self._lock:
            if self._store is None or self._process != os.getpid():  # threads and connections do not outlive a fork
                self._store, self._users, self._process = RecordStore(self._transport), 0, os.getpid()
            self._users += 1
            return self._store

    def release(self) -> None:
        """End one use; the last one closes the store."""
        with self._lock:
            self._users -= 1
            last = self._store if self._users == 0 else None
            if last is not None:
                self._store = None
        if last is not None:
            last.close()


class _Poster:
    """What blocking and awaiting producers share."""

    def __init__(self, transport: "KafkaTransport") -> None:
        self._transport: Final = transport
        self._store: Final = transport.stores.take()
        self._closed = False

    def _records(self, messages: Sequence[Message], delay: float) -> list[KafkaRecord]:
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        if delay > 0:
            raise not_sent("Kafka cannot delay a message")
        return [self._record(message) for message in messages]

    def _record(self, message: Message) -> KafkaRecord:
        try:
            check_sizes(message, self._transport.capabilities)
            return new_record(message)
        except ValueError as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error


class KafkaProducer(_Poster):
    """Sends to the topics in the messages' headers, by a client of its own. From any thread."""

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As Producer's."""
        self._store.store_and_wait(self._records(messages, delay))

    def close(self) -> None:
        """Disconnect."""
        if not self._closed:
            self._closed = True
            self._transport.stores.release()


class AsyncKafkaProducer(_Poster):
    """The same, awaiting; on the loop that opened it."""

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As AsyncProducer's."""
        records = self._records(messages, delay)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Failures] = loop.create_future()

        def tell(failures: Failures) -> None:
            if not future.done():
                future.set_result(failures)

        def done(failures: Failures) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, failures)

        self._store.store(records, done)
        try:
            async with asyncio.timeout(self._store.longest_wait):
                failures = await future
        except TimeoutError as error:
            raise PublishError(
                f"kafka: the brokers did not confirm the messages within {self._store.longest_wait:g} s", sent=None
            ) from error
        if failures:
            raise together(failures, len(records))

    async def close(self) -> None:
        """Disconnect."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._transport.stores.release)
