"""Find, create if allowed, and check the streams and durable consumers that subscriptions and publications need."""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import nats.errors
import nats.js.errors
from nats.js import api

from pump.duration import seconds
from pump.errors import ConfigurationError, SetupError, TransportError
from pump.subscription import Missing, Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transports.nats.connection import NatsConnection, error_text, log
from pump.transports.nats.subjects import (
    DEFAULT_DEAD_LETTER_SUBJECT,
    check_subject,
    covers,
    dead_letter_subjects,
    escape_name,
    overlap,
)
from pump.transports.nats.subscription import NatsSubscription

LEASE_SECONDS: Final = 30.0
"""The lease if neither the subscription nor the durable has one."""
UNLIMITED: Final = -1
UPDATES: Final = 20
UPDATE_PAUSE_SECONDS: Final = 0.1
"""Much longer than the time that another process needs between reading and writing a stream's configuration."""
NAME_IN_USE: Final = 10058


def destinations_of(subscription: Subscription) -> Destinations:
    """The subscription's names, unchecked: they may be patterns, so `StreamSetup` checks who receives dead letters."""
    return Destinations.of(subscription, DEFAULT_DEAD_LETTER_SUBJECT, checked=False)


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """The durable that a subscription asks for, with the defaults filled in."""

    subscription: Subscription
    destinations: Destinations
    """`dead_letter` and `invalid` may be patterns with the rejected message's subject in them."""
    subject: str
    """"" if the subscription is bound to a stream and a consumer that somebody else made."""
    stream: str
    """"" if the subject decides which stream it is."""
    name: str
    missing: Missing
    """What to do if the durable does not exist."""

    @classmethod
    def of(cls, subscription: Subscription, stream: str = "") -> "DurableSpec":
        """Read a subscription. `stream` is the transport's stream for all subjects, or ""."""
        destinations = destinations_of(subscription)
        if isinstance(subscription, NatsSubscription) and subscription.consumer:
            missing: Missing = "validate" if subscription.missing == "create" else subscription.missing
            return cls(subscription, destinations, "", subscription.stream, subscription.consumer, missing)
        subject, name = check_subject(destinations.topic, wildcards=True), escape_name(destinations.channel)
        return cls(subscription, destinations, subject, stream, name, subscription.missing)

    @property
    def lease(self) -> float | None:
        """The lease that the subscription asks for, in seconds."""
        return None if self.subscription.lease is None else seconds(self.subscription.lease)


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable consumer as it is on the server."""

    stream: str
    name: str
    subjects: tuple[str, ...]
    """The subjects that it receives."""
    policy: str
    ack_wait: float
    backoff: tuple[float, ...]
    max_deliver: int | None
    """None: the server never gives a message up."""
    max_ack_pending: int
    keeps_all: bool
    """Whether the stream keeps settled messages."""
    longest_request: float | None = None
    """In seconds; the server refuses a longer pull request."""
    largest_request: int | None = None
    """In messages; the server refuses a larger pull request."""
    is_ours: bool = False
    """Whether its subscription may create and change it."""

    @classmethod
    def of(
        cls, info: api.ConsumerInfo, stream: api.StreamConfig, settings: Mapping[str, Any], *, is_ours: bool
    ) -> "Durable":
        """Read the server's data of a consumer and of its stream. `settings` has those that nats-py leaves out."""
        config = info.config
        filters = tuple(config.filter_subjects or ()) or tuple(filter(None, [config.filter_subject]))
        return cls(
            stream=info.stream_name,
            name=info.name,
            subjects=filters or tuple(stream.subjects or ()),
            policy=str(getattr(config.ack_policy, "value", config.ack_policy) or "none"),
            ack_wait=config.ack_wait or LEASE_SECONDS,
            backoff=tuple(config.backoff or ()),
            max_deliver=config.max_deliver if config.max_deliver and config.max_deliver > 0 else None,
            max_ack_pending=config.max_ack_pending or 0,
            keeps_all=stream.retention in {None, api.RetentionPolicy.LIMITS, "limits"},
            longest_request=settings.get("max_expires", 0) / 1e9 or None,
            largest_request=settings.get("max_batch") or None,
            is_ours=is_ours,
        )

    @property
    def acknowledges(self) -> bool:
        """Whether the server waits for acknowledgements at all."""
        return self.policy != "none"

    def lease(self, deliveries: int) -> float:
        """The lease of a delivery in seconds; a back-off overrides ack_wait."""
        return self.backoff[min(deliveries, len(self.backoff)) - 1] if self.backoff else self.ack_wait


