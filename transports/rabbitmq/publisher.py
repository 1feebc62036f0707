"""Publishes over a connection of its own, many messages under way at a time, each one confirmed by the broker.

What is for later goes by a ladder of delay queues, which are made when they are first needed.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pika.channel import Channel
from pika.spec import Basic

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PublishError, PumpError, SetupError
from pump.transports.rabbitmq.connection import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    Link,
    Operation,
    Refused,
    Steps,
    outcome,
    refusal,
)
from pump.transports.rabbitmq.pika_internals import MESSAGE_ID, RETURN, Content, ContentReader, split
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import RUNGS, Ladder, in_session, rung_for

WINDOW: Final = 1000
"""So many messages may be under way without being confirmed."""
HEADER_OVERHEAD: Final = 20
"""What a frame with properties holds beside them, in bytes."""


class Copy(NamedTuple):
    """A message to be sent, encoded."""

    id: str
    properties: bytes
    body: bytes


class Outgoing(NamedTuple):
    """One message for the broker."""

    exchange: str
    routing_key: str
    id: str
    properties: bytes
    body: bytes
    place: str
    """Where it goes, in words."""


class Batch(Operation[None]):
    """Messages that are published together: it ends when each is confirmed, or known not to be stored."""

    def __init__(self, messages: Sequence[Outgoing], patience: float) -> None:
        super().__init__(patience, self._expired)
        self.messages: Final = messages
        self.line: _Line | None = None
        """What it is published by."""
        self.sent = 0
        """So many of them are written."""
        self._unanswered = len(messages)
        self._refused: list[str] = []
        self._retriable = True

    def answer(self, refused: str = "", *, retriable: bool = True) -> None:
        """One of them is stored, or was refused for a reason."""
        self._unanswered -= 1
        if refused:
            self._refused.append(refused)
            self._retriable &= retriable
        if self._unanswered:
            return
        if self._refused:
            self.fail(self._refusal())
        else:
            self.succeed(None)

    def _refusal(self) -> PublishError:
        reasons = "; ".join(dict.fromkeys(self._refused))
        many = f"{len(self._refused)} of {len(self.messages)} messages were" if len(self.messages) > 1 else "it was"
        return PublishError(f"{many} not stored: {reasons}", sent=False, retriable=self._retriable)

    def _expired(self) -> Exception:
        line = self.line
        assert line is not None  # noqa: S101 - a batch without one has ended
        blocked = "blocks publishers, and " if line.blocked else ""
        error = PublishError(
            f"RabbitMQ {blocked}did not confirm {self._unanswered} of {len(self.messages)} messages "
            f"within {self.patience:g} s",
            sent=None if self.sent else False,
        )
        line.link.call(line.give_up, self, error)
        return error

    def lost(self, error: PumpError) -> None:
        """The connection is gone."""
        what = "it is not known whether all was stored" if self.sent else "nothing was sent"
        retriable = error.retriable if isinstance(error, PublishError) else not isinstance(error, SetupError)
        self.fail(PublishError(f"{what}: {error}", sent=None if self.sent else False, retriable=retriable))


class Publisher:
    """A connection that publishes: opened when it is first needed, and again after it was lost."""

    def __init__(self, settings: RabbitMQSettings, name: str, clock: Clock) -> None:
        self.settings: Final = settings
        self._name: Final = name
        self._clock: Final = clock
        self._patience: Final = seconds(settings.timeout)
        self._known: Final[set[str]] = set()
        """Delay queues that are there, unless somebody has deleted them."""
        self._lock: Final = threading.Lock()
        self._line: _Line | None = None
        self._closed = False

    def publish(self, messages: Sequence[Outgoing]) -> Operation[None]:
        """Store all of these; a PublishError says what is known of those that were not confirmed."""
        batch = Batch(messages, self._patience)
        with self._lock:
            if self._closed:
                batch.fail(PublishError("nothing was sent: the producer is closed", sent=False))
                return batch
            line = self._line
            if line is None or line.death is not None:
                line = self._line = _Line(self.settings, self._name)
                line.link.open()
        if messages:
            line.submit(batch)
        else:
            batch.succeed(None)
        return batch

    def due(self, delay: float) -> float:
        """What a message has to say of when it is due, in seconds since the epoch: 0 if one queue is enough."""
        return self._clock.wall() + delay if delay > RUNGS[-1] else 0.0

    def send(self, ladder: Ladder, copies: Sequence[Copy], delay: float) -> Steps[None]:
        """Store messages that reach the ladder's end after the delay, or at once if there is none."""
        if delay <= 0:
            yield from self._send(ladder.exchange, ladder.routing_key, copies)
            return
        rung = rung_for(delay)
        queue = ladder.queue(rung)
        yield from self._know(ladder, rung)
        try:
            yield from self._send("", queue, copies)
        except PublishError as error:
            if error.retriable or error.sent is not False:
                raise
            self._known.discard(queue)  # somebody deleted it
            yield from self._know(ladder, rung)
            yield from self._send("", queue, copies)

    def _send(self, exchange: str, routing_key: str, copies: Sequence[Copy]) -> Steps[None]:
        place = f"the topic {exchange!r}" if exchange else f"the queue {routing_key!r}"
        yield from outcome(self.publish([Outgoing(exchange, routing_key, *copy, place) for copy in copies]))

    def _know(self, ladder: Ladder, rung: int) -> Steps[None]:
        queue = ladder.queue(rung)
        if queue not in self._known:
            arguments = ladder.arguments(rung, self.settings.queue_type)
            yield from in_session(self.settings, lambda topology: topology.make_queue(queue, arguments))
            self._known.add(queue)

    def close(self) -> Steps[None]:
        """Send nothing more, and disconnect."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
        if line is not None:
            yield from outcome(line.link.close())


class _Line:
    """One life of the connection, which it serves in that connection's thread."""

    def __init__(self, settings: RabbitMQSettings, name: str) -> None:
        self.death: PumpError | None = None
        self.blocked = False
        self._lock: Final = threading.Lock()
        self._channel: Channel | None = None
        self._queue: Final[deque[Batch]] = deque()
        self._unconfirmed: Final[OrderedDict[int, tuple[Batch, Outgoing]]] = OrderedDict()
        self._returned: Final[set[int]] = set()
        self._tag = 0
        self.link: Final = Link(settings, name, self)

    def submit(self, batch: Batch) -> None:
        """Publish a batch, after those before it. From any thread."""
        batch.line = self
        with self._lock:
            death = self.death
            if death is None:
                self._queue.append(batch)
        if death is not None:
            batch.lost(death)
        else:
            self.link.call(self._send)

    def give_up(self, batch: Batch, error: PumpError) -> None:
        """Nobody waits for a batch any more. If some of it is under way, only a new connection is a clean slate."""
        if batch.sent:
            self.link.drop(error)
        elif batch in self._queue:
            self._queue.remove(batch)

    def opened(self) -> None:
        """The connection is open."""
        self.link.open_channel(self._channel_opened, self._channel_closed)
        self.link.connection.add_on_connection_blocked_callback(lambda *_: self._block(blocked=True))
        self.link.connection.add_on_connection_unblocked_callback(lambda *_: self._block(blocked=False))

    def lost(self, error: PumpError) -> None:
        """The connection is gone: every batch ends with what is known of it."""
        with self._lock:
            self.death = error
            batches = {*self._queue, *(batch for batch, _ in self._unconfirmed.values())}
            self._queue.clear()
            self._unconfirmed.clear()
        for batch in batches:
            batch.lost(error)

    def _channel_opened(self, channel: Channel) -> None:
        reader = ContentReader(self.link.connection, {RETURN: self._on_return})
        if reader.install():
            reader.channel = channel.channel_number
        else:
            channel.add_on_return_callback(
                lambda _, method, properties, body: self._on_return(
                    Content(0, method.exchange, method.routing_key, b"".join(properties.encode()), body)
                )
            )

        def ready(_: object) -> None:
            self._channel = channel
            self._send()

        channel.confirm_delivery(self.link.guarded(self._on_confirm), self.link.guarded(ready))

    def _channel_closed(self, reason: Exception) -> None:
        """The broker closes it over a message that it cannot take: nothing is known then of the others under way."""
        refused = refusal(reason)
        if isinstance(refused, Refused):
            permanent = refused.code in {NOT_FOUND, PRECONDITION_FAILED}
            self.link.drop(PublishError(f"RabbitMQ: {refused}", sent=None, retriable=not permanent))
        else:
            self.link.drop(self.link.explained(reason))

    def _block(self, *, blocked: bool) -> None:
        self.blocked = blocked
        if not blocked:
            self.link.guard(self._send)

    def _send(self) -> None:
        """Write as many as may be under way."""
        channel = self._channel
        if channel is None:
            return
        while self._queue and not self.blocked and len(self._unconfirmed) < WINDOW:
            batch = self._queue[0]
            if batch.sent == len(batch.messages):
                self._queue.popleft()
            else:
                self._write(channel, batch, batch.messages[batch.sent])

    def _write(self, channel: Channel, batch: Batch, message: Outgoing) -> None:
        batch.sent += 1
        largest = self.link.connection.params.frame_max
        if len(message.properties) + HEADER_OVERHEAD > largest:
            batch.answer(
                f"the headers of a message to {message.place} are too large: {len(message.properties)} bytes "
                f"of {largest}",
                retriable=False,
            )
            return
        self._tag += 1
        self._unconfirmed[self._tag] = batch, message
        properties: Any = _Encoded(message.properties)
        channel.basic_publish(message.exchange, message.routing_key, message.body, properties, mandatory=True)

    def _on_return(self, content: Content) -> None:
        """The broker says so before it confirms, and does not say which one: it is known by its way and its id."""
        said = split(content.properties)[MESSAGE_ID] or b""
        way = content.exchange, content.routing_key
        for tag, (_batch, message) in self._unconfirmed.items():
            if (message.exchange, message.routing_key) == way and (not said or message.id.encode() == said):
                self._returned.add(tag)

    def _on_confirm(self, confirmed: Any) -> None:  # noqa: ANN401 - a frame of pika's
        method: Basic.Ack | Basic.Nack = confirmed.method
        refused = "" if isinstance(method, Basic.Ack) else "the broker refused it"
        for tag in self._confirmed(method.delivery_tag, multiple=bool(method.multiple)):
            batch, message = self._unconfirmed.pop(tag)
            if tag in self._returned:
                self._returned.discard(tag)
                batch.answer(f"nothing takes what is sent to {message.place}", retriable=False)
            else:
                batch.answer(refused and f"{refused}: {message.place}")
        self._send()

    def _confirmed(self, tag: int, *, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if tag in self._unconfirmed else []
        tags = []
        for each in self._unconfirmed:
            if each > tag:
                break
            tags.append(each)
        return tags


class _Encoded:
    """Encoded properties, as pika takes properties."""

    INDEX: Final = 0x003C

    def __init__(self, encoded: bytes) -> None:
        self._encoded: Final = encoded

    def encode(self) -> list[bytes]:
        return [self._encoded]
