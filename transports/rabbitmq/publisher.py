"""Publishes over a connection of its own, many messages under way at a time, each one confirmed by the broker.

Messages for later go through delay queues, which are made when they are first needed.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from pika.channel import Channel
from pika.spec import Basic

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PublishError, PumpError, SetupError
from pump.transport_kit.sending import not_sent
from pump.transports.rabbitmq.connection import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpConnection,
    ChannelRefused,
    Operation,
    Steps,
    refusal,
)
from pump.transports.rabbitmq.pika_internals import RETURN, Content, ContentReader, EncodedProperties
from pump.transports.rabbitmq.properties import MESSAGE_ID, split
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import DELAYS, DelayQueues, delay_queue_for, with_topology

MOST_UNCONFIRMED: Final = 1000
HEADER_OVERHEAD: Final = 20
"""The bytes of a frame of properties beside the properties."""


class EncodedMessage(NamedTuple):
    """A message to be sent."""

    id: str
    properties: bytes
    body: bytes


class Batch(Operation[None]):
    """Messages that are published together. It ends when each is confirmed, or known not to be stored."""

    def __init__(
        self, publishing: "_Publishing", exchange: str, routing_key: str, messages: Sequence[EncodedMessage]
    ) -> None:
        super().__init__(publishing.timeout, self._late_error)
        self._publishing: Final = publishing
        self.exchange: Final = exchange
        self.routing_key: Final = routing_key
        self.messages: Final = messages
        self.written = 0
        """How many of its messages are written."""
        self._unanswered = len(messages)
        self._refusals: list[str] = []
        self._retriable = True

    @property
    def destination(self) -> str:
        """Where it goes, for people."""
        return f"the topic {self.exchange!r}" if self.exchange else f"the queue {self.routing_key!r}"

    def answer(self, refused: str = "", *, retriable: bool = True) -> None:
        """One of its messages is stored, or was refused for a reason."""
        self._unanswered -= 1
        if refused:
            self._refusals.append(refused)
            self._retriable &= retriable
        if self._unanswered:
            return
        if not self._refusals:
            self.succeed(None)
            return
        reasons = "; ".join(dict.fromkeys(self._refusals))
        many = f"{len(self._refusals)} of {len(self.messages)} messages were" if len(self.messages) > 1 else "it was"
        self.fail(PublishError(f"{many} not stored: {reasons}", sent=False, retriable=self._retriable))

    def _late_error(self) -> Exception:
        blocked = "blocks publishers, and " if self._publishing.blocked else ""
        error = PublishError(
            f"RabbitMQ {blocked}did not confirm {self._unanswered} of {len(self.messages)} messages "
            f"within {self.timeout:g} s",
            sent=None if self.written else False,
        )
        self._publishing.connection.call(self._publishing.give_up, self, error)
        return error

    def lost(self, error: PumpError) -> None:
        """The connection is lost."""
        what = "it is not known whether all was stored" if self.written else "nothing was sent"
        retriable = error.retriable if isinstance(error, PublishError) else not isinstance(error, SetupError)
        self.fail(PublishError(f"{what}: {error}", sent=None if self.written else False, retriable=retriable))


class Publisher:
    """Publishes for its users, over a connection that is opened when it is needed and closed with the last user."""

    def __init__(self, settings: RabbitMQSettings, name: str, clock: Clock) -> None:
        self.settings: Final = settings
        self._name: Final = name
        self._clock: Final = clock
        self._known: Final[set[str]] = set()
        """Delay queues that exist, unless somebody has deleted them."""
        self._lock: Final = threading.Lock()
        self._publishing: _Publishing | None = None
        self._users = 0

    def enter(self) -> None:
        """One more uses it."""
        with self._lock:
            self._users += 1

    def leave(self) -> Steps[None]:
        """One user less; the last one closes the connection."""
        with self._lock:
            self._users -= 1
            publishing = None
            if not self._users:
                publishing, self._publishing = self._publishing, None
        if publishing is not None:
            yield from publishing.connection.close()

    def due(self, delay: float) -> float:
        """The time that a delayed message has to state, in seconds since the epoch: 0 if one queue is enough."""
        return self._clock.wall() + delay if delay > DELAYS[-1] else 0.0

    def send(self, to: DelayQueues, messages: Sequence[EncodedMessage], delay: float = 0.0) -> Steps[None]:
        """Store messages where delay queues lead to, at once or after the delay.

        A PublishError says what is known of those that were not confirmed.
        """
        if delay <= 0:
            yield from self._publish(to.exchange, to.routing_key, messages)
            return
        seconds_there = delay_queue_for(delay)
        queue, arguments = to.queue(seconds_there), to.arguments(seconds_there)
        for is_last_try in (False, True):
            if queue not in self._known:
                yield from with_topology(self.settings, lambda topology: topology.make_queue(queue, arguments))
                self._known.add(queue)
            try:
                yield from self._publish("", queue, messages)
            except PublishError as error:
                if is_last_try or error.retriable or error.sent is not False:
                    raise
                self._known.discard(queue)  # somebody deleted it
            else:
                return

    def _publish(self, exchange: str, routing_key: str, messages: Sequence[EncodedMessage]) -> Steps[None]:
        with self._lock:
            if not self._users:
                raise not_sent("the producer is closed", retriable=True)
            publishing = self._publishing
            if publishing is None or publishing.error is not None:
                publishing = self._publishing = _Publishing(self.settings, self._name)
                publishing.connection.open()
        yield from publishing.submit(exchange, routing_key, messages)


class _Publishing:
    """One connection that publishes, and all that is under way on it. What is not marked runs in its thread.

    Other threads share `_queue` with it, under `_lock` together with `error`; `blocked` is one flag that they read.
    """

    def __init__(self, settings: RabbitMQSettings, name: str) -> None:
        self.error: PumpError | None = None
        """Why the connection is lost."""
        self.blocked = False
        """Whether the broker takes no messages at present."""
        self._lock: Final = threading.Lock()
        self._channel: Channel | None = None
        self._queue: Final[deque[Batch]] = deque()
        self._unconfirmed: Final[OrderedDict[int, tuple[Batch, EncodedMessage]]] = OrderedDict()
        self._returned: Final[set[int]] = set()
        self._tag = 0
        self.timeout: Final = seconds(settings.timeout)
        self.connection: Final = AmqpConnection(settings, name, self._on_open, self._on_lost)

    def submit(self, exchange: str, routing_key: str, messages: Sequence[EncodedMessage]) -> Batch:
        """Publish messages, after those before them. From any thread."""
        batch = Batch(self, exchange, routing_key, messages)
        with self._lock:
            error = self.error
            if error is None:
                self._queue.append(batch)
        if error is not None:
            batch.lost(error)
        else:
            self.connection.call(self._write)
        return batch

    def give_up(self, batch: Batch, error: PumpError) -> None:
        """Nobody waits for a batch any more. If some of it is under way, only a new connection can start afresh."""
        if batch.written:
            self.connection.drop(error)
        elif batch in self._queue:
            self._queue.remove(batch)

    def _on_open(self) -> None:
        self.connection.open_channel(self._on_channel, self._on_channel_closed)
        self.connection.connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(blocked=True))
        self.connection.connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(blocked=False))

    def _on_lost(self, error: PumpError) -> None:
        """Every batch ends with what is known of it."""
        with self._lock:
            self.error = error
            batches = {*self._queue, *(batch for batch, _ in self._unconfirmed.values())}
            self._queue.clear()
            self._unconfirmed.clear()
        for batch in batches:
            batch.lost(error)

    def _on_channel(self, channel: Channel) -> None:
        reader = ContentReader(self.connection.connection, {RETURN: self._on_return})
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
            self._write()

        channel.confirm_delivery(self.connection.guarded(self._on_confirm), self.connection.guarded(ready))

    def _on_channel_closed(self, reason: Exception) -> None:
        """The broker closes it over a message that it cannot take: then nothing is known of the others under way."""
        refused = refusal(reason)
        if isinstance(refused, ChannelRefused):
            permanent = refused.code in {NOT_FOUND, PRECONDITION_FAILED}
            self.connection.drop(PublishError(f"RabbitMQ: {refused}", sent=None, retriable=not permanent))
        else:
            self.connection.drop(self.connection.explained(reason))

    def _set_blocked(self, *, blocked: bool) -> None:
        self.blocked = blocked
        if not blocked:
            self.connection.guard(self._write)

    def _write(self) -> None:
        channel = self._channel
        if channel is None:
            return
        while self._queue and not self.blocked and len(self._unconfirmed) < MOST_UNCONFIRMED:
            batch = self._queue[0]
            if batch.written == len(batch.messages):
                self._queue.popleft()
            else:
                self._write_message(channel, batch, batch.messages[batch.written])

    def _write_message(self, channel: Channel, batch: Batch, message: EncodedMessage) -> None:
        batch.written += 1
        largest = self.connection.connection.params.frame_max
        if len(message.properties) + HEADER_OVERHEAD > largest:
            batch.answer(
                f"the headers of a message to {batch.destination} are too large: {len(message.properties)} bytes "
                f"of {largest}",
                retriable=False,
            )
            return
        self._tag += 1
        self._unconfirmed[self._tag] = batch, message
        properties: Any = EncodedProperties(message.properties)
        channel.basic_publish(batch.exchange, batch.routing_key, message.body, properties, mandatory=True)

    def _on_return(self, content: Content) -> None:
        """A message was not routed. The broker does not say which one: it is known by its destination and its id.

        Its confirmation comes afterwards.
        """
        message_id = split(content.properties)[MESSAGE_ID] or b""
        for tag, (batch, message) in self._unconfirmed.items():
            is_there = (batch.exchange, batch.routing_key) == (content.exchange, content.routing_key)
            if is_there and message_id in {b"", message.id.encode()}:
                self._returned.add(tag)

    def _on_confirm(self, confirmed: Any) -> None:  # noqa: ANN401 - a frame of pika's
        method: Basic.Ack | Basic.Nack = confirmed.method
        refused = "" if isinstance(method, Basic.Ack) else "the broker refused it"
        for tag in self._confirmed(method.delivery_tag, multiple=bool(method.multiple)):
            batch, _ = self._unconfirmed.pop(tag)
            if tag in self._returned:
                self._returned.discard(tag)
                batch.answer(f"nothing takes what is sent to {batch.destination}", retriable=False)
            else:
                batch.answer(refused and f"{refused}: {batch.destination}")
        self._write()

    def _confirmed(self, tag: int, *, multiple: bool) -> list[int]:
        if multiple:
            return list(takewhile(lambda each: each <= tag, self._unconfirmed))
        return [tag] if tag in self._unconfirmed else []
