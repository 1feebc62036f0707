"""The messages of one channel that nobody has begun to handle, in order. Pure, as the Intake, which it belongs to.

It finds the next message that may begin without looking again and again at those that may not: what was found to wait
for something is put aside, and looked at again when that has ended. So a message costs the same however many wait.
"""

import itertools
from collections import deque
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from pump.message import Message

Reason = tuple[str, Hashable]
"""What a message waits for: that a key, a domain or an identity is not in hand any more."""


@dataclass(eq=False, slots=True)
class _Place:
    """One message that was looked at and has to wait, or is held."""

    message: Message
    number: int
    due: float | None = None
    """When it may begin at the earliest, if it is held."""


class Backlog:
    """What waits: held until due, or ready. It knows which keys are in hand, and which domains something blocks.

    It promises:

    * of one key the messages begin in order, and not while one of them is in hand;
    * of one domain nothing begins that is behind a held message, or while its domain is blocked;
    * what is held and due comes before what is ready.
    """

    def __init__(
        self, key: Callable[[Message], Hashable], domain: Callable[[Message], Hashable], in_hand: Container[str]
    ) -> None:
        self.fresh: Final[deque[Message]] = deque()
        """Ready, in order, and not looked at yet. They came after all that was looked at. Without places, the first of
        them may be taken from here as it is."""
        self._key: Final = key
        self._domain: Final = domain
        self._in_hand: Final = in_hand
        """The identities that are in hand."""
        self.places: Final[dict[int, _Place]] = {}
        """By number, which is their order. While there is none, the first fresh message is the next."""
        self.held = 0
        """How many of the places are held."""
        self._numbers: Final = itertools.count()
        self._held_lines: Final[dict[Hashable, deque[_Place]]] = {}
        """By domain. Only the first of each line may begin."""
        self._lines: Final[dict[Hashable, deque[_Place]]] = {}
        """Ready ones by key. Only the first of each line may begin."""
        self._dues: Final[list[tuple[float, int, _Place]]] = []
        """A heap of the held ones that only wait for their time."""
        self._candidates: Final[list[tuple[bool, int, _Place]]] = []
        """A heap of what may begin now, as far as is known; held ones first."""
        self._waiting_for: Final[dict[Reason, list[_Place]]] = {}
        self._busy: Final[set[Hashable]] = set()
        """The keys of which a message is in hand."""
        self._blocked: Final[dict[Hashable, int]] = {}
        """How many messages in hand block each domain."""
        self.again: Final[set[str]] = set()
        """The identities of those here that are redeliveries, and perhaps of some that were."""

    def __len__(self) -> int:
        return len(self.fresh) + len(self.places)

    @property
    def messages(self) -> Sequence[Message]:
        """All of them in their order: held first."""
        return (*(place.message for place in self._in_order()), *self.fresh)

    @property
    def ready(self) -> Sequence[Message]:
        """Those that are not held, in their order."""
        return self.messages[self.held :]

    def _in_order(self) -> Sequence[_Place]:
        places = self.places.values()
        return [*(each for each in places if each.due is not None), *(each for each in places if each.due is None)]

    # -- coming in

    def add(self, message: Message) -> None:
        """It is ready, behind all others."""
        if message.deliveries > 1:
            if not self:  # those that were taken as they were
                self.again.clear()
            self.again.add(message.identity)
        self.fresh.append(message)

    def hold(self, message: Message, due: float) -> None:
        """It may begin when it is due; what is ready of its domain waits until then."""
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
        """Put it in the place of the first one here that it replaces; returns that one, or None."""
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
        """What keeps it from beginning now, were it the first of its line."""
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

        A message that was due already, and could not begin, waits for others and not for a time: returning its time
        again and again would be a loop without a wait.
        """
        due = self._dues[0][0] if self._dues else None
        self._pass_time(now)
        return due

    def start(self, message: Message) -> bool:
        """The message, which was the first, is in hand from now on; returns whether it was held, and so blocks."""
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
        """It does not any more."""
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
        """Remove and return, in order, what is gone. What stays is looked at anew, so this is not for every message."""
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
