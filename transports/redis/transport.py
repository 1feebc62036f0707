"""Redis: topics on streams, or on lists, with delays and dead letters. docs/redis.md says what is kept where."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import parse_qsl

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError
from pump.message import Message
from pump.subscription import Missing, Publication, Subscription
from pump.telemetry import log
from pump.transports.redis.connection import Command, NotConnected, Reply, Server, Wire, split
from pump.transports.redis.consumer import Layout, Opening, RedisConsumer
from pump.transports.redis.entries import BODY
from pump.transports.redis.lists import ListLayout
from pump.transports.redis.names import Names, Seats
from pump.transports.redis.streams import StreamLayout

__all__ = ["RedisListTransport", "RedisProducer", "RedisTransport", "Server"]

Named = TypeVar("Named")

LEASE: Final = 30.0
"""Seconds for which a delivery is its consumer's alone, unless it is extended."""
LARGEST_BODY: Final = 512 * 1024 * 1024
"""What Redis takes as one value. docs/redis.md says how much less is wise."""
LARGEST_HEADERS: Final = 64 * 1024
AT_ONCE: Final = 500
"""How many messages are sent before their answers are read."""
FOR_EVER: Final = "forever"

_PLACES: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("socket_file", "ca_file", "cert_file", "key_file"), str),
    "timeout": float,
}
_OPTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    **_PLACES,
    **dict.fromkeys(("prefix", "consumer"), str),
    "lease": float,
    "largest_body": int,
}


@cache
def _clock(_place: str) -> Clock:
    """One for each server: a server that does not answer holds up what is timed for it, and nothing else."""
    return SystemClock()


STREAMS: Final = Capabilities(
    system="redis",
    nack="holds",
    blocks="channel",
    requeue="copy",
    counts_deliveries=True,
    carries_attempts=True,
    durable=True,
    durable_attempts=True,
    leases=True,
    delayed_publish=True,
    largest_body=LARGEST_BODY,
    largest_headers=LARGEST_HEADERS,
)
LISTS: Final = replace(STREAMS, counts_deliveries=False, leases=False)


class RedisProducer:
    """Sends to the topics in the messages' headers, on a connection of its own. From any thread."""

    def __init__(self, layout: Layout, capabilities: Capabilities, wire: Wire) -> None:
        self._layout: Final = layout
        self._capabilities: Final = capabilities
        self._wire: Final = wire
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError says what is known of those that were not confirmed."""
        if self._closed:
            raise PublishError("nothing was sent: the producer is closed", sent=False)
        commands = [self._written(message, delay) for message in messages]
        for start in range(0, len(commands), AT_ONCE):
            self._store(commands[start : start + AT_ONCE], nothing_before=start == 0)

    def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        self._wire.close()

    def _written(self, message: Message, delay: float) -> Command:
        try:
            _check_sizes(message, self._capabilities)
            return self._layout.command(message, delay)
        except (ValueError, ConfigurationError) as error:
            text = f"nothing was sent: message {message.id} cannot be written: {error}"
            raise PublishError(text, sent=False, retriable=False) from error

    def _store(self, commands: Sequence[Command], *, nothing_before: bool) -> None:
        replies: Sequence[Reply] = ()
        try:
            replies = self._wire.ask_all(commands)
        except (NotConnected, SetupError) as error:
            raise _failure(error, sent=False if nothing_before else None) from error
        except PumpError as error:
            raise _failure(error, sent=None) from error
        failures = [reply for reply in replies if isinstance(reply, PumpError)]
        if failures:
            nothing = nothing_before and len(failures) == len(replies)
            raise _failure(failures[0], sent=False if nothing else None) from failures[0]


def _failure(error: PumpError, *, sent: bool | None) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    return PublishError(f"{known}: {error}", sent=sent, retriable=not isinstance(error, SetupError))


def _check_sizes(message: Message, capabilities: Capabilities) -> None:
    headers = sum(len(word.encode()) for pair in message.header.headers.items() for word in pair)
    sizes = (("body", len(message.body), capabilities.largest_body), ("headers", headers, capabilities.largest_headers))
    for what, size, limit in sizes:
        if limit is not None and size > limit:
            raise ValueError(f"its {what} has {size} bytes, and {limit} are allowed")


class _Redis:
    """What both kinds share: how they are made, and how consumers and producers are opened."""

    capabilities: Capabilities
    _layout: Layout
    _schemes: ClassVar[Sequence[str]]
    _options: ClassVar[Mapping[str, Callable[[str], Any]]]

    def __init__(self, server: Server | None, lease: Duration, consumer: str, largest_body: int) -> None:
        _check_lease(lease)
        if not 0 < largest_body <= LARGEST_BODY:
            raise ConfigurationError(f"redis: largest_body is at most {LARGEST_BODY} bytes, not {largest_body}")
        self.server: Final = Server() if server is None else server
        self.capabilities = replace(type(self).capabilities, largest_body=largest_body)
        self._clock: Final = _clock(str(self.server))
        self._lease: Final = seconds(lease)
        self._seats: Final = Seats(consumer)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of redis://user:password@host:port/database?option=value; the constructor has the options."""
        parts = split(url)
        if parts.scheme not in cls._schemes:
            raise ConfigurationError(f"{parts.scheme}:// is not one of {', '.join(cls._schemes)}")
        try:
            given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            raise ConfigurationError("redis: the URL's options are name=value&name=value") from None
        unknown = sorted(set(given) - set(cls._options))
        if unknown:
            raise ConfigurationError(f"redis: URLs take {', '.join(cls._options)}, and not {', '.join(unknown)}")
        options = {name: cls._read(name, text) for name, text in given.items()}
        place = {name: options.pop(name) for name in _PLACES if name in options}
        return cls(Server.from_parts(parts, place), **options)

    @classmethod
    def _read(cls, name: str, text: str) -> Any:  # noqa: ANN401 - as the option's type is
        try:
            return cls._options[name](text)
        except ValueError:
            raise ConfigurationError(f"redis: {name} cannot be {text!r}") from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.server}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""
        named = [(each.missing, Names(each)) for each in subscriptions]
        topics = [(each.missing, each.destination) for each in publications]
        with closing(Wire(self.server, self._clock)) as wire:
            for names in _which(named, "create"):
                self._layout.declare(wire, names)
            for topic in _which(topics, "create"):
                self._layout.declare_topic(wire, topic)
            for names in _which(named, "validate"):
                self._layout.validate(wire, names)
            for topic in _which(topics, "validate"):
                self._layout.validate_topic(wire, topic)
            self._warn_of_loss(wire)

    def _warn_of_loss(self, wire: Wire) -> None:
        """Say so where the server is not set up to keep what it is given."""
        with suppress(PumpError):  # a user who may not ask is not told
            about = dict(line.partition(b":")[::2] for line in wire.ask(("INFO",)).splitlines())
            if about.get(b"aof_enabled") == b"0":
                log.warning("%s may lose messages when it ends: it needs appendonly yes", self.server)
            policy = about.get(b"maxmemory_policy", b"noeviction").decode()
            if policy.startswith("allkeys") and about.get(b"maxmemory") != b"0":
                log.warning("%s removes messages when it is full: it needs maxmemory-policy noeviction", self.server)

    def consumer(self, subscription: Subscription) -> RedisConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        names = Names(subscription)
        lease = self._lease if subscription.lease is None else seconds(subscription.lease)
        _check_lease(lease)
        channel = f"{names.topic}\0{names.channel}"
        seat = self._seats.take(channel)
        consumer = self._layout.consumer(Opening(self.server, self._clock, names, seat, subscription, lease))
        consumer.ended = lambda: self._seats.leave(channel, seat)
        consumer.open()
        return consumer

    def producer(self) -> RedisProducer:
        """A producer, which connects when it first sends."""
        return RedisProducer(self._layout, self.capabilities, Wire(self.server, self._clock))


