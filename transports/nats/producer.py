"""Publishing to streams. Each message is confirmed, or reported as failed; retries do not store it twice."""

import asyncio
import random
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from pump.capabilities import Capabilities
from pump.clock import Clock, Signal
from pump.errors import PublishError, PublishExhausted, SetupError, TransportError
from pump.message import Message
from pump.telemetry import Telemetry
from pump.transport_kit.sending import check_sizes, not_sent, portions, together
from pump.transports.nats.client_internals import header_block, publish_frame, read_answers, writer_of
from pump.transports.nats.connection import OPEN_SECONDS, NatsConnection, ServerAddress, error_text, ignore, log
from pump.transports.nats.headers import correlation_ids, to_nats

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 * 2**20
"""The most messages and bytes of a batch; their confirmations are awaited before the next batch."""
JITTER: Final = 0.1
GIVE_UP_SECONDS: Final = 5.0
"""A connection that has been lost for this long is replaced by a new one."""


@dataclass(frozen=True, slots=True)
class PublishRetries:
    """How often a message is published, and how long each confirmation may take."""

    max_retries: int = 3
    """The number of tries, including the first."""
    retry_base_ms: float = 100.0
    """The wait before the second try. It doubles before each further one; up to a tenth is added at random."""
    timeout: float = 5.0
    """How many seconds to wait for the confirmation of one try."""

    def delay(self, tries: int, chance: float) -> float:
        """How many seconds to wait after `tries` tries."""
        return float(self.retry_base_ms / 1000 * 2 ** (tries - 1) * (1 + JITTER * chance))


class OutgoingMessage(NamedTuple):
    """One message to publish. Its headers tell the server whether it has stored it already."""

    subject: str
    body: bytes
    headers: Mapping[str, str]
    id: str
    encoded_headers: bytes = b""
    """The headers as bytes of the protocol; empty if nats-py must encode them."""

    @property
    def header_size(self) -> int:
        """The size of the headers in bytes."""
        return len(self.encoded_headers) or sum(
            len(name) + len(value.encode()) + 4 for name, value in self.headers.items()
        )

    @property
    def size(self) -> int:
        """The size of headers and body in bytes."""
        return len(self.body) + self.header_size

    def weigh(self) -> int:
        """As `size`, as a method."""
        return self.size


class PublishDenied(nats.errors.Error):
    """The server does not permit publishing to the subject."""


_NOT_SENT: Final = (
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.ConnectionDrainingError,
    nats.errors.NoServersError,
    nats.errors.OutboundBufferLimitError,
    TransportError,
)
_INVALID: Final = (nats.errors.BadSubjectError, nats.errors.MaxPayloadError, nats.js.errors.BadRequestError)
_KINDS: Final[Sequence[tuple[tuple[type[BaseException], ...], str, bool, bool | None]]] = (
    ((asyncio.TimeoutError, nats.errors.TimeoutError), "timeout", True, None),
    (_NOT_SENT, "connection_failed", True, False),
    ((nats.errors.StaleConnectionError, OSError), "connection_failed", True, None),
    ((PublishDenied, SetupError), "permission_denied", False, False),
    ((nats.js.errors.NoStreamResponseError, nats.errors.NoRespondersError), "no_stream", False, False),
    ((*_INVALID, nats.errors.BadHeaderError, UnicodeError), "invalid_format", False, False),
    ((nats.js.errors.ServiceUnavailableError, nats.js.errors.ServerError), "nats_unavailable", True, False),
    # The server recognises a repetition, so trying again is safe; giving up might lose the message.
    ((BaseException,), "unknown", True, None),
)


class PublishFailure(NamedTuple):
    """Why a try to publish a message failed."""

    message: OutgoingMessage
    error: BaseException
    kind: str
    """One of a few words, for a metric's label."""
    retriable: bool
    sent: bool | None
    """False: the message is not stored. None: unknown."""

    @classmethod
    def of(cls, message: OutgoingMessage, error: BaseException) -> "PublishFailure":
        """The failure for an error: its kind, and whether another try may help."""
        _, kind, retriable, sent = next(each for each in _KINDS if isinstance(error, each[0]))
        return cls(message, error, kind, retriable, sent)


