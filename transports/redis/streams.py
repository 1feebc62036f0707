"""Topics as Redis streams, channels as consumer groups on them.

A group reads two streams: its topic's, and its channel's own for messages that come again to this channel only.
Deferred messages wait in a third stream until they are due. docs/redis.md lists the keys.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, ClassVar, Final, Literal, cast

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection
from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, SetupError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.settings import Options
from pump.transports.redis.connection import Argument, Command, NoGroup, Script
from pump.transports.redis.consumer import SHORTEST_BLOCK, RedisConsumer
from pump.transports.redis.entries import (
    BODY,
    MOST_FIELDS,
    EntryReader,
    EntryReceipt,
    copy_fields,
    dead_letter_fields,
    entry_fields,
)
from pump.transports.redis.names import hash_tag
from pump.transports.redis.settings import Server
from pump.transports.redis.transport import LARGEST_BODY, LARGEST_HEADERS, LEASE, OPTIONS, RedisBase

STREAMS: Final = Script.read("common.lua", "streams.lua")
TRIM_SECONDS: Final = 2.0
IDLE_TRIM_SECONDS: Final = 16.0
"""The longest time between two trims. While nothing is received, the time doubles after each trim, up to this."""
GONE_SECONDS: Final = 3600.0
"""A consumer with nothing pending is removed when the server has not seen it for this long."""
CLAIMS_PER_LEASE: Final = 4
"""How many times during one lease to look for leases that have expired."""
LONGEST_CLAIM_SECONDS: Final = 5.0
MOST_SCRIPT_ARGUMENTS: Final = 7000
FOR_EVER: Final = "forever"


class StreamKeys:
    """The keys of a topic, and those of one of its channels."""

    def __init__(self, channel: Destinations, prefix: str) -> None:
        topic = prefix + channel.topic
        own = f"{hash_tag(topic)}:{channel.channel}"
        self.streams: Final = (topic, f"{own}:again")
        """The streams that the group reads: the topic's, and the channel's own. A receipt numbers them from 1."""
        self.made: Final = made_mark(topic)
        self.topic_later: Final = later(topic)
        self.later: Final = (f"{own}:later", f"{own}:due")
        self.attempts: Final = f"{own}:attempts"
        """The attempts of messages that were handed back without a copy, by stream and id."""


def made_mark(stream: str) -> str:
    """The key that marks the topic's stream as created by a pump, which may then remove entries that nobody needs."""
    return f"{hash_tag(stream)}:made"


def later(stream: str) -> tuple[str, str]:
    """The stream of messages that come to a topic later, and the sorted set of the times when they are due."""
    return f"{hash_tag(stream)}:later", f"{hash_tag(stream)}:due"


