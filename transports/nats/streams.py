"""The streams and durable consumers that subscriptions and publications need: found, made where asked, looked at."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import nats.errors
import nats.js.errors
from nats.js import api

from pump.duration import seconds
from pump.errors import ConfigurationError, SetupError, TransportError
from pump.subscription import DEFAULT_DEAD_LETTER, Missing, Publication, Subscription
from pump.transports.nats.connection import Link, log, said
from pump.transports.nats.subjects import DEFAULT_GRAVE, checked, covers, graves, name_of, overlap

LEASE_SECONDS: Final = 30.0
"""How long a delivery is its consumer's, where neither subscription nor durable says otherwise."""
UNLIMITED: Final = -1
WIDENINGS: Final = 20
SETTLED_SECONDS: Final = 0.1
"""Much longer than it takes to read what a stream is like and to write it anew."""
NAME_IN_USE: Final = 10058
OVERLAPS: Final = 10065


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one subscription says of where it consumes from, with the defaults filled in."""

    topic: str
    stream: str
    """"" where the topic tells it."""
    durable: str
    channel: str
    missing: Missing
    """What to do about a durable that is not there,"""
    graves: Missing
    """and about a place for dead letters."""
    ordered: bool
    lease: float | None
    dead_letter: str | None
    """May have the message's subject in it; see `grave`."""
    invalid: str | None
    terms: bool
    """Whether a message that cannot be decoded is ended without a dead letter."""


