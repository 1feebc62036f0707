"""Channels on Redis streams: a topic is a stream, a channel a consumer group on it.

What comes again to one channel alone comes by a second stream, the channel's own, which the same group reads; what
comes later waits in a third until it is due. docs/redis.md tells of the keys.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, cast

from pump.dead_letter import Rejection
from pump.errors import SetupError
from pump.message import Message
from pump.telemetry import log
from pump.transports.redis import stream_scripts as scripts
from pump.transports.redis.connection import Command, NoGroup, Wire
from pump.transports.redis.consumer import LOOK_SECONDS, Opening, RedisConsumer
from pump.transports.redis.entries import MOST_FIELDS, Reader, Receipt, copy, dead, write
from pump.transports.redis.names import Names, tag
from pump.transports.redis.stream_scripts import NOBODY

TIDY_SECONDS: Final = 2.0
GONE_SECONDS: Final = 3600.0
"""After how long without a sign of life a consumer with nothing pending is removed."""
CLAIMS: Final = 4
"""How often in the time of a lease to look for deliveries that were not extended."""
LONGEST_CLAIM_SECONDS: Final = 5.0
MOST_WORDS: Final = 7000
"""That a script can pass on at one go."""


class StreamKeys:
    """The keys of a topic, and those of one of its channels."""

    def __init__(self, names: Names, prefix: str) -> None:
        topic = prefix + names.topic
        own = f"{tag(topic)}:{names.channel}"
        self.streams: Final = (topic, f"{own}:again")
        """What the group reads: the topic's, and the channel's own. A receipt's stream is the place here, from 1."""
        self.topic_later: Final = later(topic)
        self.later: Final = (f"{own}:later", f"{own}:due")


def later(stream: str) -> tuple[str, str]:
    """What comes to a topic later, and when."""
    return f"{tag(stream)}:later", f"{tag(stream)}:due"


class StreamLayout:
    """How topics and channels are kept on streams."""

    def __init__(self, prefix: str, body_field: str, keep: float | None) -> None:
        self.prefix: Final = prefix
        self.body_field: Final = body_field
        self.keep: Final = keep

    def consumer(self, opening: Opening) -> "StreamConsumer":
        """One that reads as a member of the channel's group."""
        return StreamConsumer(opening, self)

    def command(self, message: Message, delay: float) -> Command:
        """An entry of the topic's stream, or of what is added to it when it is due."""
        topic = message.header.topic
        fields = write(message.header, message.body, topic=topic, body_field=self.body_field)
        if len(fields) > 2 * MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")
        stream = self.prefix + topic
        if delay > 0:
            return scripts.POST_LATER.call(later(stream), round(delay * 1000), *fields)
        return ("XADD", stream, "*", *fields)

    def declare(self, wire: Wire, names: Names) -> None:
        """Make the group on both streams, from their beginning, and the streams of dead letters."""
        streams = StreamKeys(names, self.prefix).streams
        wire.ask(scripts.DECLARE.call([*streams, *self._graves(names)], names.channel, len(streams)))

    def validate(self, wire: Wire, names: Names) -> None:
        """SetupError names the stream or the group that is not there."""
        streams = (self.prefix + names.topic, *self._graves(names))
        missing = wire.ask(scripts.MISSING.call(streams, names.channel))
        if missing:
            raise SetupError(
                f"redis: channel {names.channel!r} of {names.topic!r}: there is no {missing.decode()!r}, "
                "and missing='validate' does not make it"
            )

    def declare_topic(self, wire: Wire, topic: str) -> None:
        """Make the stream, if it is not there."""
        wire.ask(scripts.DECLARE.call([self.prefix + topic], "", 0))

    def validate_topic(self, wire: Wire, topic: str) -> None:
        """SetupError if the stream is not there."""
        if wire.ask(scripts.MISSING.call([self.prefix + topic], "")):
            raise SetupError(f"redis: there is no stream {topic!r}, and missing='validate' does not make it")

    def _graves(self, names: Names) -> Sequence[str]:
        return [self.prefix + name for name in names.graves]


