"""Which message may be handled next. Pure: it is told what came, what ended and what time it is, and never waits."""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from pump.message import Message

CHANNEL: Final = object()
"""The key or domain of every message, where the whole channel is kept in order."""


@dataclass(slots=True)
class _Held:
    """A message that is not to be handled before it is due."""

    message: Message
    due: float


@dataclass(frozen=True, slots=True)
class _Released:
    """A delivery that went back to the broker and blocks its domain until the message has come again and is settled."""

    delivery: Message
    due: float


class Intake:
    """The messages one channel has received and not settled: ready, held until due, or in hand.

    It promises:

    * never more than `slots` messages are in hand, and of one key one at a time, in order;
    * a message that is held or was released blocks the later ones of its domain until it is settled;
    * a suspect, which may kill the process, is handed out only when nothing else is here, and `alone` agrees;
    * the buffer shrinks to one at a redelivery, and grows again only by first deliveries;
    * never more messages are asked for than the buffer has room for;
    * a lost message is never handed out; `dropped` is called with it if nobody had begun to handle it.
    """

    def __init__(
        self,
        *,
        largest: int,
        slots: int = 1,
        ordered: bool = False,
        blocks: Literal["partition", "channel", "nothing"] = "nothing",
        suspect: Callable[[Message], bool],
        accused: Collection[str] = (),
        alone: Callable[[], bool] = lambda: True,
        due: Callable[[Message], float],
        dropped: Callable[[Message], None],
    ) -> None:
        self._largest: Final = max(largest, slots)
        self._slots: Final = slots
        self._ordered: Final = ordered
        self._blocks: Final = blocks
        self._suspect: Final = suspect
        self._accused: Final = accused
        """The identities of messages that may be suspects though the broker counts no delivery."""
        self._admitted: Final = alone
        self._due: Final = due
        self._dropped: Final = dropped
        self._size = 1
        self._ready: deque[Message] = deque()
        self._held: list[_Held] = []
        self._in_hand: dict[str, Message] = {}
        self._left: set[str] = set()
        """Those in hand whose handlers have returned without settling them."""
        self._presented_again: set[str] = set()
        """Those in hand that were held before."""
        self._released: dict[str, _Released] = {}
        self._asked = False
        """Whether messages may be on their way here …"""
        self._released_meanwhile: dict[Hashable, str] = {}
        """… and, if so, domain and identity of what was released since they were asked for."""
        self._too_early: list[Message] = []
        """What was received ahead of a message that was released meanwhile, and goes back for that reason."""
        self._alone = False
        """Whether a suspect is in hand."""
        self._looked = -inf

    def __len__(self) -> int:
        return len(self._ready) + len(self._held) + len(self._in_hand) + len(self._too_early)

    @property
    def size(self) -> int:
        """How many messages may be here at once, held ones not counted."""
        return self._size

    @property
    def in_hand(self) -> Sequence[Message]:
        """What is being handled, or was handled and is not settled yet."""
        return tuple(self._in_hand.values())

    @property
    def waiting(self) -> Sequence[Message]:
        """What nobody has begun to handle, in its order: held first."""
        return (*(held.message for held in self._held), *self._ready, *self._too_early)

    # -- coming in

    def room(self) -> int:
        """How many messages to ask the broker for. Held ones count only against the largest buffer."""
        self._asked = True
        self._released_meanwhile.clear()
        if self._alone:
            return 0
        here = len(self)
        return max(0, min(self._size - here + len(self._held), self._largest - here))

    def offer(self, messages: Iterable[Message], now: float) -> None:
        """Add what was received. A message that was nacked here is held until due; a redelivery takes its old place."""
        for message in messages:
            if message.unexplained or (self._accused and message.identity in self._accused):
                self._size = 1
            if message.deliveries > 1 and self._replaced(message):
                continue
            due = self._due(message)
            if self._released_meanwhile and self._is_too_early(message):
                self._too_early.append(message)
            elif due > now:
                self._held.append(_Held(message, due))
            else:
                self._ready.append(message)
        self._asked = False
        self._released_meanwhile.clear()
        if self._released:
            here = {message.identity for message in (*self.waiting, *self._in_hand.values())}
            self._released = {
                each: released for each, released in self._released.items() if released.due > now or each in here
            }

    def _is_too_early(self, message: Message) -> bool:
        """Whether a message of its domain was released while this one was on its way, and does not come before it."""
        domain = self.domain(message)
        if self._released_meanwhile.get(domain) == message.identity:
            del self._released_meanwhile[domain]
        return domain in self._released_meanwhile

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
            if message.unexplained or (self._accused and message.identity in self._accused):
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
        self._drop(lambda message: is_lost(message, now))
        message = next(self._startable(now), None)
        if message is None:
            return None
        if self._is_suspect(message):
            if len(self) > 1 or not self._admitted():
                return None  # the others go first: back to the broker, or to their end
            self._alone = True
        if self._remove(message):
            self._presented_again.add(message.identity)
        self._in_hand[message.identity] = message
        return message

    def _startable(self, now: float) -> Iterator[Message]:
        busy: set[Hashable] = set()
        blocked: set[Hashable] = set()
        for message in self._in_hand.values():
            busy.add(self._key(message))
            if message.identity in self._presented_again or message.identity in self._released:
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
        known = message.unexplained > 0 or message.identity in self._accused
        return known and self._suspect(message)

    def to_hand_back(self, now: float) -> Sequence[Message]:
        """What has to go back to the broker: what came too early, or what is here beside the suspect that is next."""
        if self._too_early:
            back, self._too_early = self._too_early, []
            return back
        if self._in_hand or not (self._ready or self._held) or len(self) == 1:
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
        """When the first held message comes due that was not due at the last look; this call is the next such look.

        A message that was due already, and could not begin, waits for others and not for a time: returning its time
        again and again would be a loop without a wait.
        """
        dues = [held.due for held in self._held if held.due > self._looked]
        self._looked = now
        return min(dues, default=None)

    # -- ending

    def settled(self, message: Message) -> None:
        """A message in hand is settled, or is not ours any more: its slot is free."""
        if not self._ended(message):
            return
        if self._released:
            released = self._released.get(message.identity)
            if released is not None and released.delivery is not message:  # it came again, and is settled now
                del self._released[message.identity]
        elif self._size < self._largest and not message.unexplained and not message.lost:
            self._size = min(self._largest, self._size * 2)

    def _ended(self, message: Message) -> bool:
        if self._in_hand.get(message.identity) is not message:
            return False
        del self._in_hand[message.identity]
        if self._left or self._presented_again or self._alone:
            self._left.discard(message.identity)
            self._presented_again.discard(message.identity)
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

    def leave_unsettled(self, message: Message) -> None:
        """Its handler has returned without settling it: it keeps its slot until its lease ends."""
        if self._in_hand.get(message.identity) is message:
            self._left.add(message.identity)

    def release(self, message: Message, due: float) -> Sequence[Message]:
        """A message in hand goes back to the broker and blocks its domain. Its successors, returned, go back first."""
        self._size = 1
        self._released[message.identity] = _Released(message, due)
        domain = self.domain(message)
        if domain is None:
            return ()
        if self._asked:
            self._released_meanwhile[domain] = message.identity
        successors = [each for each in self.waiting if self.domain(each) == domain]
        for each in successors:
            self._remove(each)
        return successors

    def drain(self) -> Sequence[Message]:
        """Remove and return, in order, everything that nobody has begun to handle."""
        waiting = self.waiting
        self._held.clear()
        self._ready.clear()
        self._too_early.clear()
        return waiting

    def expire(self, now: float) -> Sequence[Message]:
        """Drop what is lost; returns those messages of it that are in hand, marked as lost."""
        return self._drop(lambda message: is_lost(message, now))

    def drop_others(self, generation: int) -> Sequence[Message]:
        """Drop what an earlier generation received; returns those messages of it that are in hand, marked as lost."""
        return self._drop(lambda message: message.generation != generation)

    def leased(self, before: float) -> Sequence[Message]:
        """The messages whose lease has to be renewed: it ends before then, and their handlers have not returned."""
        return [
            message
            for message in (*self._in_hand.values(), *self.waiting)
            if message.lease_expires is not None
            and message.lease_expires < before
            and message.identity not in self._left
            and not message.lost
        ]

    def _drop(self, gone: Callable[[Message], bool]) -> Sequence[Message]:
        if self._ready or self._held:
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
        """Remove a waiting message; True if it was held."""
        for place, held in enumerate(self._held):
            if held.message is message:
                del self._held[place]
                return True
        (self._ready if message in self._ready else self._too_early).remove(message)
        return False

    # -- order

    def _key(self, message: Message) -> Hashable:
        if message.header.key is not None:
            return message.header.key
        if message.partition is not None:
            return message.partition
        return CHANNEL if self._ordered else None

    def domain(self, message: Message) -> Hashable:
        """What waits while this message is held or released: everything of the same domain, or nothing for None."""
        if message.partition is not None:
            return message.partition
        if message.header.key is not None:
            return message.header.key
        return CHANNEL if self._ordered or self._blocks == "channel" else None


def is_lost(message: Message, now: float) -> bool:
    """Whether the message is known not to be ours any more: marked as lost, or its lease has ended."""
    return message.lost or (message.lease_expires is not None and message.lease_expires <= now)


def _replaces(message: Message, earlier: Message) -> bool:
    """Whether it is a redelivery of the earlier one, whose receipt is void then, and not another message of that id."""
    return (
        message.identity == earlier.identity
        and message.deliveries > earlier.deliveries
        and (message.generation != earlier.generation or earlier.lease_expires is not None)
    )