class RedisTransport(RedisBase):
    """Topics as streams, channels as consumer groups. Making one opens no connection.

    `lease` is for subscriptions without their own. Every key begins with `prefix`. `consumer` is a name that only this
    process has, and that it has again after a restart. Entries have their body in the field `body_field`. An entry that
    all channels of its topic have acknowledged is kept for `keep` seconds, or "forever". By default (None) it is
    removed at once if a pump created the topic's stream, and kept for ever if others created it.
    """

    capabilities: Capabilities = Capabilities(
        system="redis",
        nack="holds",
        blocks="channel",
        requeue="copy",
        counts_deliveries=True,
        carries_attempts=True,
        durable=True,
        leases=True,
        delayed_publish=True,
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )
    schemes: ClassVar[Sequence[str]] = ("redis", "rediss")
    options: ClassVar[Options] = {
        **OPTIONS,
        "body_field": str,
        "keep": lambda text: text if text == FOR_EVER else float(text),
    }

    def __init__(
        self,
        server: Server | None = None,
        *,
        lease: Duration = LEASE,
        prefix: str = "",
        consumer: str = "",
        body_field: str = BODY,
        keep: Duration | Literal["forever"] | None = None,
        largest_body: int = LARGEST_BODY,
    ) -> None:
        super().__init__(server, lease=lease, prefix=prefix, consumer=consumer, largest_body=largest_body)
        self.body_field: Final = body_field
        self.keep_ms: Final = _keep_ms(keep)

    def _consumer(self, subscription: Subscription) -> "StreamConsumer":
        return StreamConsumer(self, subscription)

    def send_command(self, message: Message, delay: float) -> Command:
        """As in RedisBase."""
        topic = message.header.topic
        fields = entry_fields(message.header, message.body, topic=topic, body_field=self.body_field)
        if len(fields) > 2 * MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")
        stream = self.prefix + topic
        if delay > 0:
            return STREAMS.call("send_later", later(stream), round(delay * 1000), *fields)
        return ("XADD", stream, "*", *fields)

    def _declare(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        names = (channel.topic, *topics) if channel else topics
        keys = [key for stream in (self.prefix + name for name in names) for key in (stream, made_mark(stream))]
        if channel is None:
            return STREAMS.call("declare", keys, "")
        return STREAMS.call("declare", [*keys, StreamKeys(channel, self.prefix).streams[1]], channel.channel)

    def _find_missing(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        names = (channel.topic, *topics) if channel else topics
        group = channel.channel if channel else ""
        return STREAMS.call("find_missing", [self.prefix + name for name in names], group)


def _keep_ms(keep: Duration | Literal["forever"] | None) -> int | str:
    """The value of `keep` as the script's function `trim` takes it."""
    if keep is None:
        return ""
    if keep == FOR_EVER:
        return -1
    if 0 <= seconds(keep) < inf:
        return round(seconds(keep) * 1000)
    raise ConfigurationError(f"redis: keep must be 0 s or longer, {FOR_EVER!r} or None, not {keep!r}")


class StreamConsumer(RedisConsumer):
    """One consumer of one channel on streams, a member of its group."""

    def __init__(self, transport: RedisTransport, subscription: Subscription) -> None:
        super().__init__(transport, subscription)
        self._keys: Final = StreamKeys(self._destinations, transport.prefix)
        self._keep_ms: Final = transport.keep_ms
        self._is_others: bool | None = None
        """Whether others made the topic's stream, so that nothing is removed from it; None: not known yet."""
        topic, stream = self._destinations.topic, self._keys.streams[0]
        self._reader: Final = EntryReader(topic, stream, self.generation, transport.body_field)
        self._claim_at = 0.0
        self._trim_seconds = TRIM_SECONDS
        self._trim_at = self._clock.monotonic() + TRIM_SECONDS

    def _ensure_channel(self) -> None:
        super()._ensure_channel()
        if self._is_others is False and self._keep_ms == "":  # it was deleted: a post may have created it unmarked
            self._connection.execute(("SET", self._keys.made, "1"))

    def _take_over(self) -> None:
        self._connection.execute(self._call("take_over", self._reusable_name.prefix))

    def _call(self, function: str, *args: Argument, more_keys: Sequence[str] = ()) -> Command:
        return STREAMS.call(function, (*self._keys.streams, *more_keys), self._channel, self._name, *args)

    # -- receiving

    def _poll(self, limit: int) -> Sequence[Message]:
        """Messages that are due, handed back, expired, or on the channel's own stream; they come before new ones."""
        now = self._clock.monotonic()
        waiting = (*self._keys.topic_later, *self._keys.later, self._keys.attempts)
        claims = now >= self._claim_at
        lease_ms = max(1, round(self._lease * 1000)) if claims else 0
        found, due_ms, lost = self._execute_reading(self._call("poll", limit, lease_ms, more_keys=waiting))
        if len(found) >= limit:
            self._poll_at = 0.0  # there may be more
        else:
            self._poll_when_due(now, due_ms)
            if claims:
                self._claim_at = now + min(self._lease / CLAIMS_PER_LEASE, LONGEST_CLAIM_SECONDS)
        if lost:
            text = "redis: %d messages of %s are lost: they were removed from the stream before they were settled"
            log.error(text, lost, self._channel)
        if now >= self._trim_at:
            self._trim(now)
        return self._messages(EntryReceipt(*each) for each in found)

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        """New messages, which no consumer of the group has received yet."""
        block = ("BLOCK", int(wait * 1000)) if wait >= SHORTEST_BLOCK else ()
        group = ("GROUP", self._channel, self._name, "COUNT", limit)
        reply = self._execute_reading(("XREADGROUP", *group, *block, "STREAMS", self._keys.streams[0], ">"))
        return self._messages(EntryReceipt(1, id, 1, fields) for id, fields in reply[0][1]) if reply else ()  # noqa: A001

    def _messages(self, receipts: Iterable[EntryReceipt]) -> Sequence[Message]:
        now = self._clock.monotonic()
        messages = [self._reader.read(receipt, now + self._lease) for receipt in receipts]
        if messages and self._trim_seconds > TRIM_SECONDS:
            self._trim_seconds = TRIM_SECONDS
            self._trim_at = min(self._trim_at, now + TRIM_SECONDS)
        return messages

    def _trim(self, now: float) -> None:
        self._trim_at = now + self._trim_seconds
        self._trim_seconds = min(2 * self._trim_seconds, IDLE_TRIM_SECONDS)
        gone_ms, more = round(GONE_SECONDS * 1000), (self._keys.made, self._keys.attempts)
        command = self._call("trim", self._reusable_name.prefix, self._keep_ms, gone_ms, more_keys=more)
        try:
            is_others = self._reading.execute(command) == 0
        except SetupError as error:  # trimming stops, but messages are still received
            self._trim_at = inf
            log.warning("redis: the stream of %s is not trimmed: %s", self._destinations.topic, error)
            return
        if is_others and not self._is_others:
            text = "redis: the stream of %s was not created by a pump: nothing is removed from it unless keep= is given"
            log.info(text, self._destinations.topic)
        self._is_others = is_others

    # -- verdicts

    def _receipt(self, message: Message) -> tuple[int, bytes]:
        receipt = cast("EntryReceipt", message.receipt)
        return (receipt.stream, receipt.id)

    def _ack_commands(self, receipts: Sequence[Any], name: str) -> Sequence[Command]:
        commands = []
        for stream, key in enumerate(self._keys.streams, start=1):
            ids = [id for place, id in receipts if place == stream]  # noqa: A001 - its name
            if ids:
                times = [int(id.partition(b"-")[0]) for id in ids]  # noqa: A001 - its name
                deletes = "" if stream == 1 else "1"  # no other channel needs the entries of the channel's own stream
                args = (self._channel, name, deletes, min(times), max(times), b" ".join(ids))
                commands.append(STREAMS.call("acknowledge", [key], *args))
        return commands

    def _requeue(self, message: Message, delay_ms: int, attempts: int) -> Command:
        """The copy goes to the channel's own stream, at once or when it is due."""
        copy_keys = self._keys.later if delay_ms > 0 else self._keys.streams[1:]
        fields = copy_fields(message, attempts, self._clock.wall())
        return self._replace(message, copy_keys, fields, delay_ms)

    def _store_dead_letter(self, message: Message, rejection: Rejection, topic: str | None) -> None:
        fields = [] if topic is None else dead_letter_fields(message, rejection)
        keys = [] if topic is None else [self._transport.prefix + topic]
        if len(fields) > MOST_SCRIPT_ARGUMENTS:  # only messages of others: one step is not possible, so store first
            self._connection.execute(("XADD", *keys, "*", *fields))
            keys, fields = [], []
        self._execute_if_held(message, self._replace(message, keys, fields))

    def _replace(
        self, message: Message, copy_keys: Sequence[str], fields: Sequence[str | bytes], delay_ms: int = 0
    ) -> Command:
        return self._call("replace", *self._receipt(message), delay_ms, *fields, more_keys=copy_keys)

    def _extend(self, message: Message) -> Command:
        return self._call("extend", *self._receipt(message))

    def _hand_back(self, messages: Sequence[Message]) -> Command:
        """The messages belong to no consumer then, and any consumer polls for them first. No delivery is counted."""
        args: list[Argument] = []
        for each in messages:
            if each.attempts > each.carried:  # it was run: the attempts include its deliveries
                args += (*self._receipt(each), 0, each.attempts)
            else:
                args += (*self._receipt(each), each.deliveries - 1, 0)
        return self._call("hand_back", *args, more_keys=[self._keys.attempts])

    def _purge(self) -> Command:
        return self._call("purge", more_keys=self._keys.later)

    def _waiting(self) -> Command:
        keys = self._keys
        return self._call("waiting", more_keys=(keys.topic_later[1], keys.later[1]))

    def _leave(self) -> None:
        with suppress(NoGroup):  # the group was deleted, and with it its consumers
            self._connection.execute(self._call("leave"))
