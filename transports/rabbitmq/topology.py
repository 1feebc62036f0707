"""The set-up of a subscription on the broker: its queue, its topic's exchange, its dead letters and delay queues."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from pika import exceptions
from pika.channel import Channel

from pump.errors import PumpError, SetupError, TransportError
from pump.subscription import Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.preparation import in_turn
from pump.transports.rabbitmq.connection import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpConnection,
    ChannelRefused,
    Operation,
    Steps,
    refusal,
)
from pump.transports.rabbitmq.settings import QueueType, RabbitMQSettings

log: Final = logging.getLogger("pump.transports.rabbitmq")

NO_LIMIT: Final = 1_000_000_000
"""The delivery limit of our quorum queues. Without one, a nacked message goes to the back, or RabbitMQ 4 sets 20."""
ASSUMED_LIMIT: Final = 20
"""The delivery limit that is assumed for quorum queues that others made."""
DELAYS: Final = tuple(1 << power for power in range(13))
"""The delays that have a queue, in seconds. A message with a longer delay passes through several queues."""

Result = TypeVar("Result")
QueueArguments: TypeAlias = dict[str, Any]
Act: TypeAlias = Callable[[Channel, Callable[[Any], None]], object]
"""Makes a request on an AMQP channel; the second argument is called with the answer."""

_REFUSALS: Final = frozenset({ACCESS_REFUSED, RESOURCE_LOCKED, PRECONDITION_FAILED})
_STREAM: Final = "rabbit_stream_queue"
_CLASSIC: Final = "rabbit_classic_queue"
"""The broker's names for the types of queues, stream and classic, in its refusals."""
_NO_SUCH: Final = "NOT_FOUND - no "
"""How the refusal begins if there is no such queue. A queue whose node is down is NOT_FOUND too, but comes back."""


@dataclass(frozen=True)
class DelayQueues:
    """The delay queues that lead to one place: a queue, or the exchange of a topic."""

    prefix: str
    """The beginning of the names of the queues."""
    exchange: str
    routing_key: str

    @classmethod
    def to_queue(cls, queue: str) -> "DelayQueues":
        """The delay queues that lead to one queue only."""
        return cls(f"{queue}.delay", "", queue)

    @classmethod
    def to_topic(cls, topic: str) -> "DelayQueues":
        """The delay queues that lead to a topic, and so to its subscribers when the delay ends."""
        return cls(f"{topic}.later", topic, topic)

    def queue(self, delay: int) -> str:
        """The queue in which a message waits for this many seconds."""
        return f"{self.prefix}.{delay}s"

    def arguments(self, delay: int) -> QueueArguments:
        """How the queue is made. It never expires: an expiring queue drops the messages that it holds.

        It is always a quorum queue. A classic queue would drop a message that is due while the queue that it leads to
        is full or gone.
        """
        return {
            "x-queue-type": "quorum",
            "x-message-ttl": 1000 * delay,
            "x-dead-letter-exchange": self.exchange,
            "x-dead-letter-routing-key": self.routing_key,
            **_at_least_once("quorum"),
        }


def delay_queue_for(delay: float) -> int:
    """The shortest of DELAYS that is not shorter than this delay; the longest of them if there is none."""
    return next((each for each in DELAYS if each >= delay), DELAYS[-1])


def queue_arguments(queue_type: QueueType, dead_letter: str | None) -> QueueArguments:
    """How a queue for consumers is made."""
    arguments: QueueArguments = {"x-queue-type": queue_type}
    if queue_type == "quorum":
        arguments["x-delivery-limit"] = NO_LIMIT
    if dead_letter is not None:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letter}
        arguments |= _at_least_once(queue_type)
    return arguments


