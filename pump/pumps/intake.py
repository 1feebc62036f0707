"""Which message may be handled next. Pure: it is told what came, what ended and what time it is, and never waits."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from pump.message import Message

CHANNEL: Final = object()
"""The ordering domain of everything in a channel."""


@dataclass(slots=True)
class _Held:
    message: Message
    due: float


@dataclass(frozen=True, slots=True)
class _Pin:
    delivery: Message
    due: float


class Intake:
    """The messages one channel has received and not settled: ready, held until due, and in hand.

    Promises: never more than `slots` in hand; one message of a key at a time, in order; nothing from behind a message
    of its domain that was held or went back, until that one is settled; a suspect only when nothing else is here; the
    buffer shrinks to one at a redelivery and grows again only by first deliveries; what is asked for never exceeds the
    buffer; what is not ours any more is never handed out, and `dropped` is told of it if nobody had begun to handle it.
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
        dropped: Callable[[Message], None],
    ) -> None:
        self._largest: Final = max(largest, slots)
        self._slots: Final = slots
        self._ordered: Final = ordered
        self._blocks: Final = blocks
        self._suspect: Final = suspect
        self._due: Final = due
        self._dropped: Final = dropped
        self._size = 1
        self._ready: deque[Message] = deque()
        self._held: list[_Held] = []
        self._in_hand: dict[str, Message] = {}
        self._left: set[str] = set()
        self._again: set[str] = set()
        self._pinned: dict[str, _Pin] = {}
        self._alone = False
        self._looked = -inf

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
        return (*(held.message for held in self._held), *self._ready)

    # -- coming in

    def room(self) -> int:
        """How many messages to ask the broker for. Held ones keep only the largest buffer from growing."""
        if self._alone:
            return 0
        here = len(self)
        return max(0, min(self._size - here + len(self._held), self._largest - here))

    def offer(self, messages: Iterable[Message], now: float) -> None:
        """Take in what was received. What was nacked here is held until its time; a redelivery takes its old place."""
        for message in messages:
            if message.unexplained:
                self._size = 1
            if message.deliveries > 1 and self._replaced(message):
                continue
            due = self._due(message)
            if due > now:
                self._held.append(_Held(message, due))
            else:
                self._ready.append(message)
        if self._pinned:
            here = {message.identity for message in (*self.waiting, *self._in_hand.values())}
            self._pinned = {each: pin for each, pin in self._pinned.items() if pin.due > now or each in here}

    def _replaced(self, message: Message) -> bool:
        for held in self._held:
            if _replaces(message, held.message):
                self._lose(held.message)
                held.message = message
                return True
        for place, ready in enumerate(self._ready):
            if _replaces(message, ready):
                self._lose(ready)
                self._ready[place] = message
                return True
        return False

    # -- going out

    def take(self, now: float) -> Message | None:
        """The next message to handle, which then is in hand; None if none may begin."""
        if self._held or self._slots > 1 or self._alone:
            return self._choose(now)
        while self._ready and not self._in_hand:
            message = self._ready[0]
            if message.unexplained:
                return self._choose(now)
            self._ready.popleft()
            expires = message.lease_expires
            if not message.lost and (expires is None or expires > now):
                self._in_hand[message.identity] = message
                return message
            self._lose(message)
        return None

    def _choose(self, now: float) -> Message | None:
        self._looked = now
        if self._alone or len(self._in_hand) >= self._slots:
            return None
        self._drop(lambda message: lapsed(message, now))
        message = next(self._startable(now), None)
        if message is None:
            return None
        if self._is_suspect(message):
            if len(self) > 1:
                return None  # the others go first: back to the broker, or to their end
            self._alone = True
        if self._remove(message):
            self._again.add(message.identity)
        self._in_hand[message.identity] = message
        return message

    def _startable(self, now: float) -> Iterator[Message]:
        busy: set[Hashable] = set()
        blocked: set[Hashable] = set()
        for message in self._in_hand.values():
            busy.add(self._key(message))
            if message.identity in self._again or message.identity in self._pinned:
                blocked.add(self.domain(message))
        blocked.discard(None)
        for held in self._held:
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

    def to_hand_back(self, now: float) -> Sequence[Message]:
        """What has to go back to the broker before the suspect whose turn it is may be handled."""
        if self._in_hand or len(self) <= 1:
            return ()
        suspect = next(self._startable(now), None)
        if suspect is None or not self._is_suspect(suspect):
            return ()
        self._size = 1
        others = [message for message in self.waiting if message is not suspect]
        for message in others:
            self._remove(message)
        return others

    def next_due(self, now: float) -> float | None:
        """When the first held message comes due that was not due at the last look: this one is the next such look.

        One that has been due already, and could not begin, waits for others and not for its time: to ask for it again
        and again would be a loop without a wait.
        """
        dues = [held.due for held in self._held if held.due > self._looked]
        self._looked = now
        return min(dues, default=None)

    # -- ending

    def settled(self, message: Message) -> None:
        """A message in hand came to a verdict that was carried out, or is not ours any more: its slot is free."""
        if not self._ended(message):
            return
        if self._pinned:
            pin = self._pinned.get(message.identity)
            if pin is not None and pin.delivery is not message:  # it has come again since it went back, and is settled
                del self._pinned[message.identity]
        elif self._size < self._largest and not message.unexplained and not message.lost:
            self._size = min(self._largest, self._size * 2)

    def _ended(self, message: Message) -> bool:
        if self._in_hand.get(message.identity) is not message:
            return False
        del self._in_hand[message.identity]
        if self._left or self._again or self._alone:
            self._left.discard(message.identity)
            self._again.discard(message.identity)
            self._alone = False
        return True

    def hold(self, message: Message, due: float) -> None:
        """A message in hand is to be presented again here, ahead of its successors."""
        if not self._ended(message):
            return  # settled already: there is nothing to present again
        newer = next((each for each in self._ready if _replaces(each, message)), None)
        if newer is not None:
            self._ready.remove(newer)
        self._held.append(_Held(newer or message.again(), due))

    def leave(self, message: Message) -> None:
        """Its handler has returned without settling it: it keeps its slot, and its lease runs out."""
        if self._in_hand.get(message.identity) is message:
            self._left.add(message.identity)

    def release(self, message: Message, due: float) -> Sequence[Message]:
        """A message in hand goes back to the broker and blocks its domain: its successors must go back before it."""
        self._size = 1
        self._pinned[message.identity] = _Pin(message, due)
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
        return self._drop(lambda message: lapsed(message, now))

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
                self._remove(message)
                self._lose(message)
        lost = [message for message in self._in_hand.values() if gone(message)]
        for message in lost:
            message.lost = True
            if message.identity in self._left:
                self._ended(message)
        return lost

    def _lose(self, message: Message) -> None:
        message.lost = True
        self._dropped(message)

    def _remove(self, message: Message) -> bool:
        """Take it out of what waits; says whether it was held."""
        for place, held in enumerate(self._held):
            if held.message is message:
                del self._held[place]
                return True
        self._ready.remove(message)
        return False

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


def lapsed(message: Message, now: float) -> bool:
    """Whether it is known that the message is not ours any more."""
    return message.lost or (message.lease_expires is not None and message.lease_expires <= now)


def _replaces(message: Message, earlier: Message) -> bool:
    """Whether it is a redelivery of the earlier one, whose receipt is void then; not another message of the same id."""
    return (
        message.identity == earlier.identity
        and message.deliveries > earlier.deliveries
        and (message.generation != earlier.generation or earlier.lease_expires is not None)
    )
