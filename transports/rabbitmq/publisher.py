"""Publishes over a connection of its own. Many messages are under way at a time; the broker confirms each one.

Delayed messages go through delay queues, which are made when they are first needed.
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
from pump.transport_kit.sending import not_sent, together
from pump.transports.rabbitmq.connection import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpConnection,
    ChannelRefused,
    Operation,
    Steps,
    refusal,
)
from pump.transports.rabbitmq.pika_internals import (
    RETURN,
    Content,
    ContentReader,
    EncodedProperties,
    publish_frames,
    publish_method,
    write_frames,
)
from pump.transports.rabbitmq.properties import LONGEST_SHORT, MESSAGE_ID, split
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import DELAYS, DelayQueues, delay_queue_for, with_topology

MOST_UNCONFIRMED: Final = 1000
HEAVIEST: Final = 8 * 2**20
"""When this many bytes are under way, the next message waits for a confirmation."""
HEADER_OVERHEAD: Final = 20
"""The bytes in a frame of properties that are not properties."""


class EncodedMessage(NamedTuple):
    """A message to be sent."""

    id: str
    properties: bytes
    body: bytes


class Batch(Operation[None]):
    """Messages that are published together. It ends when each message is confirmed, or has failed."""

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
        self._unanswered: Final = set(range(len(messages)))
        self._failures: Final[dict[int, PublishError]] = {}

    @property
    def destination(self) -> str:
        """The batch's destination, for a text."""
        return f"the topic {self.exchange!r}" if self.exchange else f"the queue {self.routing_key!r}"

    def answer(self, place: int, failure: PublishError | None = None) -> None:
        """Note that the message in that place is stored, or has this failure."""
        if place in self._unanswered:
            self._unanswered.discard(place)
            if failure is not None:
                self._failures[place] = failure
            if not self._unanswered:
                self._finish()

    def refuse(self, place: int) -> None:
        """Note that the broker refused the message for one queue; another queue of the topic may have stored it."""
        sent = None if self.exchange else False
        self.answer(place, PublishError(f"the broker refused it: {self.destination}", sent=sent))

    def _finish(self) -> None:
        if self._failures:
            self.fail(together(self._failures, len(self.messages)))
        else:
            self.succeed(None)

    def _late_error(self) -> Exception:
        unanswered = tuple(self._unanswered)
        blocked = "blocks publishers, and " if self._publishing.blocked else ""
        number = f"{len(unanswered)} of {len(self.messages)} messages"
        text = f"RabbitMQ {blocked}did not confirm {number} within {self.timeout:g} s"
        error = self._unknown_are(unanswered, text, retriable=True)
        self._publishing.give_up(self, error)
        return error

    def lost(self, error: PumpError) -> None:
        """End the batch because the connection is lost."""
        retriable = error.retriable if isinstance(error, PublishError) else not isinstance(error, SetupError)
        is_about_this = not isinstance(error, PublishError) or repr(self.exchange) in str(error)
        what = "it is not known whether all was stored" if self.written else "nothing was sent"
        unanswered = tuple(self._unanswered)
        self.fail(self._unknown_are(unanswered, f"{what}: {error}", retriable=retriable or not is_about_this))

    def _unknown_are(self, places: Sequence[int], text: str, *, retriable: bool) -> PublishError:
        """The error if those places got no answer. Messages that were not written are known not to be stored."""
        failures = dict(self._failures)
        for place in places:
            failures[place] = PublishError(text, sent=None if place < self.written else False, retriable=retriable)
        known = all(each.sent is False for each in failures.values()) and len(failures) == len(self.messages)
        return PublishError(text, sent=False if known else None, retriable=retriable, failures=failures)


