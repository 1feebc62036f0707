"""Redis: topics on streams, or on lists, with delays and dead letters. docs/redis.md says what is kept where."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import parse_qsl

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, PumpError
from pump.subscription import Missing, Publication, Subscription
from pump.telemetry import log
from pump.transports.redis_consumer import Layout, RedisConsumer
from pump.transports.redis_entries import BODY
from pump.transports.redis_lists import ListConsumer, ListLayout
from pump.transports.redis_names import Names, Seat, Seats
from pump.transports.redis_producer import RedisProducer
from pump.transports.redis_server import Server, split
from pump.transports.redis_streams import StreamConsumer, StreamLayout
from pump.transports.redis_wire import Wire

Named = TypeVar("Named")

LEASE: Final = 30.0
"""Seconds for which a delivery is its consumer's alone, unless it is extended."""
LARGEST_BODY: Final = 512 * 1024 * 1024
"""What Redis takes as one value. docs/redis.md says how much less is wise."""
LARGEST_HEADERS: Final = 64 * 1024
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


class _Redis(ABC):
    """What both kinds share: how they are made, and how consumers and producers are opened."""

    capabilities: Capabilities
    _schemes: ClassVar[Sequence[str]]
    _options: ClassVar[Mapping[str, Callable[[str], Any]]]

    def __init__(self, server: Server | None, lease: Duration, consumer: str, largest_body: int) -> None:
        if not seconds(lease) > 0:
            raise ConfigurationError(f"redis: lease must be longer than 0 s, not {lease}")
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

    @property
    @abstractmethod
    def _layout(self) -> Layout: ...

    @abstractmethod
    def _consumer(self, names: Names, seat: Seat, missing: Missing, lease: float) -> RedisConsumer: ...

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
        channel = f"{names.topic}\0{names.channel}"
        seat = self._seats.take(channel)
        consumer = self._consumer(names, seat, subscription.missing, lease)
        consumer.ended = lambda: self._seats.leave(channel, seat)
        consumer.open()
        return consumer

    def producer(self) -> RedisProducer:
        """A producer, which connects when it first sends."""
        return RedisProducer(self._layout, self.capabilities, Wire(self.server, self._clock))


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
        super().__init__(server, lease, consumer, largest_body)
        if keep is not None and not seconds(keep) >= 0:
            raise ConfigurationError(f"redis: keep is 0 s or longer, or None, which is for ever, not {keep}")
        self._keep: Final = None if keep is None else seconds(keep)
        self._streams: Final = StreamLayout(prefix, body_field)

    @property
    def _layout(self) -> StreamLayout:
        return self._streams

    def _consumer(self, names: Names, seat: Seat, missing: Missing, lease: float) -> StreamConsumer:
        return StreamConsumer(
            self.server, self._clock, names, seat, missing, self._streams, lease=lease, keep=self._keep
        )


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
        self._lists: Final = ListLayout(prefix)

    @property
    def _layout(self) -> ListLayout:
        return self._lists

    def _consumer(self, names: Names, seat: Seat, missing: Missing, lease: float) -> ListConsumer:
        return ListConsumer(self.server, self._clock, names, seat, missing, self._lists, lease=lease)