class StreamSetup:
    """Finds and creates streams and durables. SetupError names what is missing and may not be created."""

    def __init__(
        self, connection: NatsConnection, *, stream: str = "", template: api.StreamConfig | None = None
    ) -> None:
        self._connection: Final = connection
        self._js: Final = connection.js
        self._stream: Final = stream
        """The stream for all subjects that no stream takes yet; "": a new stream for each of them."""
        self._template: Final = template or api.StreamConfig()

    async def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate the streams and durables, as each subscription and publication says."""
        try:
            await self._check_jetstream()
            for subscription in subscriptions:
                if subscription.missing != "assume":
                    await self.bind(subscription, warn=True)
            for publication in publications:
                topic = check_subject(publication.destination)
                if publication.missing != "assume":
                    await self._streams_for(topic, publication.missing)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"preparing {self._connection.address} failed: {error_text(error)}") from error

    async def bind(self, subscription: Subscription, *, warn: bool = False) -> Durable:
        """The subscription's durable, created if that is allowed; SetupError if it is missing."""
        spec = DurableSpec.of(subscription, self._stream)
        stream = await self._stream_of(spec)
        info = await self._info(stream, spec.name)
        if info is None:
            info = await self._create_durable(spec, stream)
        durable = await self._checked(spec, info)
        if warn:
            for text in _warnings(spec, durable):
                log.warning("channel %s: %s", spec.destinations.channel, text)
        if spec.missing != "assume":
            await self._prepare_dead_letters(spec, durable)
        return durable

    async def make_dead_letters_again(self, subscription: Subscription, durable: Durable) -> None:
        """Create the streams for dead letters again that were deleted; SetupError if that is not possible."""
        try:
            await self._prepare_dead_letters(DurableSpec.of(subscription, self._stream), durable)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"creating a stream for dead letters failed: {error_text(error)}") from error

    # -- streams

    async def _check_jetstream(self) -> None:
        try:
            await self._js.account_info()
        except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError):
            raise SetupError(f"the NATS server at {self._connection.address} runs without JetStream") from None
        except nats.js.errors.APIError as error:
            raise SetupError(
                f"this account may not use JetStream at {self._connection.address}: {error_text(error)}"
            ) from None

    async def _stream_of(self, spec: DurableSpec) -> str:
        if spec.stream and not spec.subject:
            try:
                await self._js.stream_info(spec.stream)
            except nats.js.errors.NotFoundError:
                raise SetupError(
                    f"there is no stream {spec.stream!r} at {self._connection.address}, so its consumer {spec.name!r} "
                    "is missing too"
                ) from None
            except ValueError as error:
                raise ConfigurationError(f"{spec.stream!r} cannot be the name of a stream: {error}") from None
            return spec.stream
        why = f", so there is no consumer {spec.name!r} (channel {spec.destinations.channel})"
        found = await self._streams_for(spec.subject, spec.missing, why)
        if len(found) > 1:
            raise SetupError(
                f"several streams take {spec.subject!r} ({', '.join(found)}), and the consumer {spec.name!r} can have "
                "only one of them: NatsSubscription(stream=…, consumer=…) chooses one"
            )
        return found[0]

    async def _streams_taking(self, subject: str) -> list[str]:
        answer = await self._connection.request("STREAM.NAMES", {"subject": subject})
        return list(answer.get("streams") or ())

    async def _streams_for(self, subject: str, missing: Missing, why: str = "", *, own: bool = False) -> list[str]:
        """The streams that take a subject. If there is none, create one if that is allowed; else SetupError."""
        found = await self._streams_taking(subject)
        if not found and missing != "create":
            raise SetupError(f"no stream takes {subject!r}{why}, and missing={missing!r} creates none")
        return found or [await self._create(subject, own=own)]

    async def _create(self, subject: str, *, own: bool = False) -> str:
        """Create a stream for a subject, or add the subject to the transport's one stream, unless `own` is true."""
        name = escape_name(subject) if own or not self._stream else self._stream
        template = self._template
        if own:  # dead letters stay until somebody removes them, so the template's limits and retention are left out
            template = api.StreamConfig(num_replicas=template.num_replicas, placement=template.placement)
        config = replace(template, name=name, subjects=[subject])
        try:
            await self._js.add_stream(config)
        except nats.js.errors.APIError as error:
            for taken in await self._streams_taking(subject):  # another process has created a stream meanwhile
                return taken
            if error.err_code == NAME_IN_USE and name == self._stream:
                return await self._add_subject(name, subject)
            _raise_not_created(f"the stream {name!r} for {subject!r}", error)
        return name

    async def _add_subject(self, name: str, subject: str) -> str:
        """Have an existing stream take one more subject.

        Another process that does the same at the same time may overwrite this change. So look again afterwards.
        """
        for _ in range(UPDATES):
            config = (await self._js.stream_info(name)).config
            subjects = [each for each in config.subjects or () if not covers(subject, each)]
            try:
                await self._js.update_stream(replace(config, subjects=[*subjects, subject]))
            except nats.js.errors.APIError as error:
                _raise_not_created(f"the subject {subject!r} of the stream {name!r}", error)
            await asyncio.sleep(random.uniform(0.5, 1.5) * UPDATE_PAUSE_SECONDS)  # noqa: S311 - it keeps no secret
            if name in await self._streams_taking(subject):
                return name
        raise TransportError(f"the stream {name!r} does not keep the subject {subject!r}: another process removes it")

    # -- durables

    async def _info(self, stream: str, durable: str) -> api.ConsumerInfo | None:
        try:
            info: api.ConsumerInfo = await self._js.consumer_info(stream, durable)
        except nats.js.errors.NotFoundError:
            return None
        return info

    async def _create_durable(self, spec: DurableSpec, stream: str) -> api.ConsumerInfo:
        if spec.missing != "create":
            raise SetupError(
                f"the stream {stream!r} has no consumer {spec.name!r} (channel {spec.destinations.channel}), and "
                f"missing={spec.missing!r} creates none"
            )
        config = api.ConsumerConfig(
            name=spec.name,
            durable_name=spec.name,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=spec.lease or LEASE_SECONDS,
            # The pump counts attempts. With a limit of its own, the server would stop delivering the message.
            max_deliver=UNLIMITED,
            # Pull requests already limit the messages in hand. A limit here would count deferred messages too, and they
            # would stop all others. An ordered channel needs that: it may have only one message in hand.
            max_ack_pending=1 if spec.subscription.ordered else UNLIMITED,
            filter_subject=spec.subject,
        )
        try:
            return await self._js.add_consumer(stream, config)
        except nats.js.errors.APIError as error:
            info = await self._info(stream, spec.name)  # another process may have created it meanwhile
            if info is None:
                _raise_not_created(f"the consumer {spec.name!r} of the stream {stream!r}", error)
            return info

    async def _checked(self, spec: DurableSpec, info: api.ConsumerInfo) -> Durable:
        if info.config.deliver_subject:
            raise SetupError(
                f"the consumer {info.name!r} of the stream {info.stream_name!r} is a push consumer: a pump pulls"
            )
        known = await self._connection.request(f"CONSUMER.INFO.{info.stream_name}.{info.name}", {})
        stream = (await self._js.stream_info(info.stream_name)).config
        durable = Durable.of(info, stream, known["config"], is_ours=spec.missing == "create")
        if spec.subject and not any(overlap(spec.subject, each) for each in durable.subjects):
            raise SetupError(
                f"the consumer {durable.name!r} of the stream {durable.stream!r} receives "
                f"{', '.join(durable.subjects)}, not {spec.subject!r}: give the channel another name"
            )
        return durable

    # -- dead letters

    async def _prepare_dead_letters(self, spec: DurableSpec, durable: Durable) -> None:
        channel, missing = spec.destinations.channel, spec.subscription.missing
        for subject in dead_letter_subjects(spec.destinations.dead_letters, durable.subjects):
            received = [each for each in durable.subjects if overlap(each, subject)]
            found = await self._streams_taking(subject)
            if received and (durable.stream in found or not found):
                raise ConfigurationError(
                    f"channel {channel} would receive its own dead letters: the consumer {durable.name!r} "
                    f"receives {received[0]!r}, which includes {subject!r}. Give dead_letter= another subject"
                )
            why = f", the dead letters of channel {channel}"
            for name in await self._streams_for(subject, missing, why, own=True):
                info = await self._js.stream_info(name)
                if info.config.retention == api.RetentionPolicy.INTEREST and not info.state.consumer_count:
                    raise SetupError(
                        f"the stream {name!r} takes {subject!r}{why}, and would drop them: it keeps a message only "
                        "while a consumer waits for it, and it has no consumer"
                    )


