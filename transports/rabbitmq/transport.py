"""The RabbitMQ transport and its producers. docs/rabbitmq.md describes the set-up on the broker, and why it is so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self, TypeVar

from pump.capabilities import Capabilities
from pump.errors import PublishError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.sending import check_sizes, failure_among, not_sent, together
from pump.transports.rabbitmq.connection import CLOCK, AmqpConnection, Steps, awaiting, blocking, run, run_async
from pump.transports.rabbitmq.consumer import AsyncRabbitMQConsumer, ConsumerBase, RabbitMQConsumer
from pump.transports.rabbitmq.delivery_channel import DeliveryChannel
from pump.transports.rabbitmq.headers import write_properties
from pump.transports.rabbitmq.policies import read_limit
from pump.transports.rabbitmq.publisher import EncodedMessage, Publisher
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, NO_LIMIT, DelayQueues, Topology, with_topology

LARGEST_BODY: Final = 16 * 1024 * 1024
"""The largest message that RabbitMQ 4 takes by default; earlier versions took more."""
LARGEST_HEADERS: Final = 100_000
"""All properties must fit into one frame of 128 KiB, together with a dead letter's provenance."""
LARGEST_PREFETCH: Final = 65_535

ConsumerT = TypeVar("ConsumerT", bound=ConsumerBase)


class RabbitMQTransport:
    """A RabbitMQ broker. Making a transport opens no connection.

    Each consumer and each producer has a connection of its own. The copies and dead letters of consumers go over one
    more connection, which they share; so a broker that blocks publishers does not block acknowledgements.
    """

    capabilities: Capabilities = Capabilities(
        system="rabbitmq",
        nack="releases",
        nack_keeps_place=False,  # a quorum queue puts it behind all others that came back before
        blocks="nothing",
        requeue="copy",
        counts_deliveries=True,
        carries_attempts=True,
        keeps_held_attempts=False,
        tells_apart=False,
        durable=True,
        leases=False,
        delayed_publish=True,
        hands_back="all",
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )

    def __init__(self, settings: RabbitMQSettings | None = None) -> None:
        self.settings: Final = RabbitMQSettings() if settings is None else settings
        if self.settings.queue_type == "classic":
            self.capabilities = replace(self.capabilities, counts_deliveries=False)
        self._publisher: Final = Publisher(self.settings, "pump copies and dead letters", CLOCK)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `amqp[s]://user:password@host:port/vhost?option=value`; RabbitMQSettings has the options."""
        return cls(RabbitMQSettings.from_url(url))

    @property
    def place(self) -> str:
        """The broker's address and its virtual host."""
        return str(self.settings)

    def __repr__(self) -> str:
        return f"<RabbitMQTransport to {self.settings}>"

    def consumer(self, subscription: Subscription) -> RabbitMQConsumer:
        """Connect a consumer; its queue is created or validated as the subscription says."""
        return run(self._open(subscription, RabbitMQConsumer))

    def producer(self) -> "RabbitMQProducer":
        """A producer, which connects when it first sends."""
        return RabbitMQProducer(self.settings, self.capabilities)

    async def async_consumer(self, subscription: Subscription) -> AsyncRabbitMQConsumer:
        """As `consumer`."""
        return await run_async(self._open(subscription, AsyncRabbitMQConsumer))

    async def async_producer(self) -> "AsyncRabbitMQProducer":
        """As `producer`."""
        return AsyncRabbitMQProducer(self.settings, self.capabilities)

    def prepare_steps(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Steps[None]:
        """Create or validate queues and exchanges, as each one says; SetupError names what is missing."""
        missing = {each.missing for each in subscriptions} | {each.missing for each in publications}
        if missing - {"assume"}:
            yield from with_topology(self.settings, lambda topology: topology.prepare(subscriptions, publications))

    prepare = blocking(prepare_steps)
    async_prepare = awaiting(prepare_steps)

    def _open(self, subscription: Subscription, kind: type[ConsumerT]) -> Steps[ConsumerT]:
        names = Destinations.of(subscription)
        largest = max(subscription.buffer_size, subscription.in_flight)
        prefetch = min(largest, self.settings.prefetch or LARGEST_PREFETCH)
        channel = DeliveryChannel(self.settings, names, prefetch, CLOCK)
        try:
            yield from channel.connection.open()
            topology = Topology(channel.connection, self.settings)
            is_ours = yield from topology.subscribe(subscription)
            channel.deliveries.may_count = topology.counts
            yield from topology.close()
            limit = yield from self._broker_limit(channel.connection, names.channel, is_ours=is_ours)
        except BaseException:
            channel.connection.close()
            raise
        attempts = subscription.max_attempts
        return kind(channel, names, self._publisher, CLOCK, max_attempts=attempts, broker_limit=limit)

    def _broker_limit(self, connection: AmqpConnection, queue: str, *, is_ours: bool) -> Steps[int | None]:
        """The delivery limit of the settings, or else of the management API, or else the one assumed."""
        settings = self.settings
        if settings.broker_limit is not None or (settings.queue_type == "classic" and not settings.management):
            return settings.broker_limit
        if not settings.management:
            return NO_LIMIT if is_ours else ASSUMED_LIMIT
        # runs in the connection's thread, which has no other work yet
        limit: int | None = yield from connection.ask(lambda asking: asking.succeed(read_limit(settings, queue)))
        return ASSUMED_LIMIT if limit is None and settings.queue_type == "quorum" else limit


class _Producer:
    """The common part of the producers of both colours."""

    def __init__(self, settings: RabbitMQSettings, capabilities: Capabilities) -> None:
        self._publisher: Final = Publisher(settings, "pump producer", CLOCK)
        self._publisher.enter()
        self._capabilities: Final = capabilities
        self._closed = False

    def send_steps(self, messages: Sequence[Message], delay: float = 0.0) -> Steps[None]:
        """Store every message; a PublishError says what is known of the messages that were not confirmed."""
        due = self._publisher.due(delay)
        encoded = [self._encoded(message, due) for message in messages]
        places: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            places.setdefault(message.header.topic, []).append(place)
        sends = [
            self._publisher.start(DelayQueues.to_topic(topic), [encoded[place] for place in those], delay)
            for topic, those in places.items()
        ]
        failures: dict[int, PublishError] = {}
        for those, send in zip(places.values(), sends, strict=True):
            try:
                yield from send
            except PublishError as error:
                found = ((place, failure_among(error, at, at + 1)) for at, place in enumerate(those))
                failures |= {place: failure for place, failure in found if failure is not None}
                if len(places) == 1:
                    raise
        if failures:
            raise together(failures, len(messages))

    def _encoded(self, message: Message, due: float) -> EncodedMessage:
        check_sizes(message, self._capabilities)
        try:
            return EncodedMessage(message.id, write_properties(message.header, due=due), message.body)
        except ValueError as error:
            raise not_sent(str(error)) from error

    def close_steps(self) -> Steps[None]:
        """Disconnect."""
        if not self._closed:
            self._closed = True
            yield from self._publisher.leave()


class RabbitMQProducer(_Producer):
    """Sends messages to topics, on a connection of its own."""

    send = blocking(_Producer.send_steps)
    close = blocking(_Producer.close_steps)


class AsyncRabbitMQProducer(_Producer):
    """Sends messages to topics, awaiting, on a connection of its own."""

    send = awaiting(_Producer.send_steps)
    close = awaiting(_Producer.close_steps)