def wanted(subscription: Subscription, stream: str = "") -> Wanted:
    """Read a subscription. A bound one names its stream and its durable, which then are somebody else's."""
    topic = subscription.topic or getattr(subscription.request, "__name__", "")
    bound = str(getattr(subscription, "stream", "") or "")
    channel = str(getattr(subscription, "consumer", "") or "") if bound else subscription.channel or topic
    by_default = subscription.dead_letter == DEFAULT_DEAD_LETTER
    dead_letter = DEFAULT_GRAVE if by_default else subscription.dead_letter
    return Wanted(
        topic="" if bound else checked(topic, wildcards=True),
        stream=bound or stream,
        durable=channel if bound else name_of(channel),
        channel=channel,
        missing="validate" if bound and subscription.missing == "create" else subscription.missing,
        graves=subscription.missing,
        ordered=subscription.ordered,
        lease=None if subscription.lease is None else seconds(subscription.lease),
        dead_letter=dead_letter,
        invalid=dead_letter if subscription.invalid is None else subscription.invalid,
        terms=subscription.on_undecodable == "term",
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """One durable consumer, as the server has it."""

    stream: str
    durable: str
    subjects: tuple[str, ...]
    """What it receives."""
    policy: str
    ack_wait: float
    backoff: tuple[float, ...]
    max_deliver: int | None
    """None is never given up by the server."""
    max_ack_pending: int
    keeps_all: bool
    """Whether the stream keeps what is settled."""

    @property
    def acknowledges(self) -> bool:
        """Whether the server waits for acknowledgements at all."""
        return self.policy != "none"

    def lease(self, deliveries: int) -> float:
        """How long a delivery is ours: where there is a back-off, the server goes by that."""
        return self.backoff[min(deliveries, len(self.backoff)) - 1] if self.backoff else self.ack_wait


class Streams:
    """What one link may ask of the server's streams. SetupError says what is not there."""

    def __init__(self, link: Link, *, stream: str = "", template: api.StreamConfig | None = None) -> None:
        self._link: Final = link
        self._js: Final = link.js
        self._stream: Final = stream
        """Where everything goes that no stream takes yet; "" is a stream for each topic."""
        self._template: Final = template or api.StreamConfig()

    async def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says."""
        try:
            await self._must_have_jetstream()
            for subscription in subscriptions:
                if subscription.missing != "assume":
                    await self.bind(subscription, tell=True)
            for publication in publications:
                await self._prepare_topic(publication.destination, publication.missing)
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"preparing {self._link.address} failed: {said(error)}") from error

    async def bind(self, subscription: Subscription, *, tell: bool = False) -> Binding:
        """The subscription's durable, made where it may be made; a SetupError names what is missing."""
        want = wanted(subscription, self._stream)
        stream = await self._stream_for(want)
        info = await self._info(stream, want.durable)
        if info is None:
            info = await self._missing_durable(want, stream)
        binding = await self._binding(want, info)
        if tell:
            for text in _warnings(want, binding):
                log.warning("channel %s: %s", want.channel, text)
        if want.missing != "assume":
            await self._prepare_graves(want, binding)
        return binding

    # -- streams

    async def _must_have_jetstream(self) -> None:
        try:
            await self._js.account_info()
        except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError):
            raise SetupError(f"the NATS server at {self._link.address} runs without JetStream") from None
        except nats.js.errors.APIError as error:
            raise SetupError(f"JetStream at {self._link.address} is not for this account: {said(error)}") from None

    async def _stream_for(self, want: Wanted) -> str:
        if want.stream and not want.topic:
            return await self._named(want)
        found = await self.taking(want.topic)
        if len(found) > 1:
            raise SetupError(
                f"several streams take {want.topic!r} ({', '.join(found)}), and the consumer {want.durable!r} can have "
                "only one of them: NatsSubscription(stream=…, consumer=…) says which"
            )
        if found:
            return found[0]
        if want.missing != "create":
            raise SetupError(
                f"no stream takes {want.topic!r}, so that there is no consumer {want.durable!r} (channel "
                f"{want.channel}), and missing={want.missing!r} makes none"
            )
        return await self._create(want.topic)

    async def _named(self, want: Wanted) -> str:
        try:
            await self._js.stream_info(want.stream)
        except nats.js.errors.NotFoundError:
            raise SetupError(
                f"there is no stream {want.stream!r} at {self._link.address}, so that its consumer {want.durable!r} is "
                "missing too"
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"the stream {want.stream!r} cannot be: {error}") from None
        return want.stream

    async def taking(self, subject: str) -> list[str]:
        """The names of the streams that take something of this subject."""
        answer = await self._link.ask("STREAM.NAMES", {"subject": subject})
        return list(answer.get("streams") or ())

    async def _prepare_topic(self, topic: str, missing: Missing) -> None:
        checked(topic)
        if missing == "assume" or await self.taking(topic):
            return
        if missing == "validate":
            raise SetupError(f"no stream takes {topic!r}, and missing='validate' makes none")
        await self._create(topic)

    async def _create(self, subject: str, *, own: bool = False) -> str:
        name = name_of(subject) if own or not self._stream else self._stream
        config = replace(self._template, name=name, subjects=[subject])
        try:
            await self._js.add_stream(config)
        except nats.js.errors.APIError as error:
            for taken in await self.taking(subject):  # somebody else has made one at the same time
                return taken
            if error.err_code == NAME_IN_USE and name == self._stream:
                return await self._widen(name, subject)
            _refused(f"the stream {name!r} for {subject!r}", error)
        return name

    async def _widen(self, name: str, subject: str) -> str:
        """Have an existing stream take one more subject.

        Whoever else does the same at the same time may undo it, having looked before; so look again a little later.
        """
        for _ in range(WIDENINGS):
            config = (await self._js.stream_info(name)).config
            subjects = [each for each in config.subjects or () if not covers(subject, each)]
            try:
                await self._js.update_stream(replace(config, subjects=[*subjects, subject]))
            except nats.js.errors.APIError as error:
                _refused(f"the subject {subject!r} of the stream {name!r}", error)
            await asyncio.sleep(random.uniform(0.5, 1.5) * SETTLED_SECONDS)  # noqa: S311 - it keeps no secret
            if name in await self.taking(subject):
                return name
        raise TransportError(f"the stream {name!r} does not keep the subject {subject!r}: somebody takes it away")

    # -- durables

    async def _info(self, stream: str, durable: str) -> Any:  # noqa: ANN401 - nats-py says nothing of the type
        try:
            return await self._js.consumer_info(stream, durable)
        except nats.js.errors.NotFoundError:
            return None

    async def _missing_durable(self, want: Wanted, stream: str) -> Any:  # noqa: ANN401 - as above
        if want.missing != "create":
            raise SetupError(
                f"the stream {stream!r} has no consumer {want.durable!r} (channel {want.channel}), and "
                f"missing={want.missing!r} makes none"
            )
        config = api.ConsumerConfig(
            name=want.durable,
            durable_name=want.durable,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=want.lease or LEASE_SECONDS,
            # The budget is the pump's: at a limit of its own the server would park the message for ever.
            max_deliver=UNLIMITED,
            # A pull asks for no more than is wanted. A limit would only make deferred messages, which count as
            # pending, stop all others; but for an ordered channel, of which only one message may be out.
            max_ack_pending=1 if want.ordered else UNLIMITED,
            filter_subject=want.topic,
        )
        try:
            return await self._js.add_consumer(stream, config)
        except nats.js.errors.APIError as error:
            info = await self._info(stream, want.durable)  # somebody else may have made it at the same time
            if info is None:
                _refused(f"the consumer {want.durable!r} of the stream {stream!r}", error)
            return info

    async def _binding(self, want: Wanted, info: Any) -> Binding:  # noqa: ANN401 - as above
        config = info.config
        stream = (await self._js.stream_info(info.stream_name)).config
        if config.deliver_subject:
            raise SetupError(
                f"the consumer {info.name!r} of the stream {info.stream_name!r} is a push consumer: a pump pulls"
            )
        filters = tuple(config.filter_subjects or ()) or tuple(filter(None, [config.filter_subject]))
        binding = Binding(
            stream=info.stream_name,
            durable=info.name,
            subjects=filters or tuple(stream.subjects or ()),
            policy=str(getattr(config.ack_policy, "value", config.ack_policy) or "none"),
            ack_wait=config.ack_wait or LEASE_SECONDS,
            backoff=tuple(config.backoff or ()),
            max_deliver=config.max_deliver if config.max_deliver and config.max_deliver > 0 else None,
            max_ack_pending=config.max_ack_pending or 0,
            keeps_all=stream.retention in {None, api.RetentionPolicy.LIMITS, "limits"},
        )
        if want.topic and not any(overlap(want.topic, each) for each in binding.subjects):
            raise SetupError(
                f"the consumer {binding.durable!r} of the stream {binding.stream!r} receives "
                f"{', '.join(binding.subjects)}, not {want.topic!r}: give the channel another name"
            )
        return binding

    # -- dead letters

    async def _prepare_graves(self, want: Wanted, binding: Binding) -> None:
        patterns = dict.fromkeys(each for each in (want.dead_letter, want.invalid) if each is not None)
        subjects = dict.fromkeys(each for pattern in patterns for each in graves(pattern, binding.subjects))
        for subject in subjects:
            received = [each for each in binding.subjects if overlap(each, subject)]
            found = await self.taking(subject)
            if received and (binding.stream in found or not found):
                raise ConfigurationError(
                    f"channel {want.channel} would receive its own dead letters: the consumer {binding.durable!r} "
                    f"receives {received[0]!r}, which takes in {subject!r}. Say dead_letter=, another subject"
                )
            if not found and want.graves == "create":
                await self._create(subject, own=True)
            elif not found:
                raise SetupError(
                    f"no stream takes {subject!r}, the dead letters of channel {want.channel}, and "
                    f"missing={want.graves!r} makes none"
                )
            else:
                await self._must_keep(found, subject, want.channel)

    async def _must_keep(self, streams: Iterable[str], subject: str, channel: str) -> None:
        for name in streams:
            info = await self._js.stream_info(name)
            if info.config.retention == api.RetentionPolicy.INTEREST and not info.state.consumer_count:
                raise SetupError(
                    f"the stream {name!r} takes {subject!r}, the dead letters of channel {channel}, and would drop "
                    "them: it keeps only what some consumer waits for, and there is none"
                )


