"""How one consumer's messages come: its AMQP channel, and how many may be under way. All of it in one thread.

The prefetch follows what is asked for, so that never are more deliveries unsettled than are held above and were asked
for. RabbitMQ cannot change it under a consumer: that one is cancelled, and a new one begins. But a quorum queue takes
a delivery that meets a cancelled consumer for a failed one, counts it, and shows it before those that are older. So a
consumer is only cancelled when nothing can be on its way to it: when its prefetch is used up, or when it has been
quiet for as long as an answer takes; until then no acknowledgement is written that would let more come.
"""

from itertools import count
from typing import Any, Final

from pika import exceptions, spec
from pika.channel import Channel

from pump.clock import Clock
from pump.duration import seconds
from pump.errors import PumpError, TransportError
from pump.transports.rabbitmq.connection import Link, Operation, Refused, refusal
from pump.transports.rabbitmq.deliveries import Acks, Spared, Stock, receipt_of
from pump.transports.rabbitmq.pika_internals import DELIVER, Content, ContentReader
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import Names
from pump.transports.rabbitmq.wire import read_message

MOST_UNFLUSHED: Final = 64
FLUSH_SECONDS: Final = 0.02
QUIET_SECONDS: Final = 0.02
IDLE_SECONDS: Final = 0.2
"""A consumer that has nothing in hand, and is not asked for so long, gives back what it has fetched ahead."""
EARLY_SECONDS: Final = 0.5
"""A message that is due so soon is due."""


