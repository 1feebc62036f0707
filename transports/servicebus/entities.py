"""Creates, validates and reads queues, topics, and subscriptions that forward."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PumpError, SetupError
from pump.request import Event
from pump.subscription import Publication, Subscription
from pump.telemetry import log
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.preparation import in_turn
from pump.transports.servicebus.errors import set_up
from pump.transports.servicebus.settings import LONGEST_LOCK, ServiceBusSettings

DEAD: Final = "/$deadletterqueue"
"""The end of the name under which Azure keeps the dead letters of a queue."""
ASSUMED_LIMIT: Final = 10
"""The assumed max delivery count of a queue that cannot be read: Azure's default."""
LONGEST_NAME: Final = 260
LONGEST_SUBSCRIPTION: Final = 50


@dataclass(frozen=True, slots=True)
class Facts:
    """What a consumer must know about its queue."""

    max_delivery_count: int | None = ASSUMED_LIMIT
    """None for dead letters: they have no limit, and are never given up again."""
    lock_seconds: float | None = None
    """None if unknown; each message says until when it is locked."""
    needs_session: bool | None = None
    """None if unknown."""


class _WithoutTLS(RequestsTransport):  # type: ignore[misc, unused-ignore]
    """For an emulator, whose management speaks plain HTTP; the vendor's client always says https."""

    def send(self, request: Any, **options: Any) -> Any:  # noqa: ANN401 - as the base class has it
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class Entities:
    """Creates and validates entities, blocking: while a dispatcher starts, and when a consumer is opened."""

    def __init__(self, settings: ServiceBusSettings, *, sessions: bool = False) -> None:
        self._settings: Final = settings
        self._sessions: Final = sessions
        """Whether queues that are made require sessions."""

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each needs; SetupError names what is missing."""
        things = list(in_turn(subscriptions, publications))
        if not things:
            return
        with self._admin() as admin:
            for thing in things:
                if isinstance(thing, Subscription):
                    self._prepare_channel(admin, thing)
                else:
                    self._prepare_topic(admin, thing)

    def facts(self, subscription: Subscription) -> Facts:
        """What is known about the channel's queue; with missing="assume", no permission to read it is needed."""
        channel = channel_names(subscription).channel
        if channel.lower().endswith(DEAD):
            return Facts(None, needs_session=False)
        try:
            with self._admin() as admin, set_up(self._settings, f"reading the queue {channel!r}"):
                found = _queue(admin, channel)
                if found is None and subscription.missing == "create":  # somebody deleted it after it was prepared
                    log.warning("servicebus: the queue %s is missing, and is made again", channel)
                    self._prepare_channel(admin, subscription)
                    found = _queue(admin, channel)
        except PumpError as error:
            if subscription.missing != "assume":
                raise
            log.info(
                "servicebus: the max delivery count of %s cannot be read, and is assumed to be %d: %s",
                channel,
                ASSUMED_LIMIT,
                error,
            )
            return Facts()
        if found is None:
            return Facts()
        lock = found.lock_duration
        return Facts(
            found.max_delivery_count or ASSUMED_LIMIT,
            lock.total_seconds() if isinstance(lock, timedelta) else None,
            bool(found.requires_session),
        )

    def _admin(self) -> ServiceBusAdministrationClient:
        settings = self._settings
        wait = seconds(settings.timeout)
        options: dict[str, Any] = {"connection_timeout": wait, "read_timeout": wait, "retry_total": 0}
        if settings.credential is not None:
            return ServiceBusAdministrationClient(settings.namespace, settings.credential, **options)  # type: ignore[arg-type]
        if settings.emulator:
            options["transport"] = _WithoutTLS(**options)
        return ServiceBusAdministrationClient.from_connection_string(
            settings.connection_string(management=True), **options
        )

    def _prepare_channel(self, admin: ServiceBusAdministrationClient, subscription: Subscription) -> None:
        names = channel_names(subscription)
        if subscription.missing == "create":
            self._make_channel(admin, names, subscription.lease)
            return
        what = f"the channel {names.channel!r} of {names.topic!r}"
        queues = dict.fromkeys(_origin(name) for name in (names.channel, *names.dead_letters))
        with set_up(self._settings, f"validating {what}"):
            missing = [name for name in queues if _queue(admin, name) is None]
            if _forwards(names) and not self._subscribed(admin, names):
                missing.append(f"{names.topic}/Subscriptions/{subscription_name(names.channel)}")
        if missing:
            raise SetupError(
                f"{self._settings}: {what}: there is no {missing[0]!r}, and missing='validate' does not create it"
            )

    def _make_channel(self, admin: ServiceBusAdministrationClient, names: Destinations, lease: Duration | None) -> None:
        for name in dict.fromkeys((names.channel, *names.dead_letters)):
            if _origin(name) == name:
                self._make_queue(admin, name, lease if name == names.channel else None)
        if not _forwards(names):
            return
        self._make_topic(
            admin,
            names.topic,
            f"the channel {names.channel!r} needs a topic of that name, since a queue has only one channel",
        )
        with set_up(self._settings, f"creating a subscription of {names.topic!r}"):
            name, limit = subscription_name(names.channel), self._settings.max_delivery_count
            try:
                admin.create_subscription(names.topic, name, forward_to=names.channel, max_delivery_count=limit)
            except ResourceExistsError:
                if not self._subscribed(admin, names):
                    raise

    def _subscribed(self, admin: ServiceBusAdministrationClient, names: Destinations) -> bool:
        """Whether the channel's subscription exists; SetupError if it does not forward to the channel."""
        name = subscription_name(names.channel)
        found = _found(lambda topic: admin.get_subscription(topic, name), names.topic)
        if found is None:
            return False
        target = unquote(urlsplit(found.forward_to or "").path).strip("/")  # Azure gives a URL
        if target.lower() != names.channel.lower():
            does = f"forwards to {target!r}" if target else "forwards to no queue"
            raise SetupError(
                f"{self._settings}: the subscription {f'{names.topic}/Subscriptions/{name}'!r} {does}: "
                f"the channel {names.channel!r} would receive nothing"
            )
        return True

    def _make_queue(self, admin: ServiceBusAdministrationClient, name: str, lease: Duration | None) -> None:
        settings = self._settings
        lock = seconds(settings.lease if lease is None else lease)
        with set_up(settings, f"creating the queue {name!r}"):
            try:
                admin.create_queue(
                    name,
                    lock_duration=timedelta(seconds=min(lock, LONGEST_LOCK)),
                    max_delivery_count=settings.max_delivery_count,
                    requires_duplicate_detection=settings.duplicate_detection,
                    requires_session=self._sessions,
                )
            except ResourceExistsError:
                if _queue(admin, name) is None:
                    raise SetupError(
                        f"{settings}: {name!r} is a topic, and a channel needs a queue: give the channel another name"
                    ) from None

    def _make_topic(self, admin: ServiceBusAdministrationClient, name: str, why: str) -> None:
        with set_up(self._settings, f"creating the topic {name!r}"):
            try:
                admin.create_topic(name, requires_duplicate_detection=self._settings.duplicate_detection)
            except ResourceExistsError:
                if _found(admin.get_topic, name) is None:
                    raise SetupError(f"{self._settings}: {name!r} is a queue, but {why}") from None

    def _prepare_topic(self, admin: ServiceBusAdministrationClient, publication: Publication) -> None:
        name = publication.destination
        with set_up(self._settings, f"looking for the topic {name!r}"):
            if _queue(admin, name) is not None or _found(admin.get_topic, name) is not None:
                return
        if publication.missing == "validate":
            raise SetupError(
                f"{self._settings}: there is no queue or topic {name!r}, and missing='validate' does not create one"
            )
        if issubclass(publication.request, Event):
            self._make_topic(admin, name, "events need a topic of that name")
        else:
            self._make_queue(admin, name, None)