class _Answer(msgspec.Struct):
    """A stream's answer to a message."""

    stream: str = ""
    seq: int = 0
    error: dict[str, Any] | None = None


_read_answer: Final = msgspec.json.Decoder(_Answer).decode
_UNAVAILABLE: Final = f"NATS/1.0 {api.StatusCode.SERVICE_UNAVAILABLE.value}".encode()


class _Unanswered:
    """Messages that were published together. One `wait` waits for all their answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self.errors: Final[list[BaseException | None]] = [nats.errors.TimeoutError()] * number
        """The error of each message, None if it is confirmed; a time-out until it is answered."""
        self._number = number
        self._loop: Final = loop
        self._done: Final = loop.create_future()

    def end_one(self) -> None:
        """Note that one message is answered."""
        self._number -= 1
        if not self._number:
            self._end()

    async def wait(self, timeout: float) -> Sequence[BaseException | None]:
        """Wait until all are answered or the time is over; returns their errors, None for a confirmed message."""
        if self._number:
            late = self._loop.call_later(timeout, self._end)
            try:
                await self._done
            finally:
                late.cancel()
        return self.errors

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class _Awaited:
    """One of the messages that were published together. Its first answer counts."""

    __slots__ = ("_place", "_unanswered", "subject")

    def __init__(self, subject: str, unanswered: _Unanswered, place: int) -> None:
        self.subject: Final = subject
        self._unanswered: _Unanswered | None = unanswered
        self._place: Final = place

    def end(self, error: BaseException | None) -> None:
        """Note that the message is confirmed (None), or has failed."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None:
            unanswered.errors[self._place] = error
            unanswered.end_one()


