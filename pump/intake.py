"""Which message may be handled next. Pure: it is told what came, what ended and what time it is, and never waits."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pump.message import Message

CHANNEL: Final = object()
"""The ordering domain of everything in a channel."""


@dataclass(slots=True)
class _Held:
    message: Message
    due: float


class Intake:
    """The messages one channel has received and not settled: ready, held until due, and in hand.

    Promises: never more than `slots` in hand; one message of a key at a time, in order; nothing from behind a held
    message of its domain; a suspect only when nothing else is here; the buffer shrinks to one at a redelivery and grows
    again only by first deliveries; what is asked for never exceeds the buffer.
    """

    def __init__(
        self,
        *,
        largest: int,
        slots: int = 1,
        ordered: bool = False,
        blocks: Literal["partition", "channel", "nothing"] = "nothing",
        suspect: Callable[[Message], bool],
        due: Callable[[Message], float],
    ) -> None:
        self._largest: Final = max(largest, slots)
        self._slots: Final = slots
        self._ordered: Final = ordered
        self._blocks: Final = blocks
        self._suspect: Final = suspect
        self._due: Final = due
        self._size = 1
        self._ready: deque[Message] = deque()
        self._held: dict[str, _Held] = {}
        self._in_hand: dict[str, Message] = {}
        self._left: set[str] = set()
        self._pinned: dict[str, float] = {}
        self._alone = False

    def __len__(self) -> int:
        return len(self._ready) + len(self._held) + len(self._in_hand)

    @property
    def size(self) -> int:
        """How many messages may be here at once now."""
        return self._size

    @property
    def in_hand(self) -> Sequence[Message]:
        """What is being handled, or was and waits to be settled."""
        return tuple(self._in_hand.values())

    @property
    def waiting(self) -> Sequence[Message]:
        """What nobody has begun to handle, in its order: held first."""
        return (*(held.message for held in self._held.values()), *self._ready)

    # -- coming in

    def room(self) -> int:
        """How many messages to ask the broker for. Held ones keep only the largest buffer from growing."""
        if self._alone:
            return 0
        here = len(self)
        return max(0, min(self._size - here + len(self._held), self._largest - here))

    def offer(self, messages: Iterable[Message], now: float) -> None:
        """Take in what was received. One nacked here is held until its time; a redelivery takes its old place."""
        for message in messages:
            if message.unexplained:
                self._size = 1
            held = self._held.get(message.identity)
            if held is not None:
                held.message = message
            elif self._due(message) > now:
                self._held[message.identity] = _Held(message, self._due(message))
            else:
                self._ready.append(message)
        if self._pinned:
            here = {message.identity for message in (*self.waiting, *self._in_hand.values())}
            self._pinned = {each: due for each, due in self._pinned.items() if due > now or each in here}

    # -- going out

    def take(self, now: float) -> Message | None:
        """The next message to handle, which then is in hand; None if none may begin."""
        if self._held or self._slots > 1 or self._alone:
            return self._choose(now)
        if not self._ready or self._in_hand:
            return None
        message = self._ready[0]
        if message.unexplained:
            return self._choose(now)
        self._ready.popleft()
        if message.lease_expires is not None and message.lease_expires <= now:
            message.lost = True
            return self.take(now)
        self._in_hand[message.identity] = message
        return message

    def _choose(self, now: float) -> Message | None:
        if self._alone or len(self._in_hand) >= self._slots:
            return None
        self._drop(lambda message: _lapsed(message, now))
        for message in self._startable(now):
            if self._is_suspect(message):
                if len(self) > 1:
                    return None  # the others go first: back to the broker, or to their end
                self._alone = True
            self._remove(message)
            self._in_hand[message.identity] = message
            return message
        return None

    def _startable(self, now: float) -> Iterator[Message]:
        busy: set[Hashable] = {self._key(message) for message in self._in_hand.values()} if self._slots > 1 else set()
        blocked: set[Hashable] = set()
        for held in self._held.values():
            domain = self.domain(held.message)
            if held.due <= now and domain not in blocked and self._free(held.message, busy):
                yield held.message
            if domain is not None:
                blocked.add(domain)
        for message in self._ready:
            if self.domain(message) not in blocked and self._free(message, busy):
                yield message
            key = self._key(message)
            if key is not None:
                busy.add(key)

    def _free(self, message: Message, busy: set[Hashable]) -> bool:
        key = self._key(message)
        return (key is None or key not in busy) and message.identity not in self._in_hand

    def _is_suspect(self, message: Message) -> bool:
        return message.unexplained > 0 and self._suspect(message)

    def to_hand_back(self) -> Sequence[Message]:
        """What has to go back to the broker before a suspect may be handled, once nothing is in hand."""
        if self._in_hand or len(self) <= 1:
            return ()
        suspect = next((message for message in self.waiting if self._is_suspect(message)), None)
        if suspect is None:
            return ()
        self._size = 1
        others = [message for message in self.waiting if message is not suspect]
        self._held.clear()
        self._ready = deque((suspect,))
        return others

    def next_due(self) -> float | None:
        """When the first held message comes due."""
        return min((held.due for held in self._held.values()), default=None)

    # -- ending

    def settled(self, message: Message) -> None:
        """A message in hand came to a verdict that was carried out, or is not ours any more: its slot is free."""
        if self._in_hand.get(message.identity) is message:
            del self._in_hand[message.identity]
        self._left.discard(message.identity)
        self._alone = False
        if self._pinned:
            self._pinned.pop(message.identity, None)
        elif self._size < self._largest and not message.unexplained:
            self._size = min(self._largest, self._size * 2)

    def hold(self, message: Message, due: float) -> None:
        """A message in hand is to be presented again here, ahead of its successors."""
        self.settled(message)
        self._held[message.identity] = _Held(message.again(), due)

    def leave(self, message: Message) -> None:
        """Its handler has returned without settling it: it keeps its slot, and its lease runs out."""
        if self._in_hand.get(message.identity) is message:
            self._left.add(message.identity)

    def release(self, message: Message, due: float) -> Sequence[Message]:
        """A message in hand goes back to the broker and blocks its domain: its successors must go back before it."""
        self._size = 1
        self._pinned[message.identity] = due
        domain = self.domain(message)
        if domain is None:
            return ()
        successors = [each for each in self.waiting if self.domain(each) == domain]
        for each in successors:
            self._remove(each)
        return successors

    def drain(self) -> Sequence[Message]:
        """Everything that nobody has begun to handle, in its order, which then is here no more."""
        waiting = self.waiting
        self._held.clear()
        self._ready.clear()
        return waiting

    def expire(self, now: float) -> Sequence[Message]:
        """Drop what is not ours any more; returns what of it is in hand, marked as lost."""
        return self._drop(lambda message: _lapsed(message, now))

    def drop_others(self, generation: int) -> Sequence[Message]:
        """Drop what was received in another life of the consumer; returns what of it is in hand, marked as lost."""
        return self._drop(lambda message: message.generation != generation)

    def leased(self, before: float) -> Sequence[Message]:
        """What is to be renewed: all that is here with a lease that ends before then, but for what was left."""
        return [
            message
            for message in (*self._in_hand.values(), *self.waiting)
            if message.lease_expires is not None
            and message.lease_expires < before
            and message.identity not in self._left
            and not message.lost
        ]

    def _drop(self, gone: Callable[[Message], bool]) -> Sequence[Message]:
        for message in self.waiting:
            if gone(message):
                message.lost = True
                self._remove(message)
        lost = [message for message in self._in_hand.values() if gone(message)]
        for message in lost:
            message.lost = True
            if message.identity in self._left:
                self.settled(message)
        return lost

    def _remove(self, message: Message) -> None:
        held = self._held.get(message.identity)
        if held is not None and held.message is message:
            del self._held[message.identity]
        else:
            self._ready.remove(message)

    # -- order

    def _key(self, message: Message) -> Hashable:
        if message.header.key is not None:
            return message.header.key
        if message.partition is not None:
            return message.partition
        return CHANNEL if self._ordered else None

    def domain(self, message: Message) -> Hashable:
        """What waits behind this message while it is held or nacked: None is nothing."""
        if message.partition is not None:
            return message.partition
        if message.header.key is not None:
            return message.header.key
        return CHANNEL if self._ordered or self._blocks == "channel" else None


def _lapsed(message: Message, now: float) -> bool:
    return message.lost or (message.lease_expires is not None and message.lease_expires <= now)