def channel_names(subscription: Subscription) -> Destinations:
    """The names that a subscription uses. By default, Azure keeps the dead letters with the channel's queue."""
    names = Destinations.of(subscription, f"<channel>{DEAD}")
    for name in (names.topic, names.channel, *names.dead_letters):
        if not 0 < len(name) <= LONGEST_NAME:
            raise ConfigurationError(f"servicebus: a name has at most {LONGEST_NAME} characters, not {len(name)}")
    if _origin(names.channel) != names.channel and names.dead_letter == f"{names.channel}{DEAD}":
        raise ConfigurationError(
            f"Subscription {subscription} consumes dead letters: give it a dead_letter of its own, or None"
        )
    return names


def is_dead_letters(name: str) -> bool:
    """Whether a channel is what Azure keeps as the dead letters of a queue."""
    return name.lower().endswith(DEAD)


def _origin(name: str) -> str:
    """The queue's own name, if this is the name of its dead letters."""
    return name[: -len(DEAD)] if name.lower().endswith(DEAD) else name


def _forwards(names: Destinations) -> bool:
    """Whether the channel is a queue that a subscription of its topic forwards to."""
    return names.topic not in {names.channel, _origin(names.channel)}


def subscription_name(channel: str) -> str:
    """The name of the subscription that forwards to a channel: the channel's name, or its end and a digest."""
    name = channel.replace("/", "-")
    if len(name) <= LONGEST_SUBSCRIPTION:
        return name
    digest = hashlib.sha256(channel.lower().encode()).hexdigest()[:8]  # Azure ignores the case of names
    return f"{name[-LONGEST_SUBSCRIPTION + len(digest) + 1 :]}-{digest}"


def _queue(admin: ServiceBusAdministrationClient, name: str) -> QueueProperties | None:
    found: QueueProperties | None = _found(admin.get_queue, name)
    return found


def _found(get: Callable[[str], Any], name: str) -> Any:  # noqa: ANN401 - what the client gives
    """The entity of this name, if it is of this kind. For another kind, the client raises AttributeError."""
    try:
        return get(name)
    except (ResourceNotFoundError, AttributeError):
        return None