class Publisher:
    """Publishes for its users, over a connection that is opened when needed and closed when the last user leaves."""

    def __init__(self, settings: RabbitMQSettings, name: str, clock: Clock) -> None:
        self.settings: Final = settings
        self._name: Final = name
        self._clock: Final = clock
        self._known: Final[set[str]] = set()
        """Delay queues that were made and exist, unless somebody has deleted them."""
        self._lock: Final = threading.Lock()
        self._publishing: _Publishing | None = None
        self._users = 0

    def enter(self) -> None:
        """Add a user."""
        with self._lock:
            self._users += 1

    def leave(self) -> Steps[None]:
        """Remove a user; the last one closes the connection."""
        with self._lock:
            self._users -= 1
            publishing = None
            if not self._users:
                publishing, self._publishing = self._publishing, None
        if publishing is not None:
            yield from publishing.connection.close()

    def due(self, delay: float) -> float:
        """When a delayed message is due, in seconds since the epoch; 0 if one delay queue is enough."""
        return self._clock.wall() + delay if delay > DELAYS[-1] else 0.0

    def send(self, to: DelayQueues, messages: Sequence[EncodedMessage], delay: float = 0.0) -> Steps[None]:
        """Store messages in the destination of `to`, at once, or after the delay by one of its delay queues.

        A PublishError says what is known of the messages that were not confirmed.
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
                self._known.discard(queue)  # somebody has deleted the queue
            else:
                return

    def start(self, to: DelayQueues, messages: Sequence[EncodedMessage], delay: float) -> Steps[None]:
        """As `send`, but messages without a delay are on their way before the returned steps begin."""
        if delay > 0:
            return self.send(to, messages, delay)
        return iter(self.begin(to.exchange, to.routing_key, messages))

    def _publish(self, exchange: str, routing_key: str, messages: Sequence[EncodedMessage]) -> Steps[None]:
        yield from self.begin(exchange, routing_key, messages)

    def begin(self, exchange: str, routing_key: str, messages: Sequence[EncodedMessage]) -> Batch:
        """Publish messages after those that were given before; the caller waits for the batch."""
        if max(len(exchange.encode()), len(routing_key.encode())) > LONGEST_SHORT:
            raise not_sent(
                f"the name of a topic may have at most {LONGEST_SHORT} bytes: {exchange[:40] or routing_key[:40]}…"
            )
        with self._lock:
            if not self._users:
                raise not_sent("the producer is closed", retriable=True)
            publishing = self._publishing
            if publishing is None or publishing.error is not None:
                publishing = self._publishing = _Publishing(self.settings, self._name)
                publishing.connection.open()
        return publishing.submit(exchange, routing_key, messages)


class _Publishing:
    """One connection that publishes, and the messages under way on it. Methods run in its thread unless they say so.

    Other threads share `_queue`, `error` and what is written with it, under `_lock`, and read the flag `blocked`.
    """

    def __init__(self, settings: RabbitMQSettings, name: str) -> None:
        self.error: PumpError | None = None
        """Why the connection takes no more messages."""
        self.blocked = False
        """Whether the broker takes no messages now."""
        self._lock: Final = threading.Lock()
        self._channel: Channel | None = None
        self._queue: Final[deque[Batch]] = deque()
        self._unconfirmed: Final[OrderedDict[int, tuple[Batch, int]]] = OrderedDict()
        """The batch of each unconfirmed message and its place there, by the message's tag."""
        self._heavy = 0
        """The bytes of the bodies of all unconfirmed messages."""
        self._returned: Final[set[int]] = set()
        self._tag = 0
        self._reads_confirms = False
        """Whether frames are written, and confirmations read, without pika, which takes long for each."""
        self.timeout: Final = seconds(settings.timeout)
        self.connection: Final = AmqpConnection(settings, name, self._on_open, self._on_lost)

    def submit(self, exchange: str, routing_key: str, messages: Sequence[EncodedMessage]) -> Batch:
        """Publish messages after those that were given before. Called from any thread."""
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
        """Forget a batch that nobody waits for any more. If a part of it was written, drop the connection.

        Called from any thread. The next message goes over another connection, although this one is not dropped yet.
        """
        with self._lock:
            written = batch.written > 0
            if written:
                self.error = self.error or error
            elif batch in self._queue:
                self._queue.remove(batch)
        if written:
            self.connection.call(self.connection.drop, error)

    def _on_open(self) -> None:
        self.connection.open_channel(self._on_channel, self._on_channel_closed)
        self.connection.connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(blocked=True))
        self.connection.connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(blocked=False))

    def _on_lost(self, error: PumpError) -> None:
        """End every batch with what is known of its messages."""
        with self._lock:
            self.error = self.error or error
            batches = {*self._queue, *(batch for batch, _ in self._unconfirmed.values())}
            self._queue.clear()
            self._unconfirmed.clear()
        for batch in batches:
            batch.lost(error)

    def _on_channel(self, channel: Channel) -> None:
        reader = ContentReader(
            self.connection.connection, {RETURN: self._on_return}, self._write, confirm=self._on_confirm
        )
        if reader.install():
            reader.channel = channel.channel_number
            self._reads_confirms = True
        else:
            channel.add_on_return_callback(
                lambda _, method, properties, body: self._on_return(
                    Content(0, method.exchange, method.routing_key, b"".join(properties.encode()), body)
                )
            )

        def ready(_: object) -> None:
            self._channel = channel
            self._write()

        channel.confirm_delivery(self.connection.guarded(self._on_confirm_frame), self.connection.guarded(ready))

    def _on_channel_closed(self, reason: Exception) -> None:
        """The broker closes the channel for a message that it cannot take. What became of the others is unknown."""
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
        """Write as many messages as may be under way, in one piece."""
        channel = self._channel
        if channel is None or not self._queue:
            return
        with self._lock:
            frames = self._frames_of_next(channel)
        if frames:
            write_frames(self.connection.connection, frames)

    def _frames_of_next(self, channel: Channel) -> list[bytes]:
        frames = list[bytes]()
        while self._queue and not self.blocked and len(self._unconfirmed) < MOST_UNCONFIRMED and self._heavy < HEAVIEST:
            batch = self._queue[0]
            if batch.written == len(batch.messages):
                self._queue.popleft()
            else:
                self._write_message(channel, batch, frames)
        return frames

    def _write_message(self, channel: Channel, batch: Batch, frames: list[bytes]) -> None:
        place = batch.written
        message = batch.messages[place]
        batch.written += 1
        largest = self.connection.connection.params.frame_max
        if len(message.properties) + HEADER_OVERHEAD > largest:
            text = f"the headers of a message to {batch.destination} are too large: {len(message.properties)} bytes"
            batch.answer(place, PublishError(f"{text} of {largest}", sent=False, retriable=False))
            return
        self._tag += 1
        self._unconfirmed[self._tag] = batch, place
        self._heavy += len(message.body)
        if self._reads_confirms:
            number, method = channel.channel_number, publish_method(batch.exchange, batch.routing_key)
            frames += publish_frames(number, method, message.properties, message.body, largest)
        else:
            properties: Any = EncodedProperties(message.properties)
            channel.basic_publish(batch.exchange, batch.routing_key, message.body, properties, mandatory=True)

    def _on_return(self, content: Content) -> None:
        """Note that a message was not routed. The broker does not say which one: find it by its destination and its id.

        Its confirmation comes afterwards.
        """
        message_id = split(content.properties)[MESSAGE_ID] or b""
        for tag, (batch, place) in self._unconfirmed.items():
            is_there = (batch.exchange, batch.routing_key) == (content.exchange, content.routing_key)
            if is_there and message_id in {b"", batch.messages[place].id.encode()}:
                self._returned.add(tag)

    def _on_confirm_frame(self, frame: Any) -> None:  # noqa: ANN401 - pika's
        method: Basic.Ack | Basic.Nack = frame.method
        self._on_confirm(method.delivery_tag, multiple=bool(method.multiple), stored=isinstance(method, Basic.Ack))
        self._write()

    def _on_confirm(self, tag: int, *, multiple: bool, stored: bool) -> None:
        for each in self._confirmed(tag, multiple=multiple):
            batch, place = self._unconfirmed.pop(each)
            self._heavy -= len(batch.messages[place].body)
            if each in self._returned:
                self._returned.discard(each)
                nowhere = f"no queue takes messages that are sent to {batch.destination}"
                batch.answer(place, PublishError(nowhere, sent=False, retriable=False))
            elif stored:
                batch.answer(place)
            else:
                batch.refuse(place)

    def _confirmed(self, tag: int, *, multiple: bool) -> list[int]:
        if multiple:
            return list(takewhile(lambda each: each <= tag, self._unconfirmed))
        return [tag] if tag in self._unconfirmed else []
