"""Which message may be handled next. Pure: its caller tells it what came, what ended and the time; it never waits."""

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
    """A delivery that went back to the broker. It blocks its domain until the message came again and was settled."""

    delivery: Message
    due: float


class Intake:
    """The messages one channel has received and not settled: ready, held until due, or in hand.

    It promises:

    * at most `slots` messages are in hand, and at most one of a key, in the order of the key;
    * it asks for as many messages as may be in hand once a message has come that cannot have killed the process;
    * a message that is held or was released blocks the later ones of its domain until it is settled;
    * a suspect, which may kill the process, is handed out only when no other handler runs, and `alone` agrees;
    * the buffer shrinks to one at a redelivery of unknown outcome. Messages are then asked for one at a time until one
      of known outcome comes, and the buffer grows again only by first deliveries;
    * it never asks for more messages than the buffer, or the slots, have room for;
    * a lost message is never handed out; `dropped` is called with it if no handler had begun it.
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
        """The identities of messages that may be suspects, although the broker counts no earlier delivery."""
        self._admitted: Final = alone
        self._due: Final = due
        self._dropped: Final = dropped
        self._size = 1
        self._careful = True
        """Whether to ask for one message at a time: none has come yet, or one of the last may kill the process."""
        self._in_hand: Final[dict[str, Message]] = {}
        self._backlog: Final = Backlog(self._key if slots > 1 else _no_key, self.domain, self._in_hand)
        self._fresh: Final = self._backlog.fresh
        self._places: Final = self._backlog.places
        self._left: Final[set[str]] = set()
        """The identities of messages in hand whose handlers have returned without settling them."""
        self._blocking: Final[dict[str, Hashable]] = {}
        """The domain that each message in hand blocks, by identity. Such a message was held or released before."""
        self._released: dict[str, _Released] = {}
        self._asked = False
        """Whether messages may be on their way here."""
        self._released_meanwhile: dict[Hashable, str] = {}
        """The messages released since those on their way were asked for: the identity by domain."""
        self._too_early: list[Message] = []
        """Messages that came before a message that was released meanwhile; they go back, to keep the order."""
        self._alone: Message | None = None
        """The suspect whose handler is running."""
        self._expiry = inf
        """No lease here ends before this time, except that of a message in hand that is known to be lost."""

    def __len__(self) -> int:
        return len(self._backlog) + len(self._in_hand) + len(self._too_early)

    @property
    def size(self) -> int:
        """How many messages may be buffered; held ones do not count."""
        return self._size

    @property
    def in_hand(self) -> Sequence[Message]:
        """The messages that are being handled, or were handled and are not settled yet."""
        return tuple(self._in_hand.values())

    @property
    def waiting(self) -> Sequence[Message]:
        """The messages that no handler has begun, in order, held ones first."""
        return (*self._backlog.messages, *self._too_early)

    # -- coming in

    def room(self) -> int:
        """How many messages to ask the broker for. Held messages count only against the largest buffer.

        So do messages that their handlers left unsettled: they cannot kill the process, so the buffer is not for them.
        """
        self._asked = True
        self._released_meanwhile.clear()
        if self._alone is not None:
            return 0
        unbegun = len(self._backlog) - self._backlog.held + len(self._too_early)
        running = len(self._in_hand) - len(self._left)
        if self._careful:
            room = 1 - running - unbegun
        elif self._released:  # one message at a time: those behind a nacked one would have to go back
            room = min(1, self._slots - len(self._in_hand)) - unbegun
        else:
            room = max(self._size, self._slots) - running - unbegun
        return max(0, min(room, self._largest - len(self)))

    def offer(self, messages: Sequence[Message], now: float) -> None:
        """Add received messages. One that was nacked here is held until due; a redelivery takes its old place."""
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
        """Whether an earlier delivery of the message may have ended with its process."""
        return message.identity in self._accused or (message.unexplained > 0 and self._unknown(message))

    def _is_too_early(self, message: Message) -> bool:
        """Whether a message of its domain was released while this one was on its way, and has not come before it."""
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
        """Forget released messages that are due and have not come: another consumer has them."""
        over = [identity for identity, released in self._released.items() if released.due <= now]
        here = {message.identity for message in self.waiting} if over else ()
        for identity in over:
            if identity not in here and identity not in self._in_hand:
                del self._released[identity]

    # -- going out

    def take(self, now: float) -> Message | None:
        """Take the next message to handle into hand and return it; None if none may begin."""
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
                return None  # first the others go back to the broker, or end
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
        """Note that the message blocks its domain; `counted` if the backlog knows that already."""
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
        """The messages that must go back to the broker: those that came too early, or all but the next suspect."""
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
        """A message in hand is settled or lost: its slot is free."""
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
        if came_again or self.domain(message) is None:  # without a domain, no message waits for it
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
        """Hold a message in hand: it is presented again here when due, before its successors."""
        if not self._ended(message):
            return  # it is settled already
        newer = None
        if message.identity in self._backlog.again:
            newer = next((each for each in self._backlog.ready if _replaces(each, message)), None)
            self._backlog.remove(lambda each: each is newer)
        self._backlog.hold(newer or message.again(), due)

    def leave_unsettled(self, message: Message) -> None:
        """The message's handler has returned without settling it: it keeps its slot until its lease ends."""
        if self._in_hand.get(message.identity) is message:
            self._left.add(message.identity)
            if self._alone is message:
                self._alone = None

    def release(self, message: Message, due: float) -> Sequence[Message]:
        """A message in hand goes back to the broker and blocks its domain. Returns its successors, to go back first."""
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
        """Remove and return, in order, all messages that no handler has begun."""
        early, self._too_early = self._too_early, []
        return (*self._backlog.remove(lambda _: True), *early)

    def drain_all_but_successors(self) -> Sequence[Message]:
        """The same, but leave those that wait behind a message in hand of their domain."""
        domains = {self.domain(message) for message in self._in_hand.values()} - {None}
        early, self._too_early = self._too_early, []
        return (*self._backlog.remove(lambda message: self.domain(message) not in domains), *early)

    def look_for_lost(self) -> None:
        """Let the next `expire` look at every message: the caller has marked one as lost, or may have."""
        self._expiry = -inf

    def expire(self, now: float) -> Sequence[Message]:
        """Drop the lost messages; returns those of them that are in hand, marked as lost."""
        if now < self._expiry:
            return ()
        lost = self._drop(lambda message: is_lost(message, now))
        ends = (each.lease_expires for each in (*self._in_hand.values(), *self.waiting) if not each.lost)
        self._expiry = min((end for end in ends if end is not None), default=inf)
        return lost

    def drop_others(self, generation: int) -> Sequence[Message]:
        """Drop the messages of earlier generations; returns those of them that are in hand, marked as lost."""
        return self._drop(lambda message: message.generation != generation)

    def leased(self, before: float) -> Sequence[Message]:
        """The messages whose lease must be renewed: it ends before this time, and their handlers have not returned."""
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
        """The message's domain: all its messages wait while this one is held or released. None: no message waits."""
        if message.partition is not None:
            return message.partition
        if message.header.key is not None:
            return message.header.key
        return CHANNEL if self._ordered or self._blocks == "channel" else None


def is_lost(message: Message, now: float) -> bool:
    """Whether the message is lost: it is marked so, or its lease has ended."""
    return message.lost or (message.lease_expires is not None and message.lease_expires <= now)


def _no_key(_: Message) -> None:
    """Keys are not needed where only one message is in hand at a time."""


def _replaces(message: Message, earlier: Message) -> bool:
    """Whether it is a redelivery that makes the earlier one's receipt void, and not another message of that id."""
    return (
        message.identity == earlier.identity
        and message.deliveries > earlier.deliveries
        and (message.generation != earlier.generation or earlier.lease_expires is not None)
    )
