"""What the durable queue promises, kept by hand: for every group each message is in one state, and this says which."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pump.queue.vocabulary import Leased, PopResult, Settlement, State, Status

RETRY_LIMIT = 2
MAX_WAIT_SECONDS = 5000.0
SLACK_SECONDS = 60.0
"""So long may a test really take; no age is compared more exactly."""

Key = tuple[str, str]
"""Partition and name of a message."""


@dataclass
class Standing:
    """One message for one group, where it is not as new."""

    settled: State | None = None
    lease: str | None = None
    """Of whoever had it last and did not settle it."""
    until: float = 0.0
    retries: int = 0
    crashes: int = 0


@dataclass
class Message:
    due: float
    placed: bool = False
    """Whether it has its place, which it never loses, whatever the clock says."""
    standings: dict[str, Standing] = field(default_factory=dict)

    def of(self, group: str) -> Standing:
        return self.standings.setdefault(group, Standing())


class Model:
    """All messages of one queue."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.messages: dict[Key, Message] = {}
        self.groups: set[str] = set()
        self.leases: dict[tuple[str, str], tuple[str, float]] = {}
        """Of partitions, where these are leased as a whole: by group and partition."""

    # -- reading

    def state(self, group: str, key: Key, now: float) -> State:
        standing = self.messages[key].of(group)
        if standing.settled is not None:
            return standing.settled
        return State.LEASED if self.is_held(group, key, now) else State.PENDING

    def is_held(self, group: str, key: Key, now: float) -> bool:
        standing = self.messages[key].of(group)
        if standing.lease is None:
            return False
        if not self.ordered:
            return standing.until > now
        lease, until = self.leases.get((group, key[0]), ("", 0.0))
        return lease == standing.lease and until > now

    def partition_is_held(self, group: str, partition: str, now: float) -> bool:
        return self.ordered and self.leases.get((group, partition), ("", 0.0))[1] > now

    def ready(self, group: str, now: float, partition: str | None = None) -> Iterator[Key]:
        """What a pop could get."""
        for key, message in self.messages.items():
            free = not self.partition_is_held(group, key[0], now)
            wanted = free and partition in {None, key[0]} and (message.placed or message.due <= now)
            if wanted and self.state(group, key, now) is State.PENDING:
                yield key

    def is_spent(self, group: str, key: Key, now: float) -> bool:
        """Whether the message dies when somebody looks at it, since those who had it never settled it."""
        standing = self.messages[key].of(group)
        left = standing.lease is not None and self.state(group, key, now) is State.PENDING
        return left and standing.retries + standing.crashes + 1 > RETRY_LIMIT

    def is_overdue(self, key: Key, now: float) -> bool:
        return self.messages[key].due + MAX_WAIT_SECONDS < now + SLACK_SECONDS

    # -- what happens

    def push(self, key: Key, due: float) -> None:
        self.messages.setdefault(key, Message(due))

    def taken(self, group: str, taken: PopResult, until: float, now: float) -> None:
        """Check a pop's answer and remember who has what."""
        for message in taken.messages:
            self.take(group, message, now)
        for message in taken.messages:
            standing = self.messages[message.partition, message.transaction_id].of(group)
            if not taken.lease_id:
                standing.settled, standing.lease = State.COMPLETED, None
            else:
                standing.lease, standing.until = taken.lease_id, until
            if self.ordered:
                self.leases[group, message.partition] = (taken.lease_id, until if taken.lease_id else 0.0)

    def take(self, group: str, message: Leased, now: float) -> None:
        key = (message.partition, message.transaction_id)
        known = self.messages[key]
        assert known.placed or known.due <= now + SLACK_SECONDS, "it is not due yet"
        assert self.state(group, key, now) is State.PENDING, "it was handed out although it is not pending"
        assert not self.partition_is_held(group, message.partition, now), "its partition is somebody else's"
        assert message.payload == message.transaction_id.encode()
        standing = self.messages[key].of(group)
        standing.crashes += standing.lease is not None
        assert (message.retries, message.crashes) == (standing.retries, standing.crashes)
        assert message.retries + message.crashes <= RETRY_LIMIT, "it is spent"

    def settle(
        self, said: Sequence[Settlement], partitions: dict[str, str], now: float, leases: Iterable[str] = ()
    ) -> list[bool]:
        """What each settlement does; whether it was somebody's to say."""
        valid: list[bool] = []
        back: set[tuple[str, str]] = set()
        touched: set[tuple[str, str]] = set()
        for each in said:
            place = (each.group, partitions[each.partition_id])
            key = (place[1], each.transaction_id)
            named = set(leases) if each.lease_id is None else {each.lease_id}
            holder = self.messages[key].of(each.group).lease if key in self.messages else None
            allowed = holder in named and self.is_held(each.group, key, now)
            valid.append(allowed)
            if allowed:
                touched.add(place)
                if self.carry_out(each, key):
                    back.add(place)
        for place in touched:
            self.conclude(place, gave_back=place in back)
        return valid

    def carry_out(self, said: Settlement, key: Key) -> bool:
        """Whether the message goes back."""
        standing = self.messages[key].of(said.group)
        standing.lease = None
        standing.retries += said.status is Status.FAILED
        spent = said.status is Status.FAILED and standing.retries + standing.crashes > RETRY_LIMIT
        if said.status is Status.COMPLETED:
            standing.settled = State.COMPLETED
        elif said.status is Status.DEAD or spent:
            standing.settled = State.DEAD
        return standing.settled is None

    def conclude(self, place: tuple[str, str], *, gave_back: bool) -> None:
        """In order, a lease ends when something went back, or nothing is left."""
        if not self.ordered:
            return
        lease = self.leases[place][0]
        left = [
            message.of(place[0])
            for key, message in self.messages.items()
            if key[0] == place[1] and message.of(place[0]).lease == lease
        ]
        if gave_back or not left:
            del self.leases[place]
            for standing in left:
                standing.lease = None

    def extend(self, lease_id: str, until: float, now: float) -> bool:
        """Whether there was a live lease to extend."""
        found = False
        for place, (lease, end) in list(self.leases.items()):
            if lease == lease_id and end > now:
                self.leases[place] = (lease, max(end, until))
                found = True
        for message in self.messages.values():
            for standing in message.standings.values():
                if not self.ordered and standing.lease == lease_id and standing.until > now:
                    standing.until = max(standing.until, until)
                    found = True
        return found

    def seek(self, group: str, *, to_end: bool) -> None:
        self.leases = {place: lease for place, lease in self.leases.items() if place[0] != group}
        for message in self.messages.values():
            old = message.of(group).settled
            message.standings[group] = Standing()
            if to_end and message.placed:
                message.of(group).settled = State.DEAD if old is State.DEAD else State.COMPLETED

    def forget(self, group: str) -> None:
        self.groups.discard(group)
        self.leases = {place: lease for place, lease in self.leases.items() if place[0] != group}
        for message in self.messages.values():
            message.standings.pop(group, None)

    def remove(self, key: Key) -> None:
        removed = self.messages.pop(key)
        for group, standing in removed.standings.items():
            place = (group, key[0])
            if place in self.leases and standing.lease == self.leases[place][0]:
                self.conclude(place, gave_back=False)

    def give_up(self, key: Key, only: str | None) -> int:
        """Dead for whoever has not settled it; for how many groups that was."""
        wanted = [group for group in self.groups if only in {None, group}]
        given_up = [group for group in wanted if self.messages[key].of(group).settled is None]
        for group in given_up:
            standing = self.messages[key].of(group)
            lease, standing.lease, standing.settled = standing.lease, None, State.DEAD
            place = (group, key[0])
            if place in self.leases and lease == self.leases[place][0]:
                self.conclude(place, gave_back=False)
        return len(given_up)

    def purge(self, group: str, now: float) -> int:
        """Completed is what nobody has; how many messages that were."""
        keys = [key for key in self.messages if self.state(group, key, now) is State.PENDING]
        for key in keys:
            self.messages[key].of(group).settled = State.COMPLETED
            self.messages[key].of(group).lease = None
        self.leases = {
            place: (lease, until) for place, (lease, until) in self.leases.items() if place[0] != group or until > now
        }
        return len(keys)

    def retry(self, key: Key) -> int:
        """Dead for nobody any more; for how many groups it was."""
        dead = [group for group in self.groups if self.messages[key].of(group).settled is State.DEAD]
        for group in dead:
            self.messages[key].standings[group] = Standing()
        return len(dead)
