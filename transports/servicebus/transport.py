"""The Service Bus transport: its capabilities, and what it opens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.errors import ConfigurationError, SetupError
from pump.subscription import Publication, Subscription
from pump.transports.servicebus.consumer import LONGEST_DELAY, ServiceBusConsumer
from pump.transports.servicebus.entities import DEAD, Entities, channel_names, is_dead_letters
from pump.transports.servicebus.producer import ServiceBusProducer
from pump.transports.servicebus.session_consumer import SessionConsumer
from pump.transports.servicebus.settings import LARGEST_BODY, LARGEST_HEADERS, ServiceBusSettings


class ServiceBusTransport:
    """One namespace of Azure Service Bus. Making one opens no connection."""

    capabilities: Capabilities = Capabilities(
        system="servicebus",
        nack="releases",
        nack_keeps_place=False,  # what was on its way to this consumer may come before it
        blocks="channel",
        requeue="copy",
        counts_deliveries=True,
        carries_attempts=True,
        keeps_held_attempts=False,
        durable=True,
        leases=True,
        delayed_publish=True,
        default_dead_letter=f"<channel>{DEAD}",
        longest_delay=LONGEST_DELAY,
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )
    scheme: ClassVar[str] = "servicebus"
    sessions: ClassVar[bool] = False
    """Whether its queues require sessions."""

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        settings: ServiceBusSettings | None = None,
        namespace: str = "",
        credential: object = None,
        clock: Clock | None = None,
        **options: Any,  # noqa: ANN401 - the fields of ServiceBusSettings, which checks them
    ) -> None:
        """Give a connection string, a namespace and a credential, or settings; options are fields of settings."""
        ways = [each for each in (connection_string, settings, namespace) if each]
        if len(ways) != 1:
            raise ConfigurationError("servicebus: give a connection_string, a namespace and a credential, or settings")
        if settings is not None:
            self._settings = settings
        elif connection_string is not None:
            self._settings = ServiceBusSettings.from_connection_string(connection_string, **options)
        else:
            self._settings = ServiceBusSettings(namespace=namespace, credential=credential, **options)
        self.capabilities = replace(self.capabilities, largest_body=self._settings.largest_body)
        self._entities: Final = Entities(self._settings, sessions=self.sessions)
        self._clock: Final = SystemClock() if clock is None else clock

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of servicebus://key_name:key@namespace/?option=value; the options are those of the settings."""
        return cls(settings=ServiceBusSettings.from_url(url, cls.scheme))

    @property
    def place(self) -> str:
        """The namespace."""
        return str(self._settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._settings}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs; SetupError names what is missing."""
        self._entities.prepare(subscriptions, publications)

    def consumer(self, subscription: Subscription) -> ServiceBusConsumer:
        """Open a consumer of the subscription's channel. It connects when it first receives."""
        facts = self._entities.facts(subscription)
        if facts.needs_session and not self.sessions:
            raise SetupError(
                f"{self._settings}: the queue of {subscription} requires sessions: use servicebus+sessions://, "
                "or ServiceBusSessionsTransport"
            )
        return ServiceBusConsumer(self._settings, subscription, facts, self._clock)

    def producer(self) -> ServiceBusProducer:
        """A producer, which connects when it first sends."""
        return ServiceBusProducer(self._settings, self.capabilities, self._clock, sessions=self.sessions)


class ServiceBusSessionsTransport(ServiceBusTransport):
    """Queues that require sessions. A key is a session: its order is kept, whatever breaks, by several consumers."""

    capabilities: Capabilities = replace(
        ServiceBusTransport.capabilities, nack="holds", blocks="partition", counts_deliveries=False, shards_by_key=True
    )
    scheme = "servicebus+sessions"
    sessions = True

    def consumer(self, subscription: Subscription) -> ServiceBusConsumer:
        """Open a consumer of the subscription's channel. Dead letters that Azure keeps have no sessions."""
        facts = self._entities.facts(subscription)
        if facts.needs_session is not False:
            return SessionConsumer(self._settings, subscription, facts, self._clock)
        if not is_dead_letters(channel_names(subscription).channel):
            raise SetupError(
                f"{self._settings}: the queue of {subscription} does not require sessions: use servicebus://, or make "
                "another queue, as that cannot be changed"
            )
        return ServiceBusConsumer(self._settings, subscription, facts, self._clock)
