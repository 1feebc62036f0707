"""What there is on the broker for a subscription: its queue, its topic's exchange, its dead letters, its delays."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pika.channel import Channel

from pump.errors import ConfigurationError, PumpError, SetupError, TransportError
from pump.subscription import DEFAULT_DEAD_LETTER, Publication, Subscription
from pump.transports.rabbitmq.connection import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    Link,
    Refused,
    Session,
    Steps,
    outcome,
)
from pump.transports.rabbitmq.settings import QueueType, RabbitMQSettings

log: Final = logging.getLogger("pump.transports.rabbitmq")

NO_LIMIT: Final = 1_000_000_000
"""The delivery limit of our quorum queues. Without one a nacked message goes to the back, or RabbitMQ 4 sets 20."""
ASSUMED_LIMIT: Final = 20
"""That of quorum queues that others made."""
RUNGS: Final = tuple(1 << power for power in range(13))
"""The delays that there are queues for, in seconds."""
EXCHANGE_TYPE: Final = "fanout"

Result = TypeVar("Result")
Arguments: TypeAlias = dict[str, Any]
Request: TypeAlias = Callable[[Channel, Callable[[Any], None]], object]

_REFUSALS: Final = frozenset({ACCESS_REFUSED, RESOURCE_LOCKED, PRECONDITION_FAILED})
_NO_SUCH: Final = "NOT_FOUND - no "
"""A queue whose node is down is not found either, and comes back."""


class Names:
    """Where a subscription consumes from, and where its rejected messages go."""

    def __init__(self, subscription: Subscription) -> None:
        self.topic: Final = subscription.topic or getattr(subscription.request, "__name__", "")
        self.channel: Final = subscription.channel or self.topic
        by_default = subscription.dead_letter == DEFAULT_DEAD_LETTER
        self.dead_letter: Final = f"{self.channel}.dead" if by_default else subscription.dead_letter
        self.invalid: Final = self.dead_letter if subscription.invalid is None else subscription.invalid
        self.graves: Final = tuple(dict.fromkeys(name for name in (self.dead_letter, self.invalid) if name is not None))
        if self.channel in self.graves:
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")


@dataclass(frozen=True)
class Ladder:
    """The delay queues that lead to one place: a queue, or the exchange of a topic."""

    name: str
    """Each queue's name begins so."""
    exchange: str
    routing_key: str

    @classmethod
    def to_queue(cls, queue: str) -> "Ladder":
        """Back to a queue, and nowhere else."""
        return cls(f"{queue}.delay", "", queue)

    @classmethod
    def to_topic(cls, topic: str) -> "Ladder":
        """To whoever has subscribed to a topic by then."""
        return cls(f"{topic}.later", topic, topic)

    def queue(self, rung: int) -> str:
        """The queue in which a message waits for so many seconds."""
        return f"{self.name}.{rung}s"

    def arguments(self, rung: int, queue_type: QueueType) -> Arguments:
        """How it is made. It never expires: an expiring queue drops what it holds."""
        arguments: Arguments = {
            "x-queue-type": queue_type,
            "x-message-ttl": 1000 * rung,
            "x-dead-letter-exchange": self.exchange,
            "x-dead-letter-routing-key": self.routing_key,
        }
        return arguments | _at_least_once(queue_type)


def rung_for(delay: float) -> int:
    """The shortest delay there is that is not shorter; the longest where there is none."""
    return next((rung for rung in RUNGS if rung >= delay), RUNGS[-1])


def queue_arguments(queue_type: QueueType, dead_letter: str | None) -> Arguments:
    """How a queue is made that is consumed from."""
    arguments: Arguments = {"x-queue-type": queue_type}
    if queue_type == "quorum":
        arguments["x-delivery-limit"] = NO_LIMIT
    if dead_letter is not None:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letter}
        arguments |= _at_least_once(queue_type)
    return arguments


