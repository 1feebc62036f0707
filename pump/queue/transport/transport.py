"""The durable queue as a transport: what `sqlite://` and `postgres://` share, whatever the engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import inf
from typing import Final

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, SetupError
from pump.queue.engine import Engine
from pump.queue.errors import QueueError
from pump.queue.options import QueueOptions
from pump.queue.transport.consumer import QueueConsumer
from pump.queue.transport.producer import QueueProducer
from pump.queue.transport.routes import DEAD_ROWS, Route
from pump.queue.transport.shared_engine import SharedEngine
from pump.queue.vocabulary import QueueInfo, Settlement
from pump.subscription import Publication, Subscription

LEASE: Final = 30.0
"""Seconds for which a delivery is its consumer's alone, unless it is extended."""
KEEP: Final = 3600.0
"""Seconds for which a message stays listed that every channel of its topic is done with."""
LARGEST_BODY: Final = 600_000
LARGEST_HEADERS: Final = 16 * 1024
"""With both, and all that is to be said about it, the dead letter of a message still fits."""

CAPABILITIES: Final = Capabilities(
    system="sql",
    nack="releases",
    blocks="nothing",
    requeue="same",
    counts_deliveries=True,
    carries_attempts=True,
    durable=True,
    durable_attempts=True,
    leases=True,
    delayed_publish=True,
    shards_by_key=True,
    default_dead_letter=DEAD_ROWS,
    largest_body=LARGEST_BODY,
    largest_headers=LARGEST_HEADERS,
)


@cache
def _clock(_place: str) -> Clock:
    """One for each database: one that does not answer holds up what is timed for it, and nothing else."""
    return SystemClock()


class QueueTransport(ABC):
    """Topics as queues, channels as consumer groups. Making one opens nothing.

    `lease` is for subscriptions that do not say theirs. What all channels of a topic are done with stays listed for
    `keep` seconds, in queues that this makes.
    """

    capabilities: Capabilities = CAPABILITIES

    def __init__(self, *, lease: Duration = LEASE, keep: Duration = KEEP) -> None:
        _check_lease(lease)
        if not 0 < seconds(keep) < inf:
            raise ConfigurationError(f"keep is longer than 0 s, and comes to an end: not {keep}")
        self._lease: Final = seconds(lease)
        self._keep: Final = seconds(keep)
        self._clock: Final = _clock(self.place)
        self._shared: Final = SharedEngine(self._open, self._clock)
        self._unsaid: Final[dict[tuple[str, str], list[Settlement]]] = {}

    @property
    @abstractmethod
    def place(self) -> str:
        """Which database it is, without the password."""

    @abstractmethod
    def _open(self) -> Engine:
        """Make an engine."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.place}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""
        with self._shared.use() as engine, _as_setup_errors():
            for subscription in subscriptions:
                if subscription.missing == "create":
                    self._declare(engine, subscription)
            for publication in publications:
                if publication.missing == "create":
                    self._declare_topic(engine, publication.destination)
            for subscription in subscriptions:
                if subscription.missing == "validate":
                    _validate(engine, subscription)
            for publication in publications:
                if publication.missing == "validate" and engine.options(publication.destination) is None:
                    raise _missing("topic", publication.destination)

    def _declare(self, engine: Engine, subscription: Subscription) -> None:
        route = Route(subscription)
        for grave in route.graves:
            self._declare_topic(engine, grave)
        queue = _queue(engine, route.topic)
        if queue is None or (not queue.groups and queue.ordered != subscription.ordered):
            self._configure(engine, route.topic, subscription.ordered)
        else:
            _must_agree(queue, subscription)
        engine.subscribe(route.topic, route.channel)

    def _declare_topic(self, engine: Engine, topic: str) -> None:
        """Make the queue if it is not there. Whoever consumes from it first may still say that it is ordered."""
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
        lease = self._lease if subscription.lease is None else seconds(subscription.lease)
        _check_lease(lease)
        opened = self._shared.take()
        try:
            self.prepare([subscription], [])
            route = Route(subscription)
            unsaid = self._unsaid.setdefault((route.topic, route.channel), [])
            consumer = QueueConsumer(opened, self._clock, route, subscription, lease, unsaid)
            consumer.ended = self._shared.leave
            consumer.say_what_was_left()
        except BaseException:
            self._shared.leave()
            raise
        return consumer

    def producer(self) -> QueueProducer:
        """Open a producer."""
        return QueueProducer(self._shared.take(), self.capabilities, self._shared.leave)


def options_of(given: Mapping[str, str], known: Mapping[str, Callable[[str], object]]) -> Mapping[str, object]:
    """A URL's options as the constructor takes them."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigurationError(f"these URLs take {', '.join(known)}, and not {', '.join(unknown)}")
    options: dict[str, object] = {}
    for name, text in given.items():
        try:
            options[name] = known[name](text)
        except ValueError:
            raise ConfigurationError(f"{name} cannot be {text!r}") from None
    return options


def _check_lease(lease: Duration) -> None:
    if not 0 < seconds(lease) < inf:
        raise ConfigurationError(f"a lease is longer than 0 s, and comes to an end: not {lease}")


@contextmanager
def _as_setup_errors() -> Iterator[None]:
    """What the queue refuses while it is being set up has to be mended by people."""
    try:
        yield
    except QueueError as error:
        raise ConfigurationError(str(error)) from error


def _queue(engine: Engine, topic: str) -> QueueInfo | None:
    return next(iter(engine.queues(topic)), None)


def _validate(engine: Engine, subscription: Subscription) -> None:
    route = Route(subscription)
    queue = _queue(engine, route.topic)
    if queue is None or route.channel not in {group.name for group in queue.groups}:
        raise _missing("channel", route.channel)
    _must_agree(queue, subscription)
    for grave in route.graves:
        if engine.options(grave) is None:
            raise _missing("topic", grave)


def _must_agree(queue: QueueInfo, subscription: Subscription) -> None:
    if queue.ordered is not None and queue.ordered != subscription.ordered:
        is_so = "ordered" if queue.ordered else "not ordered"
        raise ConfigurationError(
            f"the topic {queue.name!r} is {is_so}, and Subscription {subscription} says "
            f"ordered={subscription.ordered}: all channels of a topic are alike in this"
        )


def _missing(what: str, name: str) -> SetupError:
    return SetupError(f"the queue has no {what} {name!r}, and missing='validate' does not make it")