class NatsProducer:
    """Posts messages on a connection of its own, which the first message opens, and the next one after it broke."""

    def __init__(
        self,
        address: ServerAddress,
        purpose: str,
        *,
        capabilities: Capabilities,
        clock: Clock,
        retries: PublishRetries,
        telemetry: Telemetry,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._address: Final = address
        self._purpose: Final = purpose
        self._capabilities: Final = capabilities
        self._clock: Final = clock
        self._retries: Final = retries
        self._telemetry: Final = telemetry
        self._chance: Final = chance
        self._closing: Final = Signal()
        self._opening: Final = asyncio.Lock()
        self._numbers: Final = count(1)
        self._token: Final = secrets.token_hex(6)
        self._unconfirmed: Final[dict[str, _Awaited]] = {}
        """The unconfirmed messages, by the inbox to which the confirmation comes."""
        self._connection: NatsConnection | None = None
        self._inbox = ""
        self._reads_answers = False
        self._last_answer = 0.0

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message, once. A try that failed is repeated if that may help."""
        if delay > 0:
            raise not_sent("NATS cannot delay a message")
        await self.publish([self._outgoing(message) for message in messages])

    def _outgoing(self, message: Message) -> OutgoingMessage:
        header = message.header
        token = f"{header.id}.{self._token}{next(self._numbers)}"  # the same for all tries of this posting
        headers = to_nats(header, token)
        outgoing = OutgoingMessage(header.topic, message.body, headers, header.id, header_block(headers))
        check_sizes(message, self._capabilities, outgoing.header_size)
        return outgoing

    async def publish(self, messages: Sequence[OutgoingMessage]) -> None:
        """Return when all are confirmed. PublishExhausted after the last try; PublishError if no other try can help."""
        places: Sequence[int] = range(len(messages))
        unknown = set[int]()
        for tries in count(1):
            failed = await self._try(messages, places)
            if not failed:
                return
            unknown.update(place for place, each in failed.items() if each.sent is None)
            final = next((each for each in failed.values() if not each.retriable), None)
            if final is not None or tries >= self._retries.max_retries or self._closing.is_set():
                raise self._given_up(failed, final, tries, unknown, len(messages))
            delay = self._retries.delay(tries, self._chance())
            for message, _, kind, *_ in failed.values():
                subject, again = message.subject, tries + 1
                log.warning("posting to %s failed (%s); try %d follows in %.3f s", subject, kind, again, delay)
                fields = {"subject": subject, "error_kind": kind, "retry": tries, "delay": delay}
                self._tell("router_assignment_retry_total", message, **fields)
            places = list(failed)
            await self._clock.wait_async(self._closing, delay)

    async def close(self) -> None:
        """Close the connection. Messages that are not confirmed yet are reported as unknown."""
        self._closing.set()
        await self._disconnect()
        self._fail_unconfirmed(nats.errors.ConnectionClosedError())

    # -- one try

    async def _try(self, messages: Sequence[OutgoingMessage], places: Sequence[int]) -> Mapping[int, PublishFailure]:
        """Publish the messages in these places; returns the failures, by place."""
        messages = [messages[place] for place in places]
        began, errors = self._clock.monotonic(), list[BaseException | None]()
        for batch in portions(messages, OutgoingMessage.weigh, BATCH_MESSAGES, BATCH_BYTES):
            try:
                connection = await self._connected()
            except (TransportError, SetupError) as error:
                errors += [error] * len(batch)
            else:
                errors += await self._send_batch(connection, batch)
        if self._telemetry:
            for message, failure in zip(messages, errors, strict=True):
                if failure is None:
                    self._tell("router_assignment_published_total", message, subject=message.subject)
        failed = {
            place: await self._explained(PublishFailure.of(message, failure))
            for place, message, failure in zip(places, messages, errors, strict=True)
            if failure is not None
        }
        if self._last_answer < began and any(each.kind == "timeout" for each in failed.values()):
            await self._disconnect()  # the connection may be half open: the next try opens a new one
        return failed

    async def _send_batch(
        self, connection: NatsConnection, batch: Sequence[OutgoingMessage]
    ) -> Sequence[BaseException | None]:
        """Publish a batch, and wait until all are confirmed or have failed; returns an error or None for each."""
        unanswered = _Unanswered(connection.loop, len(batch))
        write, largest = self._writer_of(connection), connection.client.max_payload
        inboxes, frames = list[str](), list[bytes]()
        for place, message in enumerate(batch):
            inbox = f"{self._inbox}.{next(self._numbers)}"
            inboxes.append(inbox)
            self._unconfirmed[inbox] = awaited = _Awaited(message.subject, unanswered, place)
            frame = publish_frame(message.subject, inbox, message.encoded_headers, message.body) if write else b""
            if message.size > largest:
                awaited.end(nats.errors.MaxPayloadError())
            elif frame:
                frames.append(frame)
            else:
                await self._publish_one(connection, message, inbox, awaited)
        if write is not None and frames:
            write(b"".join(frames))
        try:
            return await unanswered.wait(self._retries.timeout)
        finally:
            for inbox in inboxes:
                self._unconfirmed.pop(inbox, None)

    def _writer_of(self, connection: NatsConnection) -> Callable[[bytes], object] | None:
        """The function that writes several messages at once; None if they must be published one by one."""
        return writer_of(connection.client) if connection.alive and self._reads_answers else None

    async def _publish_one(
        self, connection: NatsConnection, message: OutgoingMessage, inbox: str, awaited: "_Awaited"
    ) -> None:
        try:
            await connection.client.publish(
                message.subject, message.body, reply=inbox, headers=dict(message.headers) or None
            )
        except Exception as error:
            awaited.end(error)

    async def _on_message(self, answer: Msg) -> None:
        """Take an answer that nats-py has read; only if `read_answers` could not be used."""
        status = (answer.headers or {}).get(api.Header.STATUS, "")
        self._on_answer(answer.subject, answer.data, b"NATS/1.0 " + status.encode())

    def _on_answer(self, inbox: str, data: bytes, headers: bytes) -> None:
        self._last_answer = self._clock.monotonic()
        awaited = self._unconfirmed.pop(inbox, None)
        if awaited is not None:
            awaited.end(_error_in(data, headers))

    async def _explained(self, failure: PublishFailure) -> PublishFailure:
        """If nobody answered, find out why: there is no stream, or JetStream is not ready yet."""
        if failure.kind != "no_stream" or self._connection is None:
            return failure
        try:
            answer = await self._connection.request("STREAM.NAMES", {"subject": failure.message.subject})
        except Exception:
            answer = {"streams": "unknown"}
        return failure._replace(kind="nats_unavailable", retriable=True) if answer.get("streams") else failure

    # -- the connection

    async def _connected(self) -> NatsConnection:
        connection = self._connection
        if connection is not None and connection.alive and not self._closing.is_set():
            return connection
        async with self._opening:
            connection = self._connection
            if connection is not None and (connection.closed or connection.lost_seconds > GIVE_UP_SECONDS):
                await self._disconnect()
            if self._closing.is_set():
                raise TransportError("the producer is closed")
            if self._connection is None:
                connection = await NatsConnection.open(self._address, self._purpose)
                connection.on_refusal = self._on_refusal
                connection.on_change = self._on_change
                self._inbox = connection.client.new_inbox()
                subscription = await connection.client.subscribe(f"{self._inbox}.*", cb=self._on_message)
                self._reads_answers = read_answers(connection.client, subscription, self._on_answer)
                await self._flush(connection)
                self._connection = connection
            return self._connection

    async def _flush(self, connection: NatsConnection) -> None:
        """Wait until the server has the subscription, since messages are written past nats-py's own buffer."""
        try:
            await connection.client.flush(int(OPEN_SECONDS))
        except (nats.errors.Error, TimeoutError, OSError) as error:
            await connection.close()
            raise TransportError(f"the NATS server at {self._address} does not answer: {error_text(error)}") from error

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_change = ignore
            await connection.close()

    def _on_change(self) -> None:
        """When the connection is lost, end the wait for confirmations. Their messages may be stored."""
        if self._connection is not None and not self._connection.alive:
            self._fail_unconfirmed(nats.errors.StaleConnectionError())

    def _on_refusal(self, text: str) -> None:
        for awaited in self._unconfirmed.values():
            if f'"{awaited.subject.lower()}"' in text.lower():
                awaited.end(PublishDenied(text))

    def _fail_unconfirmed(self, error: BaseException) -> None:
        for awaited in self._unconfirmed.values():
            awaited.end(error)
        self._unconfirmed.clear()

    # -- telemetry and errors

    def _tell(self, event: str, message: OutgoingMessage, **fields: object) -> None:
        if self._telemetry:
            self._telemetry.tell(event, **fields, exemplar=correlation_ids(message.headers))

    def _given_up(
        self,
        failed: Mapping[int, PublishFailure],
        final: PublishFailure | None,
        tries: int,
        unknown: Container[int],
        number: int,
    ) -> PublishError:
        """The error for `number` messages: `failed` failed in the last try; the places `unknown` may be stored."""
        for message, _, kind, *_ in failed.values():
            self._tell("router_assignment_publish_failures_total", message, error_kind=kind, subject=message.subject)
            if final is None:
                self._tell("router_retry_exhausted_total", message, error_kind=kind, retries=tries)

        def error_of(place: int, failure: PublishFailure) -> PublishError:
            message, error, kind, retriable, _ = failure
            sent = None if place in unknown else False
            text = f"message {message.id} was not confirmed by {message.subject}: {kind}, {error_text(error)}"
            if final is not None:
                given_up = PublishError(text, sent=sent, retriable=retriable)
            else:
                given_up = PublishExhausted(f"{text}; tried {tries} times", kind=kind, tries=tries, sent=sent)
            given_up.__cause__ = error
            return given_up

        return together({place: error_of(place, each) for place, each in failed.items()}, number)


def _error_in(data: bytes, headers: bytes) -> Exception | None:
    """The error in an answer; None if it is a confirmation."""
    if headers.startswith(_UNAVAILABLE):
        return nats.js.errors.NoStreamResponseError()
    try:
        answer = _read_answer(data)
        if answer.error is not None:
            nats.js.errors.APIError.from_error(answer.error)
        if not answer.stream or not answer.seq:
            return ValueError("the answer is not the confirmation of a stream")
    except Exception as error:
        return error
    return None
