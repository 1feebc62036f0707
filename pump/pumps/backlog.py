"""The messages of one channel that no handler has begun, in order. A part of the Intake; pure, like it.

It finds the next message that may begin, and does not look again and again at those that may not. A message that has
to wait for something is put aside until that has ended. So a message costs the same however many others wait.
"""

import itertools
from collections import deque
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from pump.message import Message

Reason = tuple[str, Hashable]
"""What a message waits for: a key, a domain or an identity that must first be free."""


@dataclass(eq=False, slots=True)
class _Place:
    """The place of one message that has to wait, or is held."""

    message: Message
    number: int
    due: float | None = None
    """The earliest time at which a held message may begin; None for any other."""


class Backlog:
    """The messages that wait, held until due or ready. It knows which keys are in hand and which domains are blocked.

    It promises:

    * messages of one key begin in order, and never while another of that key is in hand;
    * no message begins that is behind a held message of its domain, or whose domain is blocked;
    * held messages that are due come before ready ones.
    """

    def __init__(
        self, key: Callable[[Message], Hashable], domain: Callable[[Message], Hashable], in_hand: Container[str]
    ) -> None:
        self.fresh: Final[deque[Message]] = deque()
        """Ready messages without a place yet, in order; they came after all that have one. While there are no places,
        the first of them may be taken from here directly."""
        self._key: Final = key
        self._domain: Final = domain
        self._in_hand: Final = in_hand
        """The identities that are in hand."""
        self.places: Final[dict[int, _Place]] = {}
        """All places by number, which is their order. While there is none, the first fresh message is the next."""
        self.held = 0
        """How many of the places are held."""
        self._numbers: Final = itertools.count()
        self._held_lines: Final[dict[Hashable, deque[_Place]]] = {}
        """Held messages in lines, by domain. Only the first of each line may begin."""
        self._lines: Final[dict[Hashable, deque[_Place]]] = {}
        """Ready messages in lines, by key. Only the first of each line may begin."""
        self._dues: Final[list[tuple[float, int, _Place]]] = []
        """A heap of the held messages that wait only for their time."""
        self._candidates: Final[list[tuple[bool, int, _Place]]] = []
        """A heap of the messages that may perhaps begin now; held ones first."""
        self._waiting_for: Final[dict[Reason, list[_Place]]] = {}
        self._busy: Final[set[Hashable]] = set()
        """The keys of which a message is in hand."""
        self._blocked: Final[dict[Hashable, int]] = {}
        """How many messages in hand block each domain."""
        self.again: Final[set[str]] = set()
        """The identities of the redeliveries that are here, and perhaps of some that were here."""

    def __len__(self) -> int:
        return len(self.fresh) + len(self.places)

    @property
    def messages(self) -> Sequence[Message]:
        """All messages in order, held ones first."""
        return (*(place.message for place in self._in_order()), *self.fresh)

    @property
    def ready(self) -> Sequence[Message]:
        """The messages that are not held, in order."""
        return self.messages[self.held :]

    def _in_order(self) -> Sequence[_Place]:
        places = self.places.values()
        return [*(each for each in places if each.due is not None), *(each for each in places if each.due is None)]

    # -- coming in

    def add(self, message: Message) -> None:
        """Add a ready message, behind all others."""
        if message.deliveries > 1:
            if not self:  # messages that were taken from `fresh` directly are still in it
                self.again.clear()
            self.again.add(message.identity)
        self.fresh.append(message)

    def hold(self, message: Message, due: float) -> None:
        """Add a held message: it may begin when it is due, and ready messages of its domain wait for it."""
        place = _Place(message, next(self._numbers), due)
        self.places[place.number] = place
        self.held += 1
        if message.deliveries > 1:
            self.again.add(message.identity)
        domain = self._domain(message)
        if domain is not None:
            line = self._held_lines.setdefault(domain, deque())
            line.append(place)
            if line[0] is not place:
                return
        heappush(self._dues, (due, place.number, place))

    def replace(self, message: Message, replaces: Callable[[Message, Message], bool]) -> Message | None:
        """Put the message in the place of the first one that it replaces; returns the replaced one, or None."""
        for place in self._in_order():
            earlier = place.message
            if replaces(message, earlier):
                place.message = message
                self.again.add(message.identity)
                return earlier
        for number, earlier in enumerate(self.fresh):
            if replaces(message, earlier):
                self.fresh[number] = message
                self.again.add(message.identity)
                return earlier
        return None

    # -- which is next

    def first(self, now: float) -> Message | None:
        """The next message that may begin, or None. It stays here until it is started or removed."""
        self._pass_time(now)
        while self._candidates:
            place = self._candidates[0][2]
            reason = self._obstacle(place.message, ready=place.due is None)
            if reason is None:
                return place.message
            heappop(self._candidates)
            self._waiting_for.setdefault(reason, []).append(place)
        while self.fresh:
            message = self.fresh[0]
            key = self._key(message)
            line = None if key is None else self._lines.get(key)
            reason = None if line is not None else self._obstacle(message, ready=True)
            if line is None and reason is None:
                return message
            place = _Place(self.fresh.popleft(), next(self._numbers))
            self.places[place.number] = place
            if line is not None:
                line.append(place)
                continue
            if key is not None:
                self._lines[key] = deque((place,))
            if reason is not None:
                self._waiting_for.setdefault(reason, []).append(place)
        return None

    def _obstacle(self, message: Message, *, ready: bool) -> Reason | None:
        """What keeps the first message of a line from beginning now; None if nothing does."""
        key = self._key(message)
        if key is not None and key in self._busy:
            return "key", key
        if self._blocked or self._held_lines:
            domain = self._domain(message)
            if domain is not None and (domain in self._blocked or (ready and domain in self._held_lines)):
                return "domain", domain
        return ("identity", message.identity) if message.identity in self._in_hand else None

    def _pass_time(self, now: float) -> None:
        while self._dues and self._dues[0][0] <= now:
            _, number, place = heappop(self._dues)
            heappush(self._candidates, (False, number, place))

    def next_due(self, now: float) -> float | None:
        """When the first held message comes due that was not due at the last look; this call is the next such look.

        A message that was due already, and could not begin, waits for other messages, not for a time. To return its
        time again and again would be a loop without a wait.
        """
        due = self._dues[0][0] if self._dues else None
        self._pass_time(now)
        return due

    def start(self, message: Message) -> bool:
        """Move the message that `first` returned into hand; returns whether it was held, and so blocks its domain."""
        key = self._key(message)
        if key is not None:
            self._busy.add(key)
        if self.again:
            self.again.discard(message.identity)
        if not (self._candidates and self._candidates[0][2].message is message):
            self.fresh.popleft()
            return False
        place = heappop(self._candidates)[2]
        del self.places[place.number]
        if place.due is not None:
            self._start_held(place)
            return True
        if key is not None:
            self._step_up(key, self._lines[key])
        return False

    def _step_up(self, key: Hashable, line: deque[_Place]) -> None:
        line.popleft()
        if line:
            self._waiting_for.setdefault(("key", key), []).append(line[0])
        else:
            del self._lines[key]

    def _start_held(self, place: _Place) -> None:
        self.held -= 1
        domain = self._domain(place.message)
        if domain is None:
            return
        self.block(domain)
        line = self._held_lines[domain]
        line.popleft()
        if line:
            following = line[0]
            heappush(self._dues, (following.due or 0.0, following.number, following))
        else:
            del self._held_lines[domain]

    # -- what is in hand

    def ended(self, message: Message) -> None:
        """The message is not in hand any more."""
        key = self._key(message)
        if key is not None:
            self._busy.discard(key)
        if self._waiting_for:
            self._look_again(("key", key))
            self._look_again(("identity", message.identity))

    def block(self, domain: Hashable) -> None:
        """A message in hand blocks its domain."""
        self._blocked[domain] = self._blocked.get(domain, 0) + 1

    def unblock(self, domain: Hashable) -> None:
        """A message in hand no longer blocks its domain."""
        left = self._blocked[domain] - 1
        if left:
            self._blocked[domain] = left
            return
        del self._blocked[domain]
        self._look_again(("domain", domain))

    def _look_again(self, reason: Reason) -> None:
        for place in self._waiting_for.pop(reason, ()):
            heappush(self._candidates, (place.due is None, place.number, place))

    # -- leaving

    def remove(self, gone: Callable[[Message], bool]) -> Sequence[Message]:
        """Remove and return, in order, the messages that are gone. Slow: all that stay are put in line again."""
        removed = [message for message in self.messages if gone(message)]
        if not removed:
            return ()
        leaving = {id(message) for message in removed}
        staying = [place for place in self._in_order() if id(place.message) not in leaving]
        fresh = [message for message in self.fresh if id(message) not in leaving]
        self._clear()
        for place in staying:
            if place.due is None:
                self.add(place.message)
            else:
                self.hold(place.message, place.due)
        for message in fresh:
            self.add(message)
        return removed

    def _clear(self) -> None:
        self.places.clear()
        self.held = 0
        for lines in (self._held_lines, self._lines):
            lines.clear()
        self._waiting_for.clear()
        self._dues.clear()
        self._candidates.clear()
        self.fresh.clear()
        self.again.clear()
