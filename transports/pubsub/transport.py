"""The transport: its capabilities, and what it opens."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.preparation import in_turn
from pump.transport_kit.sending import not_sent
from pump.transports.pubsub.connection import PubSubConnection
from pump.transports.pubsub.consumer import PubSubConsumer
from pump.transports.pubsub.publisher import PubSubPublisher
from pump.transports.pubsub.settings import PubSubSettings
from pump.transports.pubsub.topology import PubSubTopology

LARGEST_BODY: Final = 9_800_000
"""Pub/Sub takes 10 MB, and a dead letter's attributes have to fit in as well."""
LARGEST_HEADERS: Final = 32_768


class PubSubTransport:
    """Topics and subscriptions of one project. Making one opens no connection."""

    capabilities: Capabilities = Capabilities(
        system="gcp_pubsub",
        nack="holds",
        blocks="partition",
        requeue="copy",
        counts_deliveries=True,
        carries_attempts=True,
        keeps_held_attempts=False,
        durable=True,
        leases=True,
        delayed_publish=False,
        shards_by_key=True,
        longest_delay=None,
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )

    def __init__(self, settings: PubSubSettings) -> None:
        self.settings: Final = settings
        self.capabilities = replace(
            type(self).capabilities,
            nack="releases" if settings.release_on_nack else "holds",
            counts_deliveries=settings.delivery_limit is not None,
        )
        self._clock: Final[Clock] = SystemClock()

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `pubsub://project?option=value`; PubSubSettings has the options."""
        return cls(PubSubSettings.from_url(url))

    @property
    def place(self) -> str:
        """The project, and the address if it is not Google's."""
        return str(self.settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.settings}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs; SetupError names what is missing."""
        with closing(PubSubConnection(self.settings)) as connection:
            topology = PubSubTopology(connection, self.settings)
            for each in in_turn(subscriptions, publications):
                if isinstance(each, Subscription):
                    topology.ensure_channel(each)
                else:
                    topology.ensure_publication(each)

    def consumer(self, subscription: Subscription) -> PubSubConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        consumer = PubSubConsumer(self.settings, subscription, self._clock)
        consumer.open()
        return consumer

    def producer(self) -> "PubSubProducer":
        """A producer, which connects when it first sends."""
        return PubSubProducer(self.settings, self.capabilities, self._clock)


class PubSubProducer:
    """Sends to the topics in the messages' headers, on a connection of its own. Any thread may use it."""

    def __init__(self, settings: PubSubSettings, capabilities: Capabilities, clock: Clock) -> None:
        self._connection: Final = PubSubConnection(settings)
        self._publisher: Final = PubSubPublisher(self._connection, settings.project, clock)
        self._capabilities: Final = capabilities
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Return when every message is stored."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        if delay > 0:
            raise not_sent("Pub/Sub has no messages that arrive later")
        self._publisher.send(messages, self._capabilities)

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        self._connection.close()
