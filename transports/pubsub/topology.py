"""Creates or validates the topics and subscriptions of a channel at Pub/Sub."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pump.duration import seconds
from pump.errors import SetupError
from pump.subscription import Missing as OnMissing
from pump.subscription import Publication, Subscription
from pump.telemetry import log
from pump.transport_kit.destinations import Destinations
from pump.transports.pubsub.connection import (
    PUBSUB,
    PubSubConnection,
    PubSubDenied,
    PubSubExists,
    PubSubMissing,
    PubSubRefused,
)
from pump.transports.pubsub.names import PubSubNames, channel_name, destinations_of, topic_name
from pump.transports.pubsub.settings import PubSubSettings

KEPT_SECONDS: Final = 31 * 86_400
"""The longest time that Pub/Sub keeps unacknowledged messages. Its default, a week, is short for dead letters."""
WEEK_SECONDS: Final = 7 * 86_400
"""The longest time that Google's emulator allows."""
ASSUMED_DEADLINE: Final = 10.0
"""The deadline of a subscription that the credentials may not read: Pub/Sub's default."""
GONE_TOPIC: Final = "_deleted-topic_"


class ChannelFacts(NamedTuple):
    """What a consumer must know about its subscription at Pub/Sub."""

    deadline: float = ASSUMED_DEADLINE
    """How long a delivery belongs to its consumer without being extended, in seconds."""
    limit: int | None = None
    """The deliveries after which Pub/Sub itself makes a dead letter."""
    exactly_once: bool = False
    retry_deadline: float = ASSUMED_DEADLINE
    """The same for the retry subscription."""
    retry_kept: float = WEEK_SECONDS
    """How long the retry subscription keeps a copy, in seconds."""


