"""The common part of the transports on streams and on lists: settings, set-up on the server, and producers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from typing import ClassVar, Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError
from pump.message import Message
from pump.subscription import Missing, Publication, Subscription
from pump.telemetry import log
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.preparation import in_turn
from pump.transport_kit.sending import check_sizes, not_sent, portions, together
from pump.transport_kit.settings import Options, finite_seconds, read_url
from pump.transports.redis.async_connection import AsyncConnection
from pump.transports.redis.connection import Command, Connection, NotConnected, Reply
from pump.transports.redis.consumer import RedisConsumer
from pump.transports.redis.names import ConsumerNames
from pump.transports.redis.settings import FORM, SERVER_OPTIONS, Server

LEASE: Final = 30.0
"""Seconds for which a delivery belongs to its consumer, unless it is extended."""
LARGEST_BODY: Final = 512 * 1024 * 1024
"""The largest value that Redis takes. docs/redis.md says how much less is wise."""
LARGEST_HEADERS: Final = 64 * 1024
AT_ONCE: Final = 500
HEAVIEST: Final = 4 * 2**20
"""After AT_ONCE messages, or this many bytes, the replies are read before more is sent."""
OPTIONS: Final[Options] = {
    **SERVER_OPTIONS,
    **dict.fromkeys(("prefix", "consumer"), str),
    "lease": float,
    "largest_body": int,
}


@cache
def _clock(_server: str) -> Clock:
    """One clock for each server, so that a server that does not answer delays only its own timers."""
    return SystemClock()


class RedisBase(ABC):
    """A transport on Redis, with streams or lists. Making one opens no connection."""

    capabilities: Capabilities
    schemes: ClassVar[Sequence[str]]
    options: ClassVar[Options] = OPTIONS
    """The options that a URL may have after the question mark."""

    def __init__(
        self,
        server: Server | None = None,
        *,
        lease: Duration = LEASE,
        prefix: str = "",
        consumer: str = "",
        largest_body: int = LARGEST_BODY,
    ) -> None:
        if not 0 < largest_body <= LARGEST_BODY:
            raise ConfigurationError(f"redis: largest_body must be 1 to {LARGEST_BODY} bytes, not {largest_body}")
        self.server: Final = Server() if server is None else server
        self.capabilities = replace(type(self).capabilities, largest_body=largest_body)
        self.lease: Final = finite_seconds("redis", "lease", lease)
        self.prefix: Final = prefix
        self.clock: Final = _clock(str(self.server))
        self.consumer_names: Final = ConsumerNames(consumer)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of redis://user:password@host:port/database?option=value; the constructor has the options."""
        read = read_url(url, FORM, cls.options, schemes=cls.schemes)
        own = {name: value for name, value in read.options.items() if name not in SERVER_OPTIONS}
        return cls(Server.from_url(read), **own)

    @property
    def place(self) -> str:
        """The server's address, the database, and the prefix of the keys."""
        return f"{self.server}, {self.prefix!r}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.server}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate the topics and channels on the server; SetupError names what is missing."""
        for subscription in subscriptions:
            Destinations.of(subscription)  # raises for a mistake before anything is created
        with closing(Connection(self.server, self.clock)) as connection:
            for each in in_turn(subscriptions, publications):
                if isinstance(each, Subscription):
                    channel = Destinations.of(each)
                    self.ensure(connection, each.missing, channel.dead_letters, channel)
                else:
                    self.ensure(connection, each.missing, [each.destination])
            self._warn_of_loss(connection)

    def ensure(
        self, connection: Connection, missing: Missing, topics: Sequence[str], channel: Destinations | None = None
    ) -> None:
        """Create a channel and topics if they do not exist, or raise SetupError, as `missing` says."""
        if missing == "create":
            connection.execute(self._declare(topics, channel))
        elif missing == "validate":
            absent = connection.execute(self._find_missing(topics, channel))
            if absent:
                name = f"channel {channel.channel!r} of {channel.topic!r}" if channel else f"topic {topics[0]!r}"
                raise SetupError(
                    f"redis: {name}: there is no {absent.decode()!r}, and missing='validate' does not create it"
                )

    def _warn_of_loss(self, connection: Connection) -> None:
        """Log a warning if the server's configuration may lose messages."""
        with suppress(PumpError):  # this user may not be allowed to ask
            info = dict(line.partition(b":")[::2] for line in connection.execute(("INFO",)).splitlines())
            if info.get(b"aof_enabled") == b"0":
                log.warning("%s may lose messages when it ends: it needs appendonly yes", self.server)
            policy = info.get(b"maxmemory_policy", b"noeviction").decode()
            if policy.startswith("allkeys") and info.get(b"maxmemory") != b"0":
                log.warning("%s removes messages when it is full: it needs maxmemory-policy noeviction", self.server)

    def consumer(self, subscription: Subscription) -> RedisConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        consumer = self._consumer(subscription)
        consumer.open()
        return consumer

    def producer(self) -> "RedisProducer":
        """A producer, which connects when it first sends."""
        return RedisProducer(self)

    async def async_producer(self) -> "AsyncRedisProducer":
        """As `producer`, for awaiting callers."""
        return AsyncRedisProducer(self)

    # -- what differs between streams and lists

    @abstractmethod
    def _consumer(self, subscription: Subscription) -> RedisConsumer:
        """A consumer that is not open yet."""

    @abstractmethod
    def send_command(self, message: Message, delay: float) -> Command:
        """The command that stores a message, at once or after the delay; ValueError if it cannot be written."""

    @abstractmethod
    def _declare(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        """The command that creates topics, and a channel if one is given."""

    @abstractmethod
    def _find_missing(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        """The command whose reply is one name of these that does not exist, or None."""


class _Posting:
    """One `send` of a producer: its commands, and what is known of each message."""

    def __init__(self, transport: RedisBase, messages: Sequence[Message], delay: float) -> None:
        self._transport: Final = transport
        self._commands: Final = [(self._command(message, delay), len(message.body)) for message in messages]
        self._failures: Final[dict[int, PublishError]] = {}
        self._begin = self._end = 0
        """The current portion is the commands from `_begin` to before `_end`."""

    def __iter__(self) -> Iterator[Sequence[Command]]:
        """The commands, in portions to be sent one after another. After a portion with a failure there is no other."""
        for portion in portions(self._commands, lambda each: each[1], AT_ONCE, HEAVIEST):
            if self._failures:
                self._fail(
                    self._end,
                    len(self._commands),
                    _failure("it was not tried, because a message before it failed", sent=False),
                )
                return
            self._begin, self._end = self._end, self._end + len(portion)
            yield [command for command, _ in portion]

    def note(self, replies: Sequence[Reply]) -> None:
        """Note the replies to the current portion."""
        for place, reply in enumerate(replies, self._begin):
            if isinstance(reply, PumpError):
                self._fail(place, place + 1, _failure(reply, sent=False))

    def note_failure(self, error: PumpError) -> None:
        """Note that the current portion got no replies."""
        nothing_sent = isinstance(error, NotConnected | SetupError)
        self._fail(self._begin, self._end, _failure(error, sent=False if nothing_sent else None))

    def _fail(self, begin: int, end: int, failure: PublishError) -> None:
        self._failures.update(dict.fromkeys(range(begin, end), failure))

    def finish(self) -> None:
        """Raise PublishError unless all messages are stored."""
        if self._failures:
            raise together(self._failures, len(self._commands))

    def _command(self, message: Message, delay: float) -> Command:
        try:
            check_sizes(message, self._transport.capabilities)
            return self._transport.send_command(message, delay)
        except (ValueError, ConfigurationError) as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error


class RedisProducer:
    """Sends messages to the topics in their headers, on a connection of its own. Any thread may use it."""

    def __init__(self, transport: RedisBase) -> None:
        self._transport: Final = transport
        self._connection: Final = Connection(transport.server, transport.clock)
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As in Producer."""
        _check_open(self._closed)
        posting = _Posting(self._transport, messages, delay)
        for commands in posting:
            try:
                posting.note(self._connection.execute_all(commands))
            except PumpError as error:
                posting.note_failure(error)
        posting.finish()

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        self._connection.close()


class AsyncRedisProducer:
    """A RedisProducer for awaiting callers, on the loop that first used it."""

    def __init__(self, transport: RedisBase) -> None:
        self._transport: Final = transport
        self._connection: Final = AsyncConnection(transport.server, transport.clock)
        self._closed = False

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As in RedisProducer."""
        _check_open(self._closed)
        posting = _Posting(self._transport, messages, delay)
        for commands in posting:
            try:
                posting.note(await self._connection.execute_all(commands))
            except PumpError as error:
                posting.note_failure(error)
        posting.finish()

    async def close(self) -> None:
        """Disconnect."""
        self._closed = True
        await self._connection.end()


def _check_open(closed: bool) -> None:  # noqa: FBT001 - the one question
    if closed:
        raise not_sent("the producer is closed", retriable=True)


def _failure(error: PumpError | str, *, sent: bool | None) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    failure = PublishError(f"{known}: {error}", sent=sent, retriable=not isinstance(error, SetupError))
    failure.__cause__ = error if isinstance(error, PumpError) else None
    return failure