def _at_least_once(queue_type: QueueType) -> QueueArguments:
    if queue_type != "quorum":
        return {}
    return {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def with_topology(settings: RabbitMQSettings, work: "Callable[[Topology], Steps[Result]]") -> Steps[Result]:
    """Run `work` with a Topology, over a connection that is opened for it."""
    connection = AmqpConnection(settings, "pump topology")
    try:
        yield from connection.open()
        return (yield from work(Topology(connection, settings)))
    finally:
        yield from connection.close()


class Topology:
    """Finds, makes and purges queues and exchanges, over a connection that has no consumer yet.

    Its requests go one after another on an AMQP channel, which is opened again after the broker refused a request. No
    other channel could be opened after a channel with a consumer was closed.
    """

    def __init__(self, connection: AmqpConnection, settings: RabbitMQSettings) -> None:
        self._connection: Final = connection
        self._queue_type: Final = settings.queue_type
        self._channel: Channel | None = None
        self._operation: Operation[Any] | None = None
        self.counts = True
        """Whether the subscribed queue may count deliveries."""

    def close(self) -> Steps[None]:
        """Close the AMQP channel, if one is open."""
        if self._channel is not None:
            yield from self._request(lambda channel, _: channel.close())

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Steps[None]:
        """Create what may be created, and validate the rest; SetupError names what is missing."""
        for each in in_turn(subscriptions, publications):
            if isinstance(each, Subscription):
                yield from self.subscribe(each)
            elif each.missing == "create":
                yield from self._make_exchange(each.destination)
            else:
                yield from self._must_exist("exchange", each.destination)

    def subscribe(self, subscription: Subscription) -> Steps[bool]:
        """Create or validate what a subscription needs; returns whether its queue is known to be like ours."""
        names = Destinations.of(subscription)
        if subscription.missing == "create":
            is_ours = yield from self._create(names)
        else:
            is_ours = False
            if subscription.missing == "validate":
                for queue in (names.channel, *names.dead_letters):
                    yield from self._must_exist("queue", queue)
                yield from self._must_exist("exchange", names.topic)
        if is_ours:
            self.counts = self._queue_type == "quorum"
        else:
            yield from self._must_be_no_stream(names.channel)
        return is_ours

    def _create(self, names: Destinations) -> Steps[bool]:
        """Create what is missing; returns whether the channel's queue is like ours."""
        kept = queue_arguments(self._queue_type, None)
        for queue in names.dead_letters:  # it may be a channel too, which has dead letters of its own
            yield from self.make_queue(queue, kept, queue_arguments(self._queue_type, f"{queue}.dead"))
        arguments = queue_arguments(self._queue_type, names.dead_letter)
        is_ours = yield from self.make_queue(names.channel, arguments, kept)
        yield from self._make_exchange(names.topic)
        refused = yield from self._refusal(
            lambda channel, done: channel.queue_bind(names.channel, names.topic, names.topic, callback=done)
        )
        if refused is not None:
            raise _error(f"bind the queue {names.channel!r} to the exchange {names.topic!r}", refused) from refused
        return is_ours

    def _must_be_no_stream(self, queue: str) -> Steps[None]:
        """SetupError if the queue is a stream.

        AMQP tells a queue's type only in the refusal of a consumer: of these two arguments each type of queue refuses
        one, and the refusal names the type.
        """
        refused = yield from self._refusal(partial(_consume_nothing, queue))
        if refused is None:  # an old broker ignores arguments that it does not know
            yield from self.close()
        elif _CLASSIC in refused.text:
            self.counts = False
        elif _STREAM in refused.text:
            raise SetupError(
                f"RabbitMQ: the queue {queue!r} is a stream, which a pump does not consume: it would have to remember "
                "by itself what it has handled. Bind a quorum or a classic queue to the same exchange instead"
            )

    def make_queue(self, name: str, arguments: QueueArguments, other: QueueArguments | None = None) -> Steps[bool]:
        """Make a queue. False if it exists with arguments that are neither these nor `other`: it is used as it is."""
        refused = yield from self._declare(name, arguments)
        if refused is None:
            return True
        if refused.code not in _REFUSALS or not (yield from self._exists("queue", name)):
            raise _error(f"create the queue {name!r}", refused) from refused
        if other is not None and (yield from self._declare(name, other)) is None:
            return True
        log.warning("the queue %s exists with other settings, and is used as it is: %s", name, refused.text)
        return False

    def _declare(self, name: str, arguments: QueueArguments) -> Steps[ChannelRefused | None]:
        return (
            yield from self._refusal(
                lambda channel, done: channel.queue_declare(name, durable=True, arguments=arguments, callback=done)
            )
        )

    def _make_exchange(self, name: str) -> Steps[None]:
        """Make an exchange, unless there is one with that name, of any type."""
        refused = yield from self._refusal(
            lambda channel, done: channel.exchange_declare(name, "fanout", durable=True, callback=done)
        )
        if refused is not None and (refused.code not in _REFUSALS or not (yield from self._exists("exchange", name))):
            raise _error(f"create the exchange {name!r}", refused) from refused

    def purge(self, queue: str) -> Steps[int]:
        """Empty the queue and the delay queues that lead back to it; returns how many messages were removed."""
        number, delays = 0, DelayQueues.to_queue(queue)
        for name in (queue, *map(delays.queue, DELAYS)):
            if (yield from self._exists("queue", name)):
                number += yield from self._purge(name)
        return number

    def _purge(self, queue: str) -> Steps[int]:
        try:
            done = yield from self._request(lambda channel, done: channel.queue_purge(queue, callback=done))
        except ChannelRefused as refused:
            raise _error(f"purge the queue {queue!r}", refused) from refused
        return int(done.method.message_count)

    def waiting(self, queue: str) -> Steps[int]:
        """How many messages of the queue no consumer has."""
        try:
            done = yield from self._request(
                lambda channel, done: channel.queue_declare(queue, passive=True, callback=done)
            )
        except ChannelRefused as refused:
            raise _error(f"count the messages of the queue {queue!r}", refused) from refused
        return int(done.method.message_count)

    def _must_exist(self, kind: str, name: str) -> Steps[None]:
        if not (yield from self._exists(kind, name)):
            raise SetupError(f"RabbitMQ has no {kind} {name!r}, and missing='validate' does not create it")

    def _exists(self, kind: str, name: str) -> Steps[bool]:
        def declare(channel: Channel, done: Callable[[Any], None]) -> None:
            passively = channel.queue_declare if kind == "queue" else channel.exchange_declare
            passively(name, passive=True, callback=done)

        refused = yield from self._refusal(declare)
        if refused is not None and not (refused.code == NOT_FOUND and refused.text.startswith(_NO_SUCH)):
            raise _error(f"look for the {kind} {name!r}", refused) from refused
        return refused is None

    def _request(self, act: Act) -> Steps[Any]:
        """The broker's answer; ChannelRefused if it closes the channel instead."""
        if self._channel is None:
            self._channel = yield from self._connection.ask(
                lambda opening: self._connection.open_channel(opening.succeed, self._on_closed)
            )
        return (yield from self._connection.ask(partial(self._act, act, self._channel)))

    def _refusal(self, act: Act) -> Steps[ChannelRefused | None]:
        """Why the broker refuses a request; None if it does not refuse it."""
        try:
            yield from self._request(act)
        except ChannelRefused as refused:
            return refused
        return None

    def _act(self, act: Act, channel: Channel, operation: Operation[Any]) -> None:
        self._operation = operation
        try:
            act(channel, operation.succeed)
        except exceptions.ChannelWrongStateError:
            operation.fail(TransportError("the broker closed an AMQP channel"))

    def _on_closed(self, reason: Exception) -> None:
        self._channel = None
        if self._operation is None:
            return
        if isinstance(reason, exceptions.ChannelClosedByClient):
            self._operation.succeed(None)
        else:
            self._operation.fail(refusal(reason))


def _consume_nothing(queue: str, channel: Channel, done: Callable[[Any], None]) -> None:
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *_: None, arguments={"x-priority": 0, "x-stream-offset": "next"}, callback=done)


def _error(what: str, refused: ChannelRefused) -> PumpError:
    """A SetupError if something must be corrected; a TransportError if it may pass, like a queue without a leader."""
    kind = SetupError if refused.code in _REFUSALS else TransportError
    return kind(f"RabbitMQ: cannot {what}: {refused.text}")
