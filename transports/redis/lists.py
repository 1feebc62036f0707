"""Topics as Redis lists: each channel of a topic has a list, and each consumer has one for the messages it received.

A consumer renews its heartbeat as long as it lives. The messages of a dead consumer go back to the channel's list.
docs/redis.md lists the keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Final

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection, dead_letter
from pump.errors import PumpError
from pump.message import Message
from pump.subscription import Subscription
from pump.transport_kit.destinations import Destinations
from pump.transports.redis.connection import Command, Script
from pump.transports.redis.consumer import POLL_SECONDS, SHORTEST_BLOCK, RedisConsumer
from pump.transports.redis.entries import copy_envelope, envelope, is_envelope, read_element
from pump.transports.redis.names import hash_tag
from pump.transports.redis.streams import RedisTransport
from pump.transports.redis.transport import RedisBase

LISTS: Final = Script.read("common.lua", "lists.lua")
HEARTBEATS_PER_LEASE: Final = 3
"""How many heartbeats a consumer sends during one lease; after a lease without a heartbeat it is treated as dead."""


class TopicKeys:
    """The keys of a topic."""

    def __init__(self, topic: str, prefix: str) -> None:
        self.list: Final = prefix + topic
        """The list of the channel with the topic's name. While the topic has no channel, messages wait here for one."""
        self.begin: Final = hash_tag(self.list)
        """The other keys begin with this."""
        self.channels: Final = f"{self.begin}:channels"
        self.declared: Final = f"{self.begin}:declared"
        self.due: Final = f"{self.begin}:due"


class ChannelKeys:
    """The keys of a channel, and the beginnings of its consumers' keys."""

    def __init__(self, channel: Destinations, prefix: str) -> None:
        self.topic: Final = TopicKeys(channel.topic, prefix)
        begin = f"{self.topic.begin}:{channel.channel}"
        self.list: Final = self.topic.list if channel.channel == channel.topic else f"{begin}:list"
        self.due: Final = f"{begin}:due"
        self.consumers: Final = f"{begin}:consumers"
        self.held: Final = f"{begin}:held:"
        self.heartbeat: Final = f"{begin}:alive:"