class Flow:
    """The connection of one consumer, and what comes and goes by it. Ask anything of it by `link.call`."""

    def __init__(self, settings: RabbitMQSettings, names: Names, stock: Stock, clock: Clock, spared: Spared) -> None:
        self.link: Final = Link(settings, f"pump {names.channel}", self)
        self.failure: PumpError | None = None
        """Why nothing comes any more."""
        self.counts = False
        """Whether the broker was seen to count deliveries."""
        self.window = 0
        """The prefetch of the present consumer; 0 if there is none."""
        self.threshold = 1
        """After so many settled messages the broker is told."""
        self.flush_due = False
        """A flush was asked for, and has not happened yet."""
        self.watched = False
        """Somebody will look after what is settled, within 20 ms."""
        self.waiting = False
        """Somebody waits to be told when something has come."""
        self._guarded = False
        self._names: Final = names
        self._stock: Final = stock
        self._clock: Final = clock
        self._spared: Final = spared
        self._reader: ContentReader | None = None
        self._channel: Channel | None = None
        self._busy = False
        """A request is under way that the next one has to wait for."""
        self._requests = 0
        self._timeout: Final = seconds(settings.timeout)
        self._closing = False
        self._tracker = Acks()
        self._tags: Final = count(1)
        self._consumer = ""
        self._began_after = 0
        """The delivery after which the present consumer began."""
        self._delivered = 0
        self._acknowledged = 0
        """Of the present consumer's deliveries, as far as the broker was told."""
        self._moved = 0.0
        """When the broker was last told something that makes it send more; on the monotonic clock."""
        self._quiet = QUIET_SECONDS
        self._asked = 0.0
        self._nacks: Final[list[int]] = []
        self._handing_back: Final[list[Operation[None]]] = []
        self._emptying: Final[list[Operation[int]]] = []

    # -- what comes

    def opened(self) -> None:
        """The connection is open."""
        reader = ContentReader(self.link.connection, {DELIVER: self._deliver}, self._tell)
        if reader.install():
            self._reader = reader

    def lost(self, error: PumpError) -> None:
        """The connection is gone: what is here comes again, to whomever."""
        self.failure = error
        self._spared.note(self._stock.new_life())
        self._stock.arrived.set()

    def _deliver(self, content: Content) -> None:
        self._delivered = content.tag
        if self._closing:
            return  # it goes back with the AMQP channel
        stock = self._stock
        message = read_message(content, self._names.topic, stock.generation)
        if message.deliveries > 1:
            self.counts = True
            self._spared.explain(message)
        due = receipt_of(message).due
        if due and due > self._clock.wall() + EARLY_SECONDS:
            stock.postponed.append(message)
        else:
            stock.inbox.append(message)

    def _on_message(self, _: Channel, method: Any, properties: spec.BasicProperties, body: bytes) -> None:  # noqa: ANN401
        """A delivery as pika reads it, where this pika cannot be read past."""
        encoded = b"".join(properties.encode())
        self._deliver(Content(method.delivery_tag, method.exchange, method.routing_key, encoded, body))
        self._tell()

    def _tell(self) -> None:
        stock = self._stock
        if stock.inbox or stock.postponed:
            if not self.watched:
                self.watch()
            if self.waiting:
                self.waiting = False
                stock.arrived.set()

    # -- how much may come

    def serve(self) -> None:
        """Everything that came was handed out, and more is wanted."""
        self._adapt()
        self.flush()

    def _adapt(self) -> None:
        """Take the next step towards consuming as is wanted, if none is under way."""
        if self._busy or self._closing or self.failure is not None:
            return
        channel = self._channel
        if channel is None:
            self._begin()
        elif not self._consumer:
            self._rest(channel)
        elif self._must_leave():
            self._leave(channel)
        elif self._must_grow():
            self._cancel(channel)

    def _begin(self) -> None:
        """There is no AMQP channel, and so nothing to hand back."""
        self._end_operations()
        if self._stock.wanted:
            self._request()
            self.link.open_channel(self._channel_opened, self._channel_closed)

    def _must_leave(self) -> bool:
        return self._stock.wanted < self.window or bool(self._handing_back or self._emptying or self._nacks)

    def _must_grow(self) -> bool:
        """Whether a larger prefetch is worth a new consumer. Where the present one is not used up, it is not."""
        wanted = self._stock.wanted
        if wanted <= self.window or self._credit() > 0:
            return False
        earlier = sum(tag <= self._began_after for tag in self._stock.unsettled())
        allowed = earlier + self.window
        everything = wanted >= self._stock.most
        nothing_comes = len(self._stock.handed) - earlier >= self.window
        return allowed < wanted and (2 * allowed <= wanted or everything or nothing_comes)

    def _credit(self) -> int:
        """How many more messages the broker may send to the present consumer."""
        return self.window - (self._delivered - self._began_after - self._acknowledged)

    def _is_quiet(self) -> bool:
        """Whether nothing can be on its way to the present consumer."""
        return self._credit() <= 0 or self._clock.monotonic() >= self._moved + self._quiet

    def _leave(self, channel: Channel) -> None:
        if self._is_quiet():
            self._cancel(channel)
        else:
            self._clock.alarm(self._quiet, lambda: self.link.call(self._adapt))

    def _cancel(self, channel: Channel) -> None:
        """End the present consumer, and then say what is settled: nothing more comes for it."""
        self._request()
        consumer, self._consumer, self.window, self.threshold = self._consumer, "", 0, 1
        channel.basic_cancel(consumer, callback=self.link.guarded(self._go_on))
        self._write_acks(channel)
        self._write_nacks(channel)

    def _request(self) -> None:
        """Something is asked of the broker, which may fail to answer: a quorum queue without a leader is silent."""
        self._busy = True
        self._requests += 1
        number = self._requests
        self._clock.alarm(self._timeout, lambda: self.link.call(self._check_answer, number))

    def _check_answer(self, number: int) -> None:
        if self._busy and number == self._requests:
            self.link.drop(TransportError(f"RabbitMQ says nothing of {self._names.channel} for {self._timeout:g} s"))

    def _go_on(self, _: object) -> None:
        self._busy = False
        self._adapt()

    def _rest(self, channel: Channel) -> None:
        """There is no consumer: the moment for all that wants one to be away."""
        stock = self._stock
        self._write_acks(channel)
        self._write_nacks(channel)
        if self._emptying:
            self._empty(channel)
        forgotten = stock.inbox and not stock.wanted and not stock.asking and not stock.handed
        if self._handing_back or forgotten:
            self._close_channel(channel)
        elif stock.wanted and not stock.inbox:
            self._consume(channel)

    def _consume(self, channel: Channel) -> None:
        stock = self._stock
        room = stock.wanted - len(stock.unsettled())
        self.window = room if 2 * room >= stock.wanted else stock.wanted
        self.threshold = max(1, min(MOST_UNFLUSHED, self.window // 2 if self.window >= stock.most else self.window))
        self._began_after, self._acknowledged = self._delivered, 0
        self._consumer = f"pump-{stock.generation}-{next(self._tags)}"
        self._request()
        self._asked = self._clock.monotonic()
        channel.basic_qos(prefetch_count=self.window, global_qos=False, callback=self.link.guarded(self._time))
        channel.basic_consume(
            self._names.channel,
            self._on_message,
            consumer_tag=self._consumer,
            callback=self.link.guarded(self._consuming),
        )

    def _time(self, _: object) -> None:
        """How long the broker takes to answer is how long to wait until it is quiet."""
        self._quiet = max(QUIET_SECONDS, 2 * (self._clock.monotonic() - self._asked))

    def _consuming(self, _: object) -> None:
        self._moved = self._clock.monotonic()
        self._go_on(None)

    # -- what is told the broker

    def flush(self) -> None:
        """Acknowledge all that is settled, unless the consumer is about to go: then that comes first."""
        self.flush_due = False
        channel = self._channel
        if channel is not None and not (self._consumer and self._must_leave()):
            self._write_acks(channel)

    def _write_acks(self, channel: Channel) -> None:
        acks, generation = self._stock.acks, self._stock.generation
        if not acks or not channel.is_open:
            return
        done = [acks.popleft() for _ in range(len(acks))]
        # One that was settled in the moment when its AMQP channel was closed would hit another delivery here.
        tags = [receipt_of(message).tag for message in done if message.generation == generation]
        self._moved = self._clock.monotonic()
        self._acknowledged += sum(tag > self._began_after for tag in tags)
        for tag, multiple in self._tracker.frames(tags):
            channel.basic_ack(tag, multiple=multiple)

    def _write_nacks(self, channel: Channel) -> None:
        for tag in self._nacks:
            channel.basic_nack(tag, multiple=False, requeue=True)
            self._acknowledged += tag > self._began_after
            self._tracker.settle(tag)
        self._nacks.clear()

    def nack(self, tag: int, generation: int) -> None:
        """Give one back. If nobody asks us now, others shall have it: we stop consuming before."""
        channel = self._channel
        if channel is None or generation != self._stock.generation:
            return  # it went back with its AMQP channel
        self._nacks.append(tag)
        if self._stock.asking or not self._consumer:
            self._write_acks(channel)
            self._write_nacks(channel)
        else:
            self._stock.wanted = 0
            self._adapt()

    def watch(self) -> None:
        """Look soon whether there is something settled that the broker was not told."""
        self.watched = True
        self._clock.alarm(FLUSH_SECONDS, lambda: self.link.call(self._look))

    def _look(self) -> None:
        """Flush what has waited long enough; look again for as long as there was something."""
        self.watched = False
        if self._stock.acks:
            self.flush()
            self.watch()

    # -- giving back

    def hand_back(self, operation: Operation[None]) -> None:
        """Give everything back, in its old order, by closing the AMQP channel; it is opened again when needed."""
        self._stock.wanted = 0
        self._handing_back.append(operation)
        self._adapt()

    def empty(self, operation: Operation[int]) -> None:
        """Stop consuming, and acknowledge what was not handed out."""
        self._stock.wanted = 0
        self._emptying.append(operation)
        self._adapt()

    def _empty(self, channel: Channel) -> None:
        stock = self._stock
        number = len(stock.inbox)
        stock.acks.extend(stock.inbox)
        stock.inbox.clear()
        self._write_acks(channel)
        self._emptying[0].succeed(number)
        for operation in self._emptying[1:]:
            operation.succeed(0)
        self._emptying.clear()

    def _close_channel(self, channel: Channel) -> None:
        self._closing = True
        self._request()
        self._spared.note(self._stock.new_life())
        channel.close()

    def _end_operations(self) -> None:
        for back in self._handing_back:
            back.succeed(None)
        for empty in self._emptying:
            empty.succeed(0)
        self._handing_back.clear()
        self._emptying.clear()

    def guard(self) -> None:
        """See to it that a consumer whom nobody asks gives back what it has fetched."""
        if not self._guarded:
            self._guarded = True
            self._clock.alarm(IDLE_SECONDS, lambda: self.link.call(self._check_idle))

    def _check_idle(self) -> None:
        self._guarded = False
        stock = self._stock
        if stock.asking or self.failure is not None:
            return
        if stock.handed or self._clock.monotonic() < stock.active + IDLE_SECONDS:
            self.guard()
            return
        stock.wanted = 0
        self._adapt()

    # -- the AMQP channel

    def _channel_opened(self, channel: Channel) -> None:
        self._channel = channel
        self._delivered = self._began_after = self._acknowledged = 0
        self._tracker = Acks()
        self._nacks.clear()
        if self._reader is not None:
            self._reader.channel = channel.channel_number
        channel.add_on_cancel_callback(self.link.guarded(self._cancelled_by_broker))
        self._go_on(None)

    def _channel_closed(self, reason: Exception) -> None:
        if not self._closing or not isinstance(reason, exceptions.ChannelClosedByClient):
            refused = refusal(reason)
            said = f"RabbitMQ closed the channel of {self._names.channel}: {refused}"
            self.link.drop(TransportError(said) if isinstance(refused, Refused) else self.link.explained(reason))
            return
        self._channel, self._closing, self._busy, self._consumer = None, False, False, ""
        self.window, self.threshold = 0, 1
        self._adapt()

    def _cancelled_by_broker(self, _: object) -> None:
        channel = self._channel
        if channel is not None:
            self._write_acks(channel)
        self.link.drop(TransportError(f"RabbitMQ cancelled the consumer of {self._names.channel}: was it deleted?"))