def _at_least_once(queue_type: QueueType) -> Arguments:
    if queue_type != "quorum":
        return {}
    return {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def in_session(settings: RabbitMQSettings, work: "Callable[[Topology], Steps[Result]]") -> Steps[Result]:
    """Do something with what there is on the broker, over a connection that lasts as long."""
    link = Link(settings, "pump topology")
    try:
        yield from outcome(link.open())
        return (yield from Topology.over(link, settings, work))
    finally:
        yield from outcome(link.close())


class Topology:
    """Finds, makes and empties what there is on the broker, over one session."""

    def __init__(self, session: Session, queue_type: QueueType) -> None:
        self._session: Final = session
        self._queue_type: Final = queue_type

    @classmethod
    def over(cls, link: Link, settings: RabbitMQSettings, work: "Callable[[Topology], Steps[Result]]") -> Steps[Result]:
        """Do something over a connection that has no consumer yet."""
        session = Session(link)
        result = yield from work(cls(session, settings.queue_type))
        yield from session.close()
        return result

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> Steps[None]:
        """Create all that may be created, then validate; SetupError names what is not there."""
        for missing in ("create", "validate"):
            for subscription in subscriptions:
                if subscription.missing == missing:
                    yield from self.subscribe(subscription)
            for publication in publications:
                if publication.missing == missing:
                    yield from self._publish(publication)

    def subscribe(self, subscription: Subscription) -> Steps[bool]:
        """Create or validate what a subscription needs; whether its queue is known to be as we make queues."""
        names = Names(subscription)
        if subscription.missing == "assume":
            return False
        if subscription.missing == "validate":
            for queue in (names.channel, *names.graves):
                if not (yield from self._queue_exists(queue)):
                    raise SetupError(_not_there(f"queue {queue!r}", subscription.missing))
            if not (yield from self._exchange_exists(names.topic)):
                raise SetupError(_not_there(f"exchange {names.topic!r}", subscription.missing))
            return False
        for grave in names.graves:
            yield from self.make_queue(grave, queue_arguments(self._queue_type, None))
        ours = yield from self.make_queue(names.channel, queue_arguments(self._queue_type, names.dead_letter))
        yield from self._make_exchange(names.topic)
        yield from self._ask(
            f"bind the queue {names.channel!r} to the exchange {names.topic!r}",
            lambda channel, done: channel.queue_bind(names.channel, names.topic, names.topic, callback=done),
        )
        return ours

    def _publish(self, publication: Publication) -> Steps[None]:
        topic = publication.destination
        if publication.missing == "create":
            yield from self._make_exchange(topic)
        elif not (yield from self._exchange_exists(topic)):
            raise SetupError(_not_there(f"exchange {topic!r}", publication.missing))

    def make_queue(self, name: str, arguments: Arguments) -> Steps[bool]:
        """Make a queue; False if there is one that was made in another way, which is used as it is."""
        refused = yield from self._refusal(
            lambda channel, done: channel.queue_declare(name, durable=True, arguments=arguments, callback=done)
        )
        if refused is None:
            return True
        if refused.code not in _REFUSALS or not (yield from self._queue_exists(name)):
            raise _error(f"make the queue {name!r}", refused) from refused
        log.warning("the queue %s was made by others, and is used as it is: %s", name, refused.text)
        return False

    def _make_exchange(self, name: str) -> Steps[None]:
        """Make an exchange, unless there is one of that name, whatever its type."""
        refused = yield from self._refusal(
            lambda channel, done: channel.exchange_declare(name, EXCHANGE_TYPE, durable=True, callback=done)
        )
        if refused is not None and (refused.code not in _REFUSALS or not (yield from self._exchange_exists(name))):
            raise _error(f"make the exchange {name!r}", refused) from refused

    def purge(self, queue: str) -> Steps[int]:
        """Empty the queue and the delay queues that lead back to it; how many messages that were."""
        number = yield from self._purge_one(queue)
        ladder = Ladder.to_queue(queue)
        for rung in RUNGS:
            number += yield from self._purge_one(ladder.queue(rung))
        return number

    def _purge_one(self, queue: str) -> Steps[int]:
        if not (yield from self._queue_exists(queue)):
            return 0
        done = yield from self._ask(
            f"purge the queue {queue!r}", lambda channel, done: channel.queue_purge(queue, callback=done)
        )
        return int(done.method.message_count)

    def _queue_exists(self, name: str) -> Steps[bool]:
        return (
            yield from self._exists(
                f"queue {name!r}", lambda channel, done: channel.queue_declare(name, passive=True, callback=done)
            )
        )

    def _exchange_exists(self, name: str) -> Steps[bool]:
        return (
            yield from self._exists(
                f"exchange {name!r}",
                lambda channel, done: channel.exchange_declare(name, passive=True, callback=done),
            )
        )

    def _exists(self, what: str, request: Request) -> Steps[bool]:
        try:
            yield from self._session.ask(request)
        except Refused as refused:
            if refused.code == NOT_FOUND and refused.text.startswith(_NO_SUCH):
                return False
            raise _error(f"look for the {what}", refused) from refused
        return True

    def _refusal(self, request: Request) -> Steps[Refused | None]:
        """Why the broker does not do it; None if it does."""
        try:
            yield from self._session.ask(request)
        except Refused as refused:
            return refused
        return None

    def _ask(self, what: str, request: Request) -> Steps[Any]:
        try:
            return (yield from self._session.ask(request))
        except Refused as refused:
            raise _error(what, refused) from refused


def _not_there(what: str, missing: str) -> str:
    return f"RabbitMQ has no {what}, and missing={missing!r} does not make it"


def _error(what: str, refused: Refused) -> PumpError:
    """What has to be mended is a SetupError; what may pass, such as a queue without its leader, a TransportError."""
    kind = SetupError if refused.code in _REFUSALS else TransportError
    return kind(f"RabbitMQ: cannot {what}: {refused.text}")