class RedisListTransport(RedisBase):
    """Topics and channels as lists. Making one opens no connection.

    A consumer without a heartbeat for the time `lease` counts as dead. Every key begins with `prefix`. `consumer` is
    a name that only this process has, and that it has again after a restart.
    """

    capabilities: Capabilities = replace(RedisTransport.capabilities, counts_deliveries=False, leases=False)
    schemes: ClassVar[Sequence[str]] = ("redis+list", "rediss+list")

    def _consumer(self, subscription: Subscription) -> "ListConsumer":
        return ListConsumer(self, subscription)

    def send_command(self, message: Message, delay: float) -> Command:
        """The command that stores the message for every channel that the topic has now, or has when it is due."""
        sent = envelope(message.header, message.body, topic=message.header.topic)
        topic = TopicKeys(message.header.topic, self.prefix)
        if delay > 0:
            return LISTS.call("send_later", [topic.due], round(delay * 1000), sent)
        return LISTS.call("send", [topic.list, topic.channels], message.header.topic, topic.begin, sent)

    def _declare(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        keys, args = list[str](), list[str]()
        if channel:
            own = ChannelKeys(channel, self.prefix)
            keys, args = [own.topic.list, own.topic.channels, own.list], [channel.channel]
        for each in (TopicKeys(topic, self.prefix) for topic in topics):
            keys += (each.declared, each.list)
        return LISTS.call("declare", keys, *args)

    def _find_missing(self, topics: Sequence[str], channel: Destinations | None) -> Command:
        keys = [TopicKeys(channel.topic if channel else topics[0], self.prefix).channels]
        for each in (TopicKeys(topic, self.prefix) for topic in topics):
            keys += (each.declared, each.channels, each.list)
        return LISTS.call("find_missing", keys, channel.channel if channel else "", *topics)


class ListConsumer(RedisConsumer):
    """One consumer of one channel on lists."""

    def __init__(self, transport: RedisListTransport, subscription: Subscription) -> None:
        super().__init__(transport, subscription)
        self._keys: Final = ChannelKeys(self._destinations, transport.prefix)
        self._held: Final = self._keys.held + self._name
        self._heartbeat: Final = self._keys.heartbeat + self._name
        self._lease_ms: Final = max(1, round(self._lease * 1000))
        self._calls: Final = count()
        self._is_empty = False
        """Whether the channel's list was just seen empty: then the next read waits for one message at once."""

    def _take_over(self) -> None:
        self._connection.execute(self._give_back(self._reusable_name.prefix))
        self._clock.alarm(self._lease / HEARTBEATS_PER_LEASE, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Runs on a timer, so that the consumer lives however long a handler runs. A failure is soon tried again."""
        if self._closed:
            return
        delay = self._lease / HEARTBEATS_PER_LEASE
        try:
            self._connection.execute(("SET", self._heartbeat, "1", "PX", self._lease_ms))
            self._connection.execute(("SADD", self._keys.consumers, self._name))
        except PumpError:
            delay = min(delay, POLL_SECONDS)
        self._clock.alarm(delay, self._send_heartbeat)

    # -- receiving

    def _poll(self, limit: int) -> Sequence[Message]:
        """Put messages that are due, and those of dead consumers, into the lists; then read."""
        now = self._clock.monotonic()
        keys, topic = self._keys, self._keys.topic
        command = LISTS.call(
            "poll",
            (keys.list, self._held, self._heartbeat, keys.consumers, keys.due, topic.list, topic.channels, topic.due),
            *(self._name, self._lease_ms, self._destinations.topic, self._channel),
            *(topic.begin, keys.held, keys.heartbeat, limit, self._next_call()),
        )
        found, due_ms = self._execute_reading(command)
        self._poll_when_due(now, due_ms)
        self._is_empty = not found
        return self._messages(found)

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        keys = (self._keys.list, self._held)
        waits = wait >= SHORTEST_BLOCK
        found = [] if self._is_empty and waits else self._execute_reading(self._take(keys, limit))
        if not found and waits and not self._interrupted:
            element = self._reading.execute(("BLMOVE", *keys, "LEFT", "RIGHT", f"{wait:.3f}"))
            self._is_empty = element is None
            if element is not None and not is_envelope(element):
                element = self._reading.execute(LISTS.call("tag", [self._held], self._next_call()))
            found = [] if element is None else [element]
        return self._messages(found)

    def _take(self, keys: Sequence[str], limit: int) -> Command:
        return LISTS.call("take", keys, limit, self._next_call())

    def _next_call(self) -> str:
        """The tag for the elements that one call takes; each call of this consumer has another."""
        return f"{next(self._calls):012d}"

    def _messages(self, elements: Sequence[bytes]) -> Sequence[Message]:
        return [read_element(each, topic=self._destinations.topic, generation=self.generation) for each in elements]

    # -- verdicts

    def _receipt(self, message: Message) -> bytes:
        receipt = message.receipt
        return receipt if isinstance(receipt, bytes) else b""

    def _ack_commands(self, receipts: Sequence[Any], name: str) -> Sequence[Command]:
        return [LISTS.call("acknowledge", [self._keys.held + name], *receipts)]

    def _requeue(self, message: Message, delay_ms: int, attempts: int) -> Command:
        """The copy goes to the end of the channel's list, at once or when it is due."""
        copy = copy_envelope(message, attempts, self._clock.wall(), topic=self._destinations.topic)
        keys = (self._held, self._keys.list, self._keys.due)
        return LISTS.call("requeue", keys, self._receipt(message), delay_ms, copy)

    def _store_dead_letter(self, message: Message, rejection: Rejection, topic: str | None) -> None:
        keys, args = [self._held], [self._receipt(message)]
        if topic is not None:
            target = TopicKeys(topic, self._transport.prefix)
            keys += (target.list, target.channels)
            letter = envelope(dead_letter(message, rejection), message.body, topic=topic)
            args += (topic.encode(), target.begin.encode(), letter)
        self._execute_if_held(message, LISTS.call("reject", keys, *args))

    def _extend(self, message: Message) -> Command:
        """Only ask whether the message is still this consumer's: the heartbeat renews all leases."""
        return LISTS.call("is_held", [self._held], self._receipt(message))

    def _hand_back(self, messages: Sequence[Message]) -> Command:
        """The messages go back to the head of the channel's list."""
        args = [word for each in messages for word in (self._receipt(each), self._changed_copy(each))]
        return LISTS.call("hand_back", [self._held, self._keys.list], *args)

    def _changed_copy(self, message: Message) -> bytes:
        """The copy that goes back instead of a message that was run while it was held here; empty for others."""
        if message.attempts <= message.carried:
            return b""
        return copy_envelope(message, message.attempts, self._clock.wall(), topic=self._destinations.topic)

    def _purge(self) -> Command:
        return LISTS.call("purge", [self._keys.list, self._keys.due])

    def _waiting(self) -> Command:
        keys = self._keys
        return LISTS.call("waiting", (keys.list, keys.consumers, keys.due, keys.topic.due), keys.held)

    def _leave(self) -> None:
        self._connection.execute(self._give_back(self._name))

    def _give_back(self, prefix: str) -> Command:
        """Put the messages of all consumers whose names begin with `prefix` back into the channel's list."""
        keys = self._keys
        lasts_ms = round(2 * POLL_SECONDS * 1000)  # a read of theirs that is under way ends before
        return LISTS.call("give_back", (keys.list, keys.consumers), prefix, keys.held, keys.heartbeat, lasts_ms)
