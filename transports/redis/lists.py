"""Channels on Redis lists: each channel of a topic has a list, and each consumer one for what it has in hand.

A consumer is alive as long as its sign of life is; what a dead one had in hand goes back to where it was.
docs/redis.md tells of the keys.
"""

from collections.abc import Sequence
from typing import Final

from pump.dead_letter import Rejection, dead_letter
from pump.errors import PumpError, SetupError
from pump.message import Message
from pump.transports.redis import list_scripts as scripts
from pump.transports.redis.connection import Command, Wire
from pump.transports.redis.consumer import LOOK_SECONDS, Opening, RedisConsumer
from pump.transports.redis.entries import seal, seal_copy, unseal
from pump.transports.redis.names import Names, tag

BEATS: Final = 3
"""How many signs of life a consumer gives in the time after which it is held for dead."""


class TopicKeys:
    """The keys of a topic."""

    def __init__(self, topic: str, prefix: str) -> None:
        self.topic: Final = topic
        self.list: Final = prefix + topic
        """Of the channel that is called as the topic; or where messages wait for the first channel there is."""
        self.begin: Final = tag(self.list)
        self.channels: Final = f"{self.begin}:channels"
        self.declared: Final = f"{self.begin}:declared"
        self.later: Final = f"{self.begin}:due"

    @property
    def signs(self) -> tuple[str, str, str]:
        """The topic is there if one of these is."""
        return (self.declared, self.channels, self.list)


class ChannelKeys:
    """The keys of a channel, and those of one of its consumers."""

    def __init__(self, names: Names, prefix: str, consumer: str = "") -> None:
        self.topic: Final = TopicKeys(names.topic, prefix)
        begin = f"{self.topic.begin}:{names.channel}"
        self.list: Final = self.topic.list if names.channel == names.topic else f"{begin}:list"
        self.later: Final = f"{begin}:due"
        self.consumers: Final = f"{begin}:consumers"
        self.held_begin: Final = f"{begin}:held:"
        self.alive_begin: Final = f"{begin}:alive:"
        self.held: Final = self.held_begin + consumer
        self.alive: Final = self.alive_begin + consumer


class ListLayout:
    """How topics and channels are kept on lists."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix

    def consumer(self, opening: Opening) -> "ListConsumer":
        """One that takes from the channel's list."""
        return ListConsumer(opening, self)

    def command(self, message: Message, delay: float) -> Command:
        """An envelope for every channel that the topic has, or will have when it is due."""
        envelope = seal(message.header, message.body, topic=message.header.topic)
        topic = TopicKeys(message.header.topic, self.prefix)
        if delay > 0:
            return scripts.SEND_LATER.call([topic.later], round(delay * 1000), envelope)
        return scripts.SEND.call([topic.list, topic.channels], topic.topic, topic.begin, envelope)

    def declare(self, wire: Wire, names: Names) -> None:
        """Bind the channel to its topic."""
        keys = ChannelKeys(names, self.prefix)
        graves = [key for each in self._graves(names) for key in (each.declared, each.list)]
        wire.ask(scripts.DECLARE.call([keys.topic.list, keys.topic.channels, keys.list, *graves], names.channel))

    def validate(self, wire: Wire, names: Names) -> None:
        """SetupError names the channel, or the topic of dead letters, that is not there."""
        graves = self._graves(names)
        channels = TopicKeys(names.topic, self.prefix).channels
        signs = (sign for each in graves for sign in each.signs)
        self._validate(wire, scripts.MISSING.call([channels, *signs], names.channel, *(each.topic for each in graves)))

    def declare_topic(self, wire: Wire, topic: str) -> None:
        """Note that the topic is there."""
        keys = TopicKeys(topic, self.prefix)
        wire.ask(scripts.DECLARE_TOPIC.call([keys.declared, keys.list]))

    def validate_topic(self, wire: Wire, topic: str) -> None:
        """SetupError if the topic is not there."""
        keys = TopicKeys(topic, self.prefix)
        self._validate(wire, scripts.MISSING.call([keys.channels, *keys.signs], "", topic))

    def grave(self, name: str) -> TopicKeys:
        """Where dead letters go."""
        return TopicKeys(name, self.prefix)

    def _graves(self, names: Names) -> Sequence[TopicKeys]:
        return [self.grave(name) for name in names.graves]

    def _validate(self, wire: Wire, command: Command) -> None:
        missing = wire.ask(command)
        if missing:
            raise SetupError(f"redis: there is no {missing.decode()!r}, and missing='validate' does not make it")