class PubSubTopology:
    """Creates and validates, over one connection."""

    def __init__(self, connection: PubSubConnection, settings: PubSubSettings) -> None:
        self._connection: Final = connection
        self._settings: Final = settings

    def ensure_channel(self, subscription: Subscription) -> ChannelFacts:
        """Create or validate everything that a subscription needs; SetupError if that fails."""
        destinations = destinations_of(subscription)
        names = PubSubNames.of(self._settings.project, destinations)
        for each in destinations.dead_letters:
            self._ensure_dead_letters(each, subscription.missing)
        self._ensure_retry(names, subscription)
        facts = self._ensure_main(names, destinations, subscription)
        try:
            retry = self._get_subscription(names.retry)
        except (PubSubMissing, PubSubDenied):
            return facts
        return facts._replace(
            retry_deadline=float(retry.ack_deadline_seconds or ASSUMED_DEADLINE),
            retry_kept=float(retry.message_retention_duration.seconds or WEEK_SECONDS),
        )

    def ensure_publication(self, publication: Publication) -> None:
        """Create or validate the topic of a publication."""
        if publication.missing != "assume":
            self._ensure_topic(publication.destination, publication.missing)

    def _ensure_main(self, names: PubSubNames, destinations: Destinations, subscription: Subscription) -> ChannelFacts:
        if subscription.missing == "create":
            self._ensure_topic(destinations.topic, "create")
            self._create_subscription(self._config(names, destinations, subscription))
        try:
            found = self._get_subscription(names.channel)
        except PubSubMissing:
            if subscription.missing == "assume":
                return ChannelFacts()  # receiving will report it as an outage: it may be created later
            raise self._absent(f"subscription {destinations.channel!r} of {destinations.topic!r}") from None
        except PubSubDenied:
            return ChannelFacts()  # credentials that may only consume cannot look; an error shows when it is used
        self._check(found, names, destinations)
        policy = found.dead_letter_policy
        if subscription.ordered and not found.enable_message_ordering:
            log.warning(
                "pubsub: channel %s has ordered=True, but its subscription has no message ordering: order is not kept",
                destinations.channel,
            )
        return ChannelFacts(
            float(found.ack_deadline_seconds or ASSUMED_DEADLINE),
            (policy.max_delivery_attempts or 5) if policy.dead_letter_topic else None,
            found.enable_exactly_once_delivery,
        )

    def _check(self, found: Any, names: PubSubNames, destinations: Destinations) -> None:  # noqa: ANN401 - as protobuf has it
        name = f"pubsub: subscription {destinations.channel!r}"
        if found.topic == GONE_TOPIC or found.detached:
            raise SetupError(
                f"{name} has lost its topic and receives nothing: delete the subscription, and create it again"
            )
        if found.topic != names.topic:
            raise SetupError(f"{name} belongs to {found.topic}, not to {names.topic}: use another name for the channel")
        exports = ("bigquery_config", "cloud_storage_config")
        if found.push_config.push_endpoint or any(found.HasField(each) for each in exports):
            raise SetupError(f"{name} pushes its messages elsewhere: nothing can be pulled from it")
        if found.filter:
            log.info("%s has a filter: what does not match is acknowledged by Pub/Sub itself", name)

    def _config(self, names: PubSubNames, destinations: Destinations, subscription: Subscription) -> Any:  # noqa: ANN401 - as protobuf has it
        settings = self._settings
        lease = settings.lease_of(subscription.lease)
        config = PUBSUB["Subscription"](
            name=names.channel,
            topic=names.topic,
            ack_deadline_seconds=round(lease),
            enable_message_ordering=True,
            enable_exactly_once_delivery=settings.exactly_once,
            expiration_policy=PUBSUB["ExpirationPolicy"](),
        )
        if settings.delivery_limit is not None and destinations.dead_letter is not None:
            policy = PUBSUB["DeadLetterPolicy"](
                dead_letter_topic=topic_name(settings.project, destinations.dead_letter),
                max_delivery_attempts=settings.delivery_limit,
            )
            config.dead_letter_policy.CopyFrom(policy)
        if settings.retry_policy is not None:
            first, longest = map(seconds, settings.retry_policy)
            config.retry_policy.minimum_backoff.FromMilliseconds(round(first * 1000))
            config.retry_policy.maximum_backoff.FromMilliseconds(round(longest * 1000))
        return config

    def _ensure_retry(self, names: PubSubNames, subscription: Subscription) -> None:
        lease = self._settings.lease_of(subscription.lease)
        if subscription.missing == "create":
            self._create_topic(names.retry_topic)
            self._create_keeping(names.retry, names.retry_topic, lease)
        elif subscription.missing == "validate":
            self._validate(names.retry, f"subscription {names.retry.rpartition('/')[2]!r} for messages that come again")

    def _ensure_dead_letters(self, name: str, missing: OnMissing) -> None:
        """The topic, and a subscription of the same name that keeps the dead letters; it must not have a filter."""
        project = self._settings.project
        topic, channel = topic_name(project, name), channel_name(project, name)
        if missing == "create":
            self._create_topic(topic)
            self._create_keeping(channel, topic, self._settings.lease_of(None))
        elif missing == "validate":
            self._validate(channel, f"subscription {name!r}, which keeps dead letters,")
        if missing == "assume":
            return
        with suppress(PubSubDenied, PubSubMissing):
            found = self._get_subscription(channel)
            if found.topic != topic:
                raise SetupError(
                    f"pubsub: subscription {name!r} must keep the dead letters of {topic}, but belongs to {found.topic}"
                )
            if found.filter:
                raise SetupError(
                    f"pubsub: subscription {name!r} has a filter, which would drop dead letters: create it without one"
                )
            ttl = found.expiration_policy.ttl.seconds
            if ttl or not found.HasField("expiration_policy"):
                text = "pubsub: subscription %r expires when nobody uses it for %g days, and its dead letters with it"
                log.warning(text, name, (ttl or KEPT_SECONDS) / 86_400)

    def _create_keeping(self, name: str, topic: str, lease: float) -> None:
        """Create a subscription that never expires and keeps messages as long as possible."""
        config = PUBSUB["Subscription"](
            name=name,
            topic=topic,
            ack_deadline_seconds=round(lease),
            enable_message_ordering=True,
            expiration_policy=PUBSUB["ExpirationPolicy"](),
        )
        config.message_retention_duration.FromSeconds(KEPT_SECONDS)
        try:
            self._create_subscription(config)
        except PubSubRefused as error:
            if "retention" not in str(error):
                raise
            log.info("pubsub: %s keeps messages only for a week: this server does not allow longer", name)
            config.message_retention_duration.FromSeconds(WEEK_SECONDS)
            self._create_subscription(config)

    def _ensure_topic(self, name: str, missing: OnMissing) -> None:
        topic = topic_name(self._settings.project, name)
        if missing == "create":
            self._create_topic(topic)
        else:
            try:
                self._connection.call("GetTopic", PUBSUB["GetTopicRequest"](topic=topic))
            except PubSubMissing:
                raise self._absent(f"topic {name!r}") from None

    def _validate(self, subscription: str, what: str) -> None:
        try:
            self._get_subscription(subscription)
        except PubSubMissing:
            raise self._absent(what) from None
        except PubSubDenied:
            log.debug("pubsub: %s cannot be looked at", what)

    def _absent(self, what: str) -> SetupError:
        return SetupError(f"{self._settings}: there is no {what}, and missing='validate' does not create it")

    def _get_subscription(self, name: str) -> Any:  # noqa: ANN401 - as protobuf has it
        return self._connection.call("GetSubscription", PUBSUB["GetSubscriptionRequest"](subscription=name))

    def _create_topic(self, name: str) -> None:
        get = PUBSUB["GetTopicRequest"](topic=name)
        self._create("GetTopic", get, lambda: self._connection.call("CreateTopic", PUBSUB["Topic"](name=name)))

    def _create_subscription(self, config: Any) -> None:  # noqa: ANN401 - as protobuf has it
        get = PUBSUB["GetSubscriptionRequest"](subscription=config.name)
        self._create("GetSubscription", get, lambda: self._connection.call("CreateSubscription", config))

    def _create(self, get: str, request: Any, create: Callable[[], object]) -> None:  # noqa: ANN401 - as protobuf has it
        """Look first: credentials that may not create are enough if it exists."""
        try:
            self._connection.call(get, request)
        except (PubSubMissing, PubSubDenied):
            with suppress(PubSubExists):
                create()
