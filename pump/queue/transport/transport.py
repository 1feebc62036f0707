"""The durable queue as a transport: the part that `sqlite://` and `postgres://` share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Final

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration
from pump.errors import ConfigurationError, SetupError
from pump.queue.engine import Engine
from pump.queue.errors import QueueError
from pump.queue.options import QueueOptions
from pump.queue.transport.consumer import DEAD_ROWS, QueueConsumer
from pump.queue.transport.producer import QueueProducer
from pump.queue.transport.shared_engine import SharedEngine
from pump.queue.vocabulary import QueueInfo, Settlement
from pump.subscription import Publication, Subscription
from pump.transport_kit.destinations import CHANNEL, Destinations
from pump.transport_kit.preparation import in_turn
from pump.transport_kit.settings import finite_seconds

LEASE: Final = 30.0
"""Seconds for which a delivery is its consumer's alone, unless it is extended."""
KEEP: Final = 3600.0
"""Seconds for which a message stays listed after every channel of its topic has completed it."""
LARGEST_BODY: Final = 600_000
LARGEST_HEADERS: Final = 16 * 1024
"""With headers of this size, and the largest body, a dead letter with its provenance still fits."""

CAPABILITIES: Final = Capabilities(
    system="sql",
    nack="releases",
    blocks="nothing",
    requeue="same",
    counts_deliveries=True,
    carries_attempts=True,
    durable=True,
    leases=True,
    delayed_publish=True,
    shards_by_key=True,
    default_dead_letter=DEAD_ROWS,
    largest_body=LARGEST_BODY,
    largest_headers=LARGEST_HEADERS,
)


@cache
def _clock(_place: str) -> Clock:
    """One clock for each database: a database that does not answer delays only its own timers."""
    return SystemClock()


class QueueTransport(ABC):
    """Topics are queues, channels are consumer groups. Making a transport opens nothing.

    `lease` is for subscriptions without a lease of their own. In queues that this transport creates, a message stays
    listed for `keep` seconds after all channels of its topic have completed it.
    """

    capabilities: Capabilities = CAPABILITIES

    def __init__(self, *, lease: Duration = LEASE, keep: Duration = KEEP) -> None:
        self._lease: Final = finite_seconds(self.capabilities.system, "lease", lease)
        self._keep: Final = finite_seconds(self.capabilities.system, "keep", keep)
        self._clock: Final = _clock(self.place)
        self._shared: Final = SharedEngine(self._open, self._clock)
        self._leftovers: Final[dict[tuple[str, str], list[Settlement]]] = {}

    @property
    @abstractmethod
    def place(self) -> str:
        """The name of the database, without the password."""

    @abstractmethod
    def _open(self) -> Engine:
        """Make an engine."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.place}>"

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The queue itself, open for the block: for operators' tools that know it by its URL."""
        with self._shared.use() as engine:
            yield engine

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate the queues and groups that are needed; SetupError names what is missing."""
        with self._shared.use() as engine, _as_setup_errors():
            for each in in_turn(subscriptions, publications):
                if isinstance(each, Subscription):
                    prepare = self._declare if each.missing == "create" else _validate
                    prepare(engine, each)
                elif each.missing == "create":
                    self._declare_topic(engine, each.destination)
                elif engine.options(each.destination) is None:
                    raise _missing("topic", each.destination)

    def _declare(self, engine: Engine, subscription: Subscription) -> None:
        destinations = _destinations(subscription)
        for topic in dead_letter_topics(destinations):
            self._declare_topic(engine, topic)
        queue = _queue(engine, destinations.topic)
        if queue is None or (not queue.groups and queue.ordered != subscription.ordered):
            self._configure(engine, destinations.topic, subscription.ordered)
        else:
            _must_agree(queue, subscription)
        engine.subscribe(destinations.topic, destinations.channel)

    def _declare_topic(self, engine: Engine, topic: str) -> None:
        """Create the queue if it is missing. Its first consumer may still make it ordered."""
        if engine.options(topic) is None:
            self._configure(engine, topic, ordered=False)

    def _configure(self, engine: Engine, topic: str, ordered: bool) -> None:  # noqa: FBT001 - as the option is called
        options = engine.options(topic)
        if options is None:
            options = QueueOptions(
                lease_time=self._lease, retention_enabled=True, completed_retention=self._keep, retry_limit=None
            )
        engine.configure(topic, replace(options, ordered=ordered))

    def consumer(self, subscription: Subscription) -> QueueConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        lease = self._lease
        if subscription.lease is not None:
            lease = finite_seconds(self.capabilities.system, "lease", subscription.lease)
        opened = self._shared.take()
        try:
            self.prepare([subscription], [])
            destinations = _destinations(subscription)
            leftovers = self._leftovers.setdefault((destinations.topic, destinations.channel), [])
            consumer = QueueConsumer(opened, self._clock, destinations, subscription, lease, leftovers)
            consumer.ended = self._shared.leave
            consumer.send_leftovers()
        except BaseException:
            self._shared.leave()
            raise
        return consumer

    def producer(self) -> QueueProducer:
        """Open a producer."""
        return QueueProducer(self._shared.take(), self.capabilities, self._shared.leave)


def _destinations(subscription: Subscription) -> Destinations:
    return Destinations.of(subscription, DEAD_ROWS)


def dead_letter_topics(destinations: Destinations) -> list[str]:
    """The topics that rejected messages may be pushed to."""
    dead_rows = DEAD_ROWS.replace(CHANNEL, destinations.channel)
    return [name for name in destinations.dead_letters if name != dead_rows]


@contextmanager
def _as_setup_errors() -> Iterator[None]:
    """Turn an error of the queue during set-up into a ConfigurationError: people have to correct it."""
    try:
        yield
    except QueueError as error:
        raise ConfigurationError(str(error)) from error


def _queue(engine: Engine, topic: str) -> QueueInfo | None:
    return next(iter(engine.queues(topic)), None)


def _validate(engine: Engine, subscription: Subscription) -> None:
    destinations = _destinations(subscription)
    queue = _queue(engine, destinations.topic)
    if queue is None or destinations.channel not in {group.name for group in queue.groups}:
        raise _missing("channel", destinations.channel)
    _must_agree(queue, subscription)
    for topic in dead_letter_topics(destinations):
        if engine.options(topic) is None:
            raise _missing("topic", topic)


def _must_agree(queue: QueueInfo, subscription: Subscription) -> None:
    if queue.ordered is not None and queue.ordered != subscription.ordered:
        mode = "ordered" if queue.ordered else "not ordered"
        raise ConfigurationError(
            f"the topic {queue.name!r} is {mode}, and Subscription {subscription} says "
            f"ordered={subscription.ordered}: all channels of a topic must have the same mode"
        )


def _missing(what: str, name: str) -> SetupError:
    return SetupError(f"the queue has no {what} {name!r}, and missing='validate' does not create it")