class ListConsumer(RedisConsumer):
    """One consumer of one channel on lists."""

    def __init__(self, opening: Opening, layout: ListLayout) -> None:
        super().__init__(opening, layout)
        self._keys: Final = ChannelKeys(self._names, layout.prefix, self._name)
        self._lists: Final = layout

    def _take_over(self) -> None:
        keys = (self._keys.list, self._keys.alive, self._keys.consumers)
        words = (self._name, self._milliseconds, self._seat.begin, self._keys.held_begin)
        self._wire.ask(scripts.ADOPT.call(keys, *words))
        self._beat_later(self._lease / BEATS)

    @property
    def _milliseconds(self) -> int:
        return max(1, round(self._lease * 1000))

    # -- living

    def _beat_later(self, delay: float) -> None:
        self._clock.alarm(delay, self._beat)

    def _beat(self) -> None:
        """Say that we live, however long a handler runs; what fails is tried again soon."""
        if self._closed:
            return
        delay = self._lease / BEATS
        try:
            keys = (self._keys.alive, self._keys.consumers)
            self._wire.ask(scripts.BEAT.call(keys, self._name, self._milliseconds))
        except PumpError:
            delay = min(delay, LOOK_SECONDS)
        self._beat_later(delay)

    # -- receiving

    def _look(self, limit: int) -> Sequence[Message]:
        now = self._clock.monotonic()
        keys, topic = self._keys, self._keys.topic
        command = scripts.LOOK.call(
            (keys.list, keys.held, keys.alive, keys.consumers, keys.later, topic.list, topic.channels, topic.later),
            *(self._name, self._milliseconds, self._names.topic, self._names.channel),
            *(topic.begin, keys.held_begin, keys.alive_begin, limit),
        )
        found, due = self._ask_while_reading(command)
        self._look_at = now + min(LOOK_SECONDS, due / 1000 if due >= 0 else LOOK_SECONDS)
        return self._messages(found)

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        keys = (self._keys.list, self._keys.held)
        found = self._ask_while_reading(scripts.TAKE.call(keys, limit))
        if not found and wait >= 0.001 and not self._interrupted:  # noqa: PLR2004 - 0 is for ever
            element = self._reading.ask(("BLMOVE", *keys, "LEFT", "RIGHT", f"{wait:.3f}"))
            found = [] if element is None else [element]
        return self._messages(found)

    def _messages(self, elements: Sequence[bytes]) -> Sequence[Message]:
        return [unseal(element, topic=self._names.topic, generation=self.generation) for element in elements]

    # -- verdicts

    def _handle(self, message: Message) -> bytes:
        receipt = message.receipt
        return receipt if isinstance(receipt, bytes) else b""

    def _acknowledgements(self, messages: Sequence[Message], holder: str) -> Sequence[Command]:
        return [scripts.ACKNOWLEDGE.call([self._keys.held_begin + holder], *(self._handle(each) for each in messages))]

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """A copy comes to the end of the channel's list, at once or when it is due; the original is gone."""
        envelope = seal_copy(message, attempts, self._clock.wall(), topic=self._names.topic)
        keys = (self._keys.held, self._keys.list, self._keys.later)
        words = (self._handle(message), round(delay * 1000), envelope)
        self._carry_out(message, scripts.REQUEUE.call(keys, *words))
        self._look_again(delay)

    def _bury(self, message: Message, rejection: Rejection, grave: str | None) -> None:
        keys, words = [self._keys.held], [self._handle(message)]
        if grave is not None:
            topic = self._lists.grave(grave)
            keys += (topic.list, topic.channels)
            letter = seal(dead_letter(message, rejection), message.body, topic=grave)
            words += (topic.topic.encode(), topic.begin.encode(), letter)
        self._carry_out(message, scripts.REJECT.call(keys, *words))

    def extend(self, message: Message) -> None:
        """It is ours for as long as we live; LeaseLost if we were held for dead."""
        self._carry_out(message, scripts.HOLDS.call([self._keys.held], self._handle(message)))

    def hand_back(self, messages: Sequence[Message]) -> None:
        """They go back to the head of the channel's list."""
        self._flush()
        marks = [self._handle(message) for message in messages]
        self._wire.ask(scripts.HAND_BACK.call([self._keys.held, self._keys.list], *marks))

    def purge(self) -> int:
        """Remove everything that waits or is due later on this channel; what others have in hand stays theirs."""
        self._flush()
        return int(self._wire.ask(scripts.PURGE.call([self._keys.list, self._keys.later])))

    def _leave(self) -> None:
        keys = self._keys
        self._wire.ask(scripts.LEAVE.call([keys.list, keys.held, keys.alive], round(2 * LOOK_SECONDS * 1000)))