def _raise_not_created(what: str, error: nats.js.errors.APIError) -> NoReturn:
    """Raise TransportError if the server cannot create it now, SetupError if it refuses to."""
    if error.code is not None and error.code >= 500:  # noqa: PLR2004 - as in HTTP
        raise TransportError(f"{what} could not be created: {error_text(error)}") from error
    raise SetupError(f"{what} cannot be created: {error_text(error)}") from None


def _warnings(spec: DurableSpec, durable: Durable) -> Iterable[str]:
    name = f"the consumer {durable.name!r} of the stream {durable.stream!r}"
    if durable.policy != "explicit":
        yield (
            f"{name} has the acknowledgement policy {durable.policy!r}, not 'explicit': "
            + (
                "the server counts every message as done when it has sent it, and redelivers none"
                if durable.policy == "none"
                else "an acknowledgement settles all earlier messages too, whatever has become of them"
            )
        )
    if durable.max_deliver is not None:
        yield (
            f"{name} gives a message up after {durable.max_deliver} deliveries (max_deliver); before that, the pump "
            "holds the message. What the server still gives up, for instance after crashes, becomes a dead letter"
        )
    if spec.lease is not None and not durable.backoff and abs(spec.lease - durable.ack_wait) > 1e-6:  # noqa: PLR2004 - JSON rounds
        yield f"{name} has an ack_wait of {durable.ack_wait:g} s, which counts instead of the lease of {spec.lease:g} s"
    if spec.subscription.ordered and durable.max_ack_pending != 1:
        yield f"{name} is not ordered: it sends the next message while one is out. It needs max_ack_pending=1"