class StreamConsumer(RedisConsumer):
    """One consumer of one channel on streams."""

    def __init__(self, opening: Opening, layout: StreamLayout) -> None:
        super().__init__(opening, layout)
        self._keys: Final = StreamKeys(self._names, layout.prefix)
        self._prefix: Final = layout.prefix
        self._us: Final = (self._names.channel, self._name)
        self._keep: Final = -1 if layout.keep is None else round(layout.keep * 1000)
        self._reader: Final = Reader(self._names.topic, self._keys.streams[0], self.generation, layout.body_field)
        self._claim_at = 0.0
        self._tidy_at = self._clock.monotonic() + TIDY_SECONDS

    def _take_over(self) -> None:
        main, own = self._keys.streams
        self._wire.ask(scripts.ADOPT.call([main], *self._us, NOBODY, self._seat.begin))
        self._wire.ask(scripts.DECLARE.call([own], self._names.channel, 1))  # a group of another's making has none
        self._wire.ask(scripts.ADOPT.call([own], *self._us, NOBODY, self._seat.begin))

    # -- receiving

    def _look(self, limit: int) -> Sequence[Message]:
        """What is due, was handed back, lapsed, or came to this channel alone: all of it before what is fresh."""
        now = self._clock.monotonic()
        keys = (*self._keys.streams, *self._keys.topic_later, *self._keys.later)
        claims = now >= self._claim_at
        lease = max(1, round(self._lease * 1000)) if claims else 0
        command = scripts.LOOK.call(keys, *self._us, NOBODY, limit, lease)
        found, due, lost = self._ask_while_reading(command)
        full = len(found) >= limit
        if claims and not full:
            self._claim_at = now + min(self._lease / CLAIMS, LONGEST_CLAIM_SECONDS)
        self._look_at = 0.0 if full else now + min(LOOK_SECONDS, due / 1000 if due >= 0 else LOOK_SECONDS)
        if lost:
            log.error(
                "redis: %d messages of %s are lost: somebody has removed them from the stream before they were settled",
                lost,
                self._names.channel,
            )
        if now >= self._tidy_at:
            self._tidy(now)
        return self._messages(Receipt(*each) for each in found)

    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        """What nobody of the group has had yet."""
        block = ("BLOCK", int(wait * 1000)) if wait >= 0.001 else ()  # noqa: PLR2004 - BLOCK 0 is for ever
        group = ("GROUP", *self._us, "COUNT", limit)
        reply = self._ask_while_reading(("XREADGROUP", *group, *block, "STREAMS", self._keys.streams[0], ">"))
        return self._messages(Receipt(1, id, 1, fields) for id, fields in reply[0][1]) if reply else ()  # noqa: A001

    def _messages(self, receipts: Iterable[Receipt]) -> Sequence[Message]:
        lease_expires = self._clock.monotonic() + self._lease
        return [self._reader.read(receipt, lease_expires) for receipt in receipts]

    def _tidy(self, now: float) -> None:
        self._tidy_at = now + TIDY_SECONDS
        gone = round(GONE_SECONDS * 1000)
        try:
            self._reading.ask(scripts.TIDY.call(self._keys.streams, *self._us, NOBODY, self._keep, gone))
            self._reading.ask(scripts.ADOPT.call(self._keys.streams, *self._us, NOBODY, self._seat.begin))
        except SetupError as error:  # messages flow all the same
            self._tidy_at = inf
            log.warning("redis: the stream of %s is not trimmed: %s", self._names.topic, error)

    # -- verdicts

    def _handle(self, message: Message) -> tuple[int, bytes]:
        receipt = cast("Receipt", message.receipt)
        return (receipt.stream, receipt.id)

    def _acknowledgements(self, messages: Sequence[Message], holder: str) -> Sequence[Command]:
        ids: dict[int, list[bytes]] = {1: [], 2: []}
        for message in messages:
            stream, id = self._handle(message)  # noqa: A001 - its name
            ids[stream].append(id)
        return [self._acknowledgement(holder, stream, each) for stream, each in ids.items() if each]

    def _acknowledgement(self, holder: str, stream: int, ids: Sequence[bytes]) -> Command:
        times = [int(id.partition(b"-")[0]) for id in ids]  # noqa: A001 - its name
        words = (self._names.channel, holder, self._deletes(stream), min(times), max(times))
        return scripts.ACKNOWLEDGE.call([self._key(stream)], *words, b" ".join(ids))

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """A copy comes by the channel's own stream, at once or when it is due; the original is gone."""
        stream, id = self._handle(message)  # noqa: A001 - its name
        keys = (self._key(stream), self._key(2), *self._keys.later)
        words = (*self._us, id, self._deletes(stream), round(delay * 1000))
        self._carry_out(message, scripts.REQUEUE.call(keys, *words, *copy(message, attempts, self._clock.wall())))
        self._look_again(delay)

    def _bury(self, message: Message, rejection: Rejection, grave: str | None) -> None:
        stream, id = self._handle(message)  # noqa: A001 - its name
        letter = [] if grave is None else dead(message, rejection)
        if grave is not None and len(letter) > MOST_WORDS:  # a stranger's: stored first, since both at once cannot be
            self._wire.ask(("XADD", self._prefix + grave, "*", *letter))
            letter = []
        graves = [self._prefix + grave] if grave is not None and letter else []
        words = (*self._us, id, self._deletes(stream), *letter)
        self._carry_out(message, scripts.REJECT.call([self._key(stream), *graves], *words))

    def extend(self, message: Message) -> None:
        """It is not idle, as others see it, for one more lease from now on."""
        stream, id = self._handle(message)  # noqa: A001 - its name
        now = self._clock.monotonic()
        self._carry_out(message, scripts.EXTEND.call([self._key(stream)], *self._us, id))
        message.lease_expires = now + self._lease

    def hand_back(self, messages: Sequence[Message]) -> None:
        """They are nobody's, whose are the first that anybody looks for; their deliveries are not counted."""
        self._flush()
        words = [word for each in messages for word in (*self._handle(each), each.deliveries - 1)]
        with suppress(NoGroup):  # with it, all that was pending is gone
            self._wire.ask(scripts.HAND_BACK.call(self._keys.streams, *self._us, NOBODY, *words))
        self._look_again()

    def purge(self) -> int:
        """Remove everything that waits or is due later on this channel; what others have in hand stays theirs."""
        self._flush()
        removed, some = 0, 1
        while some:
            keys = (*self._keys.streams, *self._keys.later)
            some = int(self._wire.ask(scripts.PURGE.call(keys, *self._us, NOBODY)))
            removed += some
        return removed

    def _leave(self) -> None:
        with suppress(NoGroup):  # with it, the name is gone
            self._wire.ask(scripts.LEAVE.call(self._keys.streams, *self._us))

    def _key(self, stream: int) -> str:
        return self._keys.streams[stream - 1]

    def _deletes(self, stream: int) -> str:
        """What is acknowledged on the channel's own stream is needed by nobody else."""
        return "1" if stream > 1 else ""
