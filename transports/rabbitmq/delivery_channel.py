"""The AMQP channel of a consumer's deliveries, and how many may be under way. It runs in its connection's thread.

The prefetch follows the limits of the receives. RabbitMQ cannot change it while a consumer is active: that consumer is
cancelled, and another begins. But if a delivery of a quorum queue meets a cancelled consumer, the queue counts it as
failed, and delivers it before older ones. So a consumer is cancelled only when no delivery can be on its way to it: if
its prefetch is used up, or if it has been quiet for as long as an answer takes. Until then no acknowledgement is sent
that would let more messages come.
"""

from functools import partial
from itertools import count
from typing import Any, Final

from pika import exceptions, spec
from pika.channel import Channel

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PumpError, TransportError
from pump.transport_kit.ack_batch import LONGEST_SECONDS
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.prefetch import Prefetch
from pump.transports.rabbitmq.connection import AmqpConnection, ChannelRefused, Operation, refusal
from pump.transports.rabbitmq.deliveries import AckFrames, Deliveries, receipt_of
from pump.transports.rabbitmq.headers import read_message
from pump.transports.rabbitmq.pika_internals import DELIVER, Content, ContentReader
from pump.transports.rabbitmq.settings import RabbitMQSettings

IDLE_SECONDS: Final = 0.2
"""A consumer that has nothing in hand, and no receive for this long, gives back the messages that it has prefetched."""
EARLY_SECONDS: Final = 0.5
"""A message that is due within this many seconds is treated as due."""