def _refused(what: str, error: nats.js.errors.APIError) -> NoReturn:
    """The server does not make it. Where it could not at present, trying again may help."""
    if error.code is not None and error.code >= 500:  # noqa: PLR2004 - as in HTTP
        raise TransportError(f"{what} could not be made: {said(error)}") from error
    raise SetupError(f"{what} cannot be made: {said(error)}") from None


def _warnings(want: Wanted, binding: Binding) -> Iterable[str]:
    name = f"the consumer {binding.durable!r} of the stream {binding.stream!r}"
    if binding.policy != "explicit":
        yield (
            f"{name} has the acknowledgement policy {binding.policy!r}, not 'explicit': "
            + (
                "the server takes every message for done when it has sent it, and redelivers none"
                if binding.policy == "none"
                else "an acknowledgement settles all earlier messages too, whatever has become of them"
            )
        )
    if binding.max_deliver is not None:
        yield (
            f"{name} gives a message up after {binding.max_deliver} deliveries (max_deliver); messages are held here "
            "before that, and what is given up all the same becomes a dead letter if a pump is connected at that moment"
        )
    if want.lease is not None and not binding.backoff and abs(want.lease - binding.ack_wait) > 1e-6:  # noqa: PLR2004 - as JSON has it
        yield f"{name} has an ack_wait of {binding.ack_wait:g} s, which holds, not the lease of {want.lease:g} s"
    if want.ordered and binding.max_ack_pending != 1:
        yield f"{name} is not ordered: it sends the next message while one is out. It needs max_ack_pending=1"
