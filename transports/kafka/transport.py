"""The transport for Kafka: its capabilities, and its consumers and producers."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, Literal, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.subscription import Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.preparation import in_turn
from pump.transport_kit.settings import Options, at_least, finite_seconds, one_of, read_url
from pump.transports.kafka.consumer import KafkaConsumer
from pump.transports.kafka.log import KafkaLog
from pump.transports.kafka.producer import AsyncKafkaProducer, KafkaProducer, SharedStore
from pump.transports.kafka.settings import CLUSTER_OPTIONS, FORM, Cluster
from pump.transports.kafka.topics import RetryTopics, Topics, check_name, checked

LARGEST_BODY: Final = 900_000
"""With all headers, and those of a dead letter, it is less than the 1 MB that brokers take by default."""
LARGEST_HEADERS: Final = 64 * 1024
SESSION: Final = 10.0
"""After this many seconds without a sign of life, a consumer has lost its partitions."""
SHORTEST_SESSION: Final = 1.0
AS_THE_BROKERS_SAY: Final = -1
RETRY_DELAYS: Final = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
OPTIONS: Final[Options] = {
    **CLUSTER_OPTIONS,
    "create": str,
    **dict.fromkeys(("partitions", "replicas", "largest_body"), int),
    "session": float,
    "retry_delays": lambda text: tuple(map(float, text.split(","))),
}


class KafkaTransport:
    """Topics and consumer groups of one cluster. Making one opens no connection."""

    capabilities: Capabilities = Capabilities(
        system="kafka",
        nack="holds",
        blocks="partition",
        requeue="copy",
        counts_deliveries=False,
        carries_attempts=True,
        keeps_held_attempts=False,
        durable=True,
        leases=False,
        delayed_publish=False,
        purges=False,
        shards_by_key=True,
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        create: Literal["by-request", "on-use"] = "by-request",
        partitions: int = AS_THE_BROKERS_SAY,
        replicas: int = AS_THE_BROKERS_SAY,
        retry_delays: Sequence[Duration] = RETRY_DELAYS,
        session: Duration = SESSION,
        largest_body: int = LARGEST_BODY,
    ) -> None:
        one_of("kafka", "create", create, ("by-request", "on-use"))
        if largest_body < 1:
            raise ConfigurationError(f"kafka: largest_body must be at least 1 byte, not {largest_body}")
        for name, count in (("partitions", partitions), ("replicas", replicas)):
            if count != AS_THE_BROKERS_SAY:
                at_least("kafka", name, count, 1)
        self.cluster: Final = Cluster() if cluster is None else cluster
        self.capabilities = replace(type(self).capabilities, largest_body=largest_body)
        self.creates_on_use: Final = create == "on-use"
        """Whether brokers create topics when they are first asked for, instead of by a request that may be refused."""
        self.partitions: Final = partitions
        """The number of partitions of a topic that is created."""
        self.replicas: Final = replicas
        self.retry_delays: Final = tuple(finite_seconds("kafka", "retry_delays", each) for each in retry_delays)
        if not self.retry_delays:
            raise ConfigurationError("kafka: retry_delays needs at least one delay")
        self.session: Final = finite_seconds("kafka", "session", session)
        at_least("kafka", "session", self.session, SHORTEST_SESSION)
        self.timeout: Final = min(seconds(self.cluster.timeout), inf)
        self.clock: Final[Clock] = SystemClock()
        self.stores: Final = SharedStore(self)
        """The store for messages that are posted, copies and dead letters."""

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of kafka://user:password@host:port,host:port?option=value; the constructor has the options."""
        read = read_url(url, FORM, OPTIONS, schemes=("kafka", "kafka+tls"), takes_others=True)
        own = {name: value for name, value in read.options.items() if name not in CLUSTER_OPTIONS}
        return cls(Cluster.from_url(read), **own)

    @property
    def place(self) -> str:
        """The addresses of the brokers."""
        return str(self.cluster)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.cluster}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs on the brokers; SetupError names what is missing."""
        with Topics(self) as topics:
            for each in in_turn(subscriptions, publications):
                if isinstance(each, Subscription):
                    self._ensure(topics, each)
                else:
                    check_name(each.destination)
                    topics.ensure(each.missing, [each.destination], f"topic {each.destination!r}")

    def _ensure(self, topics: Topics, subscription: Subscription) -> Destinations:
        destinations = checked(Destinations.of(subscription))
        names = (destinations.topic, *self.retry_topics(destinations).names)
        what = f"channel {destinations.channel!r} of {destinations.topic!r}"
        if subscription.missing == "assume":
            topics.require(names, what)
        else:
            topics.ensure(subscription.missing, (*names, *destinations.dead_letters), what)
        return destinations

    def retry_topics(self, destinations: Destinations) -> RetryTopics:
        """The topics where copies for the channel wait."""
        return RetryTopics(destinations.channel, self.retry_delays)

    def consumer(self, subscription: Subscription) -> KafkaConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        with Topics(self) as topics:
            destinations = self._ensure(topics, subscription)
        return KafkaConsumer(self, subscription, destinations)

    def topic_log(self, subscription: Subscription) -> KafkaLog:
        """Open the topic of the subscription as a log. What waits in its retry topics is not in it."""
        return KafkaLog(self, checked(Destinations.of(subscription)))

    def producer(self) -> KafkaProducer:
        """A producer, which connects when it first sends."""
        return KafkaProducer(self)

    async def async_producer(self) -> AsyncKafkaProducer:
        """The same, awaiting."""
        return AsyncKafkaProducer(self)