class DeliveryChannel:
    """The connection and the AMQP channel of one consumer. Other threads use it through `connection.call`."""

    def __init__(
        self,
        settings: RabbitMQSettings,
        names: Destinations,
        most: int,
        clock: Clock,
    ) -> None:
        self._prefetch: Final = Prefetch(most)
        self.deliveries: Final = Deliveries(names.channel, self._prefetch, clock.monotonic())
        self.connection: Final = AmqpConnection(settings, f"pump {names.channel}", self._on_open, self._on_lost)
        self._queue: Final = names.channel
        self._topic: Final = names.topic
        self._clock: Final = clock
        self._timeout: Final = seconds(settings.timeout)
        self._reader: ContentReader | None = None
        self._channel: Channel | None = None
        self._closing = False
        self._consumer = ""
        """The tag of the active consumer; "" if there is none."""
        self._consumers: Final = count(1)
        self._requests = 0
        self._answered = True
        """False while a request is under way that the next one must wait for."""
        self._idle_timed = False
        self._ack_frames = AckFrames()
        self._nacks: Final[list[int]] = []
        self._handing_back: Final[list[Operation[None]]] = []
        self._purging: Final[list[Operation[int]]] = []

    # -- what arrives

    def _on_open(self) -> None:
        reader = ContentReader(self.connection.connection, {DELIVER: self._deliver}, self._announce)
        if reader.install():
            self._reader = reader

    def _on_lost(self, error: PumpError) -> None:
        """End the generation: the broker delivers all messages that are here again, to any consumer."""
        self.deliveries.failure = error
        self.deliveries.end_generation()
        self.deliveries.arrived.set()

    def _deliver(self, content: Content) -> None:
        self._prefetch.last = content.tag
        deliveries = self.deliveries
        message = read_message(content, self._topic, deliveries.generation)
        if message.deliveries > 1 and not deliveries.may_count:
            message.deliveries, message.unexplained = 1, 0
        elif message.deliveries > 1:
            deliveries.counts = True
        due = receipt_of(message).due
        if self._closing:  # it goes back with the AMQP channel
            deliveries.on_uncounted(message)
        elif due and due > self._clock.wall() + EARLY_SECONDS:
            deliveries.early.append(message)
        else:
            deliveries.inbox.append(message)

    def _on_message(self, _: Channel, method: Any, properties: spec.BasicProperties, body: bytes) -> None:  # noqa: ANN401
        """Take a delivery that pika has read; only if the ContentReader could not be installed."""
        encoded = b"".join(properties.encode())
        tag, exchange, key, redelivered = method.delivery_tag, method.exchange, method.routing_key, method.redelivered
        self._deliver(Content(tag, exchange, key, encoded, body, redelivered))
        self._announce()

    def _announce(self) -> None:
        deliveries = self.deliveries
        if deliveries.waiting and (deliveries.inbox or deliveries.early):
            deliveries.waiting = False
            deliveries.arrived.set()

    # -- how much may arrive

    def refill(self) -> None:
        """Called when all messages that arrived are handed out, and more, or fewer at a time, are wanted."""
        self._advance()
        self.flush()

    def _advance(self) -> None:
        """Take the next step towards the wanted state of consuming, unless the last one is still under way."""
        if not self._answered or self._closing or self.deliveries.failure is not None:
            return
        channel, prefetch = self._channel, self._prefetch
        if channel is None:
            self._open_channel()
        elif not self._consumer:
            self._between_consumers(channel)
        elif self._must_cancel():
            if prefetch.may_end(self._clock.monotonic()):
                self._cancel(channel)
            else:
                self._clock.alarm(prefetch.quiet_seconds, partial(self.connection.call, self._advance))
        elif prefetch.is_used_up() and prefetch.should_grow(self.deliveries.unsettled(), len(self.deliveries.in_hand)):
            self._cancel(channel)

    def _open_channel(self) -> None:
        """Open an AMQP channel if messages are wanted. Without one there is nothing to hand back or to purge here."""
        for handed_back in self._handing_back:
            handed_back.succeed(None)
        for purged in self._purging:
            purged.succeed(0)
        self._handing_back.clear()
        self._purging.clear()
        if self._prefetch.wanted:
            self._expect_answer()
            self.connection.open_channel(self._on_channel, self._on_channel_closed)

    def _must_cancel(self) -> bool:
        is_too_large = self._prefetch.wanted < self._prefetch.size
        return is_too_large or bool(self._handing_back or self._purging or self._nacks)

    def _cancel(self, channel: Channel) -> None:
        """Cancel the active consumer, and only then send what is settled: this lets no more messages come."""
        self._expect_answer()
        consumer, self._consumer = self._consumer, ""
        self._prefetch.end()
        channel.basic_cancel(consumer, callback=self.connection.guarded(self._on_answer))
        self._send_settled(channel)

    def _expect_answer(self) -> None:
        """Note that a request is made. The broker may never answer: a quorum queue without a leader is silent."""
        self._answered = False
        self._requests += 1
        number = self._requests
        self._clock.alarm(self._timeout, partial(self.connection.call, self._check_answer, number))

    def _check_answer(self, number: int) -> None:
        if not self._answered and number == self._requests:
            self.connection.drop(
                TransportError(f"RabbitMQ did not answer about the queue {self._queue} within {self._timeout:g} s")
            )

    def _on_answer(self, _: object = None) -> None:
        self._answered = True
        self._advance()

    def _between_consumers(self, channel: Channel) -> None:
        """Purge, close or consume, which is possible only while no consumer is active."""
        deliveries, wanted = self.deliveries, self._prefetch.wanted
        self._send_settled(channel)
        if self._purging:
            self._purge(channel)
        is_idle = deliveries.inbox and not wanted and not deliveries.receiving and not deliveries.in_hand
        if self._handing_back or is_idle:
            self._close_channel(channel)
        elif wanted and not deliveries.inbox:
            self._consume(channel)

    def _consume(self, channel: Channel) -> None:
        size = self._prefetch.begin(len(self.deliveries.unsettled()))
        self._consumer = f"pump-{self.deliveries.generation}-{next(self._consumers)}"
        self._expect_answer()
        asked_at = self._clock.monotonic()

        def on_qos(_: object) -> None:
            self._prefetch.answered(self._clock.monotonic() - asked_at)

        def on_consume(_: object) -> None:
            self._prefetch.began(self._clock.monotonic())
            self._on_answer()

        channel.basic_qos(prefetch_count=size, global_qos=False, callback=self.connection.guarded(on_qos))
        channel.basic_consume(
            self._queue,
            self._on_message,
            consumer_tag=self._consumer,
            callback=self.connection.guarded(on_consume),
        )

    # -- settling

    def flush(self) -> None:
        """Send the pending acknowledgements; if the consumer must be cancelled, later, after it was cancelled."""
        self.deliveries.flush_requested = False
        channel = self._channel
        if channel is None:
            return
        if not (self._consumer and self._must_cancel()):
            self._send_settled(channel)
        elif self.deliveries.acks and not self.deliveries.flush_timed:
            self.flush_later()

    def flush_later(self) -> None:
        """Flush within 20 ms. From any thread."""
        self.deliveries.flush_timed = True
        self._clock.alarm(LONGEST_SECONDS, self._on_flush_time)

    def _on_flush_time(self) -> None:
        """Called in the clock's thread."""
        self.deliveries.flush_timed = False  # before acks is read, so that a later acknowledgement sets a new timer
        if self.deliveries.acks:
            self.connection.call(self.flush)

    def _send_settled(self, channel: Channel) -> None:
        acks, nacks, generation = self.deliveries.acks, self._nacks, self.deliveries.generation
        if not (acks or nacks) or not channel.is_open:
            return
        settled = [acks.popleft() for _ in range(len(acks))]
        # The tag of a message of an earlier AMQP channel would settle another delivery on this channel.
        tags = [receipt_of(message).tag for message in settled if message.generation == generation]
        self._prefetch.acknowledged([*tags, *nacks], self._clock.monotonic())
        for tag, multiple in self._ack_frames.frames(tags):
            channel.basic_ack(tag, multiple=multiple)
        for tag in nacks:
            channel.basic_nack(tag, multiple=False, requeue=True)
            self._ack_frames.settle(tag)
        nacks.clear()

    def nack(self, tag: int, generation: int) -> None:
        """Return a delivery. If no receive is under way, stop consuming first, so that other consumers get it."""
        channel = self._channel
        if channel is None or generation != self.deliveries.generation:
            return  # it went back when its AMQP channel was closed
        self._nacks.append(tag)
        if self.deliveries.receiving or not self._consumer:
            self._send_settled(channel)
        else:
            self._stop()

    # -- giving back

    def hand_back(self, operation: Operation[None]) -> None:
        """Return all messages, in their old order, by closing the AMQP channel. It is opened again when needed."""
        self._handing_back.append(operation)
        self._stop()

    def purge(self, operation: Operation[int]) -> None:
        """Stop consuming, and acknowledge the messages that were not handed out; the result is how many they were."""
        self._purging.append(operation)
        self._stop()

    def stop(self) -> None:
        """Let nothing more come, and send acknowledgements only when nothing can."""
        self._stop()

    def _stop(self) -> None:
        self._prefetch.wanted = 0
        self._advance()

    def _purge(self, channel: Channel) -> None:
        deliveries = self.deliveries
        number = len(deliveries.inbox)
        deliveries.acks.extend(deliveries.inbox)
        deliveries.inbox.clear()
        self._send_settled(channel)
        for operation in self._purging:
            operation.succeed(number)
            number = 0
        self._purging.clear()

    def _close_channel(self, channel: Channel) -> None:
        self._closing = True
        self._expect_answer()
        self.deliveries.end_generation()
        channel.close()

    def watch_idle(self) -> None:
        """Give back the prefetched messages when the consumer has become idle."""
        if not self._idle_timed:
            self._idle_timed = True
            self._clock.alarm(IDLE_SECONDS, partial(self.connection.call, self._check_idle))

    def _check_idle(self) -> None:
        self._idle_timed = False
        deliveries = self.deliveries
        if deliveries.receiving or deliveries.failure is not None:
            return
        if deliveries.in_hand or self._clock.monotonic() < deliveries.used_at + IDLE_SECONDS:
            self.watch_idle()
        else:
            self._stop()

    # -- the AMQP channel

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        self._prefetch.restart()
        self._ack_frames = AckFrames()
        self._nacks.clear()
        if self._reader is not None:
            self._reader.channel = channel.channel_number
        channel.add_on_cancel_callback(self.connection.guarded(self._on_cancelled))
        self._on_answer()

    def _on_channel_closed(self, reason: Exception) -> None:
        if not self._closing or not isinstance(reason, exceptions.ChannelClosedByClient):
            refused = refusal(reason)
            text = f"RabbitMQ closed the channel of {self._queue}: {refused}"
            is_refused = isinstance(refused, ChannelRefused)
            self.connection.drop(TransportError(text) if is_refused else self.connection.explained(reason))
            return
        self._channel, self._closing, self._answered, self._consumer = None, False, True, ""
        self._prefetch.end()
        self._advance()

    def _on_cancelled(self, _: object) -> None:
        channel = self._channel
        if channel is not None:
            self._send_settled(channel)
        self.connection.drop(TransportError(f"RabbitMQ cancelled the consumer of {self._queue}: was it deleted?"))
