"""Which message may be handled next. Pure: it is told what came, what ended and what time it is, and never waits."""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from pump.message import Message
from pump.pumps.backlog import Backlog

CHANNEL: Final = object()
"""The key or domain of every message, where the whole channel is kept in order."""


@dataclass(frozen=True, slots=True)
class _Released:
    """A delivery that went back to the broker and blocks its domain until the message has come again and is settled."""

    delivery: Message
    due: float


class Intake:
    """The messages one channel has received and not settled: ready, held until due, or in hand.

    It promises:

    * never more than `slots` messages are in hand, and of one key one at a time, in order;
    * as many as may be in hand are asked for as soon as the first message is known to be no redelivery;
    * a message that is held or was released blocks the later ones of its domain until it is settled;
    * a suspect, which may kill the process, is handed out only when no other handler runs, and `alone` agrees;
    * the buffer shrinks to one at a redelivery of unknown outcome, which is handled alone until a first delivery comes,
      and grows again only by first deliveries;
    * never more messages are asked for than the buffer, or the slots, have room for;
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
        unknown: Callable[[Message], bool],
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
        self._unknown: Final = unknown
        """Whether an earlier delivery of the message may have ended with its process."""
        self._accused: Final = accused
        """The identities of messages that may be suspects though the broker counts no delivery."""
        self._admitted: Final = alone
        self._due: Final = due
        self._dropped: Final = dropped
        self._size = 1
        self._careful = True
        """Whether only one is asked for: nothing is known yet, or the last one to come may kill the process."""
        self._in_hand: Final[dict[str, Message]] = {}
        self._backlog: Final = Backlog(self._key if slots > 1 else _no_key, self.domain, self._in_hand)
        self._fresh: Final = self._backlog.fresh
        self._places: Final = self._backlog.places
        self._left: Final[set[str]] = set()
        """Those in hand whose handlers have returned without settling them."""
        self._blocking: Final[dict[str, Hashable]] = {}
        """The domains that those in hand block, which were held or released before."""
        self._released: dict[str, _Released] = {}
        self._asked = False
        """Whether messages may be on their way here …"""
        self._released_meanwhile: dict[Hashable, str] = {}
        """… and, if so, domain and identity of what was released since they were asked for."""
        self._too_early: list[Message] = []
        """What was received ahead of a message that was released meanwhile, and goes back for that reason."""
        self._alone: Message | None = None
        """The suspect whose handler is running."""
        self._expiry = inf
        """No lease of what is here ends before, unless it is in hand and known to be lost."""

    def __len__(self) -> int:
        return len(self._backlog) + len(self._in_hand) + len(self._too_early)

    @property
    def size(self) -> int:
        """How many messages may be buffered, held ones not counted."""
        return self._size

    @property
    def in_hand(self) -> Sequence[Message]:
        """What is being handled, or was handled and is not settled yet."""
        return tuple(self._in_hand.values())

    @property
    def waiting(self) -> Sequence[Message]:
        """What nobody has begun to handle, in its order: held first."""
        return (*self._backlog.messages, *self._too_early)

    # -- coming in

    def room(self) -> int:
        """How many messages to ask the broker for. Held ones count only against the largest buffer.

        So do those that their handlers have left: they cannot kill the process any more, and are no part of the buffer.
        """
        self._asked = True
        self._released_meanwhile.clear()
        if self._alone is not None:
            return 0
        unbegun = len(self._backlog) - self._backlog.held + len(self._too_early)
        running = len(self._in_hand) - len(self._left)
        if self._careful:
            room = 1 - running - unbegun
        elif self._released:  # a slot is filled by one message at a time: those behind the refused one would go back
            room = min(1, self._slots - len(self._in_hand)) - unbegun
        else:
            room = max(self._size, self._slots) - running - unbegun
        return max(0, min(room, self._largest - len(self)))

    def offer(self, messages: Sequence[Message], now: float) -> None:
        """Add what was received. A message that was nacked here is held until due; a redelivery takes its old place."""
        careful = False
        for message in messages:
            if (message.unexplained or self._accused) and self._may_have_killed(message):
                careful, self._size = True, 1
            expires = message.lease_expires
            if expires is not None and expires < self._expiry:
                self._expiry = expires
            if message.deliveries > 1 and self._replaced(message):
                continue
            due = self._due(message)
            if self._released_meanwhile and self._is_too_early(message):
                self._too_early.append(message)
            elif due > now:
                self._backlog.hold(message, due)
            else:
                self._backlog.add(message)
        if messages:
            self._careful = careful
        self._asked = False
        self._released_meanwhile.clear()
        if self._released:
            self._forget_released(now)

    def _may_have_killed(self, message: Message) -> bool:
        """Whether an earlier delivery of it may have ended with its process."""
        return message.identity in self._accused or (message.unexplained > 0 and self._unknown(message))

    def _is_too_early(self, message: Message) -> bool:
        """Whether a message of its domain was released while this one was on its way, and does not come before it."""
        domain = self.domain(message)
        if self._released_meanwhile.get(domain) == message.identity:
            del self._released_meanwhile[domain]
        return domain in self._released_meanwhile

    def _replaced(self, message: Message) -> bool:
        earlier = self._backlog.replace(message, _replaces) if len(self._backlog) else None
        if earlier is None:
            return False
        self._lose(earlier)
        return True

    def _forget_released(self, now: float) -> None:
        """Forget those that are due and have not come: somebody else has them."""
        over = [identity for identity, released in self._released.items() if released.due <= now]
        here = {message.identity for message in self.waiting} if over else ()
        for identity in over:
            if identity not in here and identity not in self._in_hand:
                del self._released[identity]

    # -- going out

    def take(self, now: float) -> Message | None:
        """The next message to handle, which then is in hand; None if none may begin."""
        if self._places or self._slots > 1:
            return self._choose(now)
        while self._fresh and not self._in_hand:
            message = self._fresh[0]
            if message.unexplained or (self._accused and message.identity in self._accused):
                return self._choose(now)
            self._fresh.popleft()
            expires = message.lease_expires
            if not message.lost and (expires is None or expires > now):
                self._in_hand[message.identity] = message
                return message
            self._lose(message)
        return None

    def _choose(self, now: float) -> Message | None:
        if self._alone is not None or len(self._in_hand) >= self._slots:
            return None
        message = self._backlog.first(now)
        while message is not None and is_lost(message, now):
            self._drop_one(message)
            message = self._backlog.first(now)
        if message is None:
            return None
        if self._is_suspect(message):
            if len(self) - len(self._left) > 1 or not self._admitted():
                return None  # the others go first: back to the broker, or to their end
            self._alone = message
        self._begin(message)
        return message

    def _drop_one(self, message: Message) -> None:
        self._backlog.remove(lambda each: each is message)
        self._lose(message)

    def _begin(self, message: Message) -> None:
        identity = message.identity
        was_held = self._backlog.start(message)
        self._in_hand[identity] = message
        if was_held or identity in self._released:
            self._blocks_its_domain(message, counted=was_held)

    def _blocks_its_domain(self, message: Message, *, counted: bool = False) -> None:
        """Note that it blocks its domain; `counted` where the backlog knows already."""
        domain = self.domain(message)
        if domain is None or message.identity in self._blocking:
            return
        self._blocking[message.identity] = domain
        if not counted:
            self._backlog.block(domain)

    def _is_suspect(self, message: Message) -> bool:
        known = message.unexplained > 0 or message.identity in self._accused
        return known and self._suspect(message)

    def to_hand_back(self, now: float) -> Sequence[Message]:
        """What has to go back to the broker: what came too early, or what is here beside the suspect that is next."""
        if self._too_early:
            back, self._too_early = self._too_early, []
            return back
        if len(self._in_hand) > len(self._left) or len(self._backlog) <= 1:
            return ()
        suspect = self._backlog.first(now)
        if suspect is None or not self._is_suspect(suspect):
            return ()
        self._size = 1
        return self._backlog.remove(lambda each: each is not suspect)

    def next_due(self, now: float) -> float | None:
        """When the first held message comes due that was not due at the last look; this call is the next such look."""
        return self._backlog.next_due(now)

    # -- ending

    def settled(self, message: Message) -> None:
        """A message in hand is settled, or is not ours any more: its slot is free."""
        if not self._ended(message):
            return
        if self._released:
            self._came_to_an_end(message)
        elif self._size < self._largest and not message.unexplained and not message.lost:
            self._size = min(self._largest, self._size * 2)

    def _came_to_an_end(self, message: Message) -> None:
        released = self._released.get(message.identity)
        if released is None:
            return
        came_again = released.delivery is not message
        if came_again or self.domain(message) is None:  # without a domain nothing waits for it to come again
            del self._released[message.identity]

    def _ended(self, message: Message) -> bool:
        if self._in_hand.get(message.identity) is not message:
            return False
        del self._in_hand[message.identity]
        if self._left or self._blocking or self._alone is not None:
            self._left.discard(message.identity)
            if self._alone is message:
                self._alone = None
            if message.identity in self._blocking:
                self._backlog.unblock(self._blocking.pop(message.identity))
        if self._places or self._slots > 1:
            self._backlog.ended(message)
        return True

    def hold(self, message: Message, due: float) -> None:
        """A message in hand is to be presented again here, ahead of its successors."""
        if not self._ended(message):
            return  # settled already: there is nothing to present again
        newer = None
        if message.identity in self._backlog.again:
            newer = next((each for each in self._backlog.ready if _replaces(each, message)), None)
            self._backlog.remove(lambda each: each is newer)
        self._backlog.hold(newer or message.again(), due)

    def leave_unsettled(self, message: Message) -> None:
        """Its handler has returned without settling it: it keeps its slot until its lease ends."""
        if self._in_hand.get(message.identity) is message:
            self._left.add(message.identity)
            if self._alone is message:
                self._alone = None

    def release(self, message: Message, due: float) -> Sequence[Message]:
        """A message in hand goes back to the broker and blocks its domain. Its successors, returned, go back first."""
        self._size = 1
        self._released[message.identity] = _Released(message, due)
        domain = self.domain(message)
        if domain is None:
            return ()
        if self._asked:
            self._released_meanwhile[domain] = message.identity
        if self._in_hand.get(message.identity) is message:
            self._blocks_its_domain(message)
        early = [message for message in self._too_early if self.domain(message) == domain]
        self._too_early = [message for message in self._too_early if self.domain(message) != domain]
        return (*self._backlog.remove(lambda each: self.domain(each) == domain), *early)

    def drain(self) -> Sequence[Message]:
        """Remove and return, in order, everything that nobody has begun to handle."""
        early, self._too_early = self._too_early, []
        return (*self._backlog.remove(lambda _: True), *early)

    def drain_all_but_successors(self) -> Sequence[Message]:
        """The same, but for what waits behind a message in hand of its domain."""
        domains = {self.domain(message) for message in self._in_hand.values()} - {None}
        early, self._too_early = self._too_early, []
        return (*self._backlog.remove(lambda message: self.domain(message) not in domains), *early)

    def look_for_lost(self) -> None:
        """A message here was marked as lost by somebody else."""
        self._expiry = -inf

    def expire(self, now: float) -> Sequence[Message]:
        """Drop what is lost; returns those messages of it that are in hand, marked as lost."""
        if now < self._expiry:
            return ()
        lost = self._drop(lambda message: is_lost(message, now))
        ends = (each.lease_expires for each in (*self._in_hand.values(), *self.waiting) if not each.lost)
        self._expiry = min((end for end in ends if end is not None), default=inf)
        return lost

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
        early = [message for message in self._too_early if gone(message)]
        self._too_early = [message for message in self._too_early if not gone(message)]
        for message in (*self._backlog.remove(gone), *early):
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


def _no_key(_: Message) -> None:
    """Where one message is in hand at a time, no other can begin beside it."""


def _replaces(message: Message, earlier: Message) -> bool:
    """Whether it is a redelivery of the earlier one, whose receipt is void then, and not another message of that id."""
    return (
        message.identity == earlier.identity
        and message.deliveries > earlier.deliveries
        and (message.generation != earlier.generation or earlier.lease_expires is not None)
    )