def _check_lease(lease: Duration) -> None:
    if not 0 < seconds(lease) < inf:
        raise ConfigurationError(f"redis: a lease is longer than 0 s, and comes to an end: not {lease}")


def _which(wanted: Sequence[tuple[Missing, Named]], missing: Missing) -> Sequence[Named]:
    return [each for said, each in wanted if said == missing]


class RedisTransport(_Redis):
    """Topics as streams, channels as consumer groups. Making one opens nothing.

    `lease` is for subscriptions that do not say theirs, `prefix` begins every key, `consumer` is a name that no other
    process has, and that this one has again after a restart. Entries of others have their body in `body_field`. What
    all channels of a topic have acknowledged is kept for so many seconds as `keep` says; None is for ever.
    """

    capabilities: Capabilities = STREAMS
    _schemes: ClassVar[Sequence[str]] = ("redis", "rediss")
    _options: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **_OPTIONS,
        "body_field": str,
        "keep": lambda text: None if text == FOR_EVER else float(text),
    }

    def __init__(
        self,
        server: Server | None = None,
        *,
        lease: Duration = LEASE,
        prefix: str = "",
        consumer: str = "",
        body_field: str = BODY,
        keep: Duration | None = 0.0,
        largest_body: int = LARGEST_BODY,
    ) -> None:
        if keep is not None and not 0 <= seconds(keep) < inf:
            raise ConfigurationError(f"redis: keep is 0 s or longer, or None, which is for ever, not {keep}")
        super().__init__(server, lease, consumer, largest_body)
        self._layout = StreamLayout(prefix, body_field, None if keep is None else seconds(keep))


class RedisListTransport(_Redis):
    """Topics and channels as lists. Making one opens nothing.

    `lease` is after how long without a sign of life a consumer is held for dead, `prefix` begins every key, `consumer`
    is a name that no other process has, and that this one has again after a restart.
    """

    capabilities: Capabilities = LISTS
    _schemes: ClassVar[Sequence[str]] = ("redis+list", "rediss+list")
    _options: ClassVar[Mapping[str, Callable[[str], Any]]] = _OPTIONS

    def __init__(
        self,
        server: Server | None = None,
        *,
        lease: Duration = LEASE,
        prefix: str = "",
        consumer: str = "",
        largest_body: int = LARGEST_BODY,
    ) -> None:
        super().__init__(server, lease, consumer, largest_body)
        self._layout = ListLayout(prefix)
