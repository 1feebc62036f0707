"""The Service Bus transport: its capabilities, and what it opens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.errors import ConfigurationError, SetupError
from pump.subscription import Publication, Subscription
from pump.transports.servicebus.consumer import LONGEST_DELAY, ServiceBusConsumer
from pump.transports.servicebus.entities import DEAD, Entities
from pump.transports.servicebus.producer import ServiceBusProducer
from pump.transports.servicebus.settings import LARGEST_BODY, LARGEST_HEADERS, ServiceBusSettings


class ServiceBusTransport:
    """One namespace of Azure Service Bus. Making one opens no connection."""

    capabilities: Capabilities = Capabilities(
        system="servicebus",
        nack="releases",
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
        self._entities: Final = Entities(self._settings)
        self._clock: Final = SystemClock() if clock is None else clock

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of servicebus://key_name:key@namespace/?option=value; the options are those of the settings."""
        return cls(settings=ServiceBusSettings.from_url(url))

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
        if facts.needs_session:
            raise SetupError(f"{self._settings}: {subscription} needs sessions, which this transport does not consume")
        return ServiceBusConsumer(self._settings, subscription, facts, self._clock)

    def producer(self) -> ServiceBusProducer:
        """A producer, which connects when it first sends."""
        return ServiceBusProducer(self._settings, self.capabilities, self._clock)
