"""RabbitMQ: queues, topics, dead letters and delays on AMQP 0-9-1. docs/rabbitmq.md says what is made, and why."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.errors import PublishError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.transports.rabbitmq.connection import Steps, outcome, run, run_async
from pump.transports.rabbitmq.consumer import AsyncRabbitMQConsumer, RabbitMQConsumer, Verdicts
from pump.transports.rabbitmq.deliveries import Spared
from pump.transports.rabbitmq.feed import Feed
from pump.transports.rabbitmq.publisher import Copy, Publisher
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, NO_LIMIT, Ladder, Names, Topology, in_session
from pump.transports.rabbitmq.wire import write_properties

__all__ = ["RabbitMQSettings", "RabbitMQTransport"]

LARGEST_BODY: Final = 16 * 1024 * 1024
"""What RabbitMQ 4 takes by default; earlier ones took more."""
LARGEST_HEADERS: Final = 100_000
"""All properties are one frame of 128 KiB at most, and a dead letter's provenance has to fit in as well."""
LARGEST_PREFETCH: Final = 65_535

_clock: Final = SystemClock()

QUORUM: Final = Capabilities(
    system="rabbitmq",
    nack="releases",
    blocks="nothing",
    requeue="copy",
    counts_deliveries=True,
    carries_attempts=True,
    durable=True,
    durable_attempts=True,
    leases=False,
    delayed_publish=True,
    hands_back="all",
    largest_body=LARGEST_BODY,
    largest_headers=LARGEST_HEADERS,
)
CLASSIC: Final = replace(QUORUM, counts_deliveries=False)


class RabbitMQTransport:
    """One RabbitMQ. Making one opens nothing.

    Each consumer has a connection of its own, and so has each producer; what consumers publish, copies and dead
    letters, goes over one more, which they share: a broker that blocks publishers does not block acknowledgements.
    """

    capabilities: Capabilities = QUORUM

    def __init__(self, settings: RabbitMQSettings | None = None) -> None:
        self.settings: Final = RabbitMQSettings() if settings is None else settings
        if self.settings.queue_type == "classic":
            self.capabilities = CLASSIC
        self._spared: Final = Spared()
        self._lock: Final = Lock()
        self._publisher: Publisher | None = None
        self._consumers = 0

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `amqp[s]://user:password@host:port/vhost?option=value`; RabbitMQSettings has the options."""
        return cls(RabbitMQSettings.from_url(url))

    def __repr__(self) -> str:
        return f"<RabbitMQTransport to {self.settings}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""
        run(self._prepare(subscriptions, publications), _clock)

    def consumer(self, subscription: Subscription) -> RabbitMQConsumer:
        """Connect a consumer; its queue is created or validated as the subscription says."""
        return RabbitMQConsumer(run(self._open(subscription), _clock), _clock)

    def producer(self) -> "RabbitMQProducer":
        """A producer, which connects when it first sends."""
        return RabbitMQProducer(Publisher(self.settings, "pump producer", _clock), _clock)

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """As prepare."""
        await run_async(self._prepare(subscriptions, publications), _clock)

    async def async_consumer(self, subscription: Subscription) -> AsyncRabbitMQConsumer:
        """As consumer."""
        return AsyncRabbitMQConsumer(await run_async(self._open(subscription), _clock), _clock)

    async def async_producer(self) -> "AsyncRabbitMQProducer":
        """As producer."""
        return AsyncRabbitMQProducer(Publisher(self.settings, "pump producer", _clock), _clock)

    def _prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Steps[None]:
        missing = {each.missing for each in subscriptions} | {each.missing for each in publications}
        if missing - {"assume"}:
            yield from in_session(self.settings, lambda topology: topology.prepare(subscriptions, publications))

    def _open(self, subscription: Subscription) -> Steps[Verdicts]:
        names = Names(subscription)
        most = min(max(subscription.buffer_size, subscription.in_flight), self.settings.prefetch or LARGEST_PREFETCH)
        feed = Feed(self.settings, names, most, _clock, self._spared)
        try:
            yield from outcome(feed.link.open())
            ours = yield from Topology.over(feed.link, self.settings, lambda topology: topology.subscribe(subscription))
        except BaseException:
            feed.link.close()
            raise
        attempts, limit = subscription.max_attempts, self._limit(ours=ours)
        publisher = self._enter()
        return Verdicts(feed, names, publisher, self._leave, _clock, max_attempts=attempts, broker_limit=limit)

    def _limit(self, *, ours: bool) -> int | None:
        if self.settings.queue_type == "classic":
            return self.settings.broker_limit
        return NO_LIMIT if ours else self.settings.broker_limit or ASSUMED_LIMIT

    def _enter(self) -> Publisher:
        """All consumers share a publisher, for as long as there is one of them."""
        with self._lock:
            self._consumers += 1
            if self._publisher is None:
                self._publisher = Publisher(self.settings, "pump copies and dead letters", _clock)
            return self._publisher

    def _leave(self) -> Steps[None]:
        with self._lock:
            self._consumers -= 1
            publisher = None
            if not self._consumers:
                publisher, self._publisher = self._publisher, None
        if publisher is not None:
            yield from publisher.close()


class RabbitMQProducer:
    """Sends messages to topics, on a connection of its own."""

    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher: Final = publisher
        self._clock: Final = clock

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError says what is known of those that were not confirmed."""
        run(_send(self._publisher, messages, delay), self._clock)

    def close(self) -> None:
        """Disconnect."""
        run(self._publisher.close(), self._clock)


class AsyncRabbitMQProducer:
    """The same, awaiting."""

    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher: Final = publisher
        self._clock: Final = clock

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As RabbitMQProducer's."""
        await run_async(_send(self._publisher, messages, delay), self._clock)

    async def close(self) -> None:
        """As RabbitMQProducer's."""
        await run_async(self._publisher.close(), self._clock)


def _send(publisher: Publisher, messages: Sequence[Message], delay: float) -> Steps[None]:
    due = publisher.due(delay)
    copies: dict[str, list[Copy]] = {}
    for message in messages:
        copies.setdefault(message.header.topic, []).append(_encoded(message, due))
    for topic, those in copies.items():
        yield from publisher.send(Ladder.to_topic(topic), those, delay)


def _encoded(message: Message, due: float) -> Copy:
    header, size = message.header, len(message.body)
    if size > LARGEST_BODY:
        raise _refused(f"the body of {message.id} has {size} bytes, and {LARGEST_BODY} are the most")
    size = sum(len(name.encode()) + len(text.encode()) for name, text in header.headers.items())
    if size > LARGEST_HEADERS:
        raise _refused(f"the headers of {message.id} have {size} bytes, and {LARGEST_HEADERS} are the most")
    try:
        return Copy(header.id, write_properties(header, due=due), message.body)
    except ValueError as error:
        raise _refused(str(error)) from error


def _refused(why: str) -> PublishError:
    return PublishError(f"nothing was sent: {why}", sent=False, retriable=False)
