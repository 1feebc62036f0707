"""What Service Bus keeps: queues, topics, subscriptions, with locks, counts and sub-queues. It waits for nobody.

It is as learn.microsoft.com/azure/service-bus-messaging describes it, and written to a journal, so that it outlives
the process.
"""

import bisect
import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokers.servicebus_message import Parts

DEAD = "/$deadletterqueue"
LONG_AGO = 0.0


@dataclass
class Stored:
    """A message in a queue."""

    sequence: int
    parts: Parts
    enqueued: float
    count: int = 0
    state: int = 0
    """0 active, 1 deferred, 2 scheduled."""
    token: uuid.UUID | None = None
    until: float = LONG_AGO
    taken_by: Any = None


@dataclass
class Rules:
    """How a queue or a subscription was made."""

    lock: float = 60.0
    max_delivery: int = 10
    ttl: float = 0.0
    dead_letters_expired: bool = False
    duplicates: float = 0.0
    """For how many seconds a message id is remembered; 0 is not at all."""
    sessions: bool = False
    forward: str = ""


class Refused(Exception):  # noqa: N818 - it says what happened
    """A request that cannot be done."""

    def __init__(self, condition: str, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.condition, self.text, self.code = condition, text, code


def session_lock_lost() -> Refused:
    return Refused("com.microsoft:session-lock-lost", "The session lock has expired. Accept the session again.", 410)


def lock_lost() -> Refused:
    return Refused(
        "com.microsoft:message-lock-lost",
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed.",
        410,
    )


class Queue:
    """A queue, or what a subscription keeps, or the dead letters of either."""

    def __init__(self, name: str, rules: Rules, note: Callable[..., None], *, has_dead_letters: bool = True) -> None:
        self.name, self.rules, self._note = name, rules, note
        self.last = 0
        self.ready: list[Stored] = []
        self.locked: dict[uuid.UUID, Stored] = {}
        self.deferred: dict[int, Stored] = {}
        self.scheduled: dict[int, Stored] = {}
        self.seen: dict[str, float] = {}
        self.sessions: dict[str, tuple[Any, float]] = {}
        """Which link has a session, and until when."""
        self.states: dict[str, bytes] = {}
        """What clients have noted of sessions."""
        self.dead = Queue(name + DEAD, rules, note, has_dead_letters=False) if has_dead_letters else None

    @property
    def everything(self) -> list[Stored]:
        kept = [*self.ready, *self.locked.values(), *self.deferred.values(), *self.scheduled.values()]
        return sorted({each.sequence: each for each in kept}.values(), key=lambda each: each.sequence)

    def put(self, parts: Parts, due: float = LONG_AGO) -> int:
        """Its sequence number; a duplicate is taken, and kept nowhere."""
        now = time.time()
        self.last += 1
        if self.rules.duplicates and parts.message_id and self.dead is not None:
            if now - self.seen.get(parts.message_id, LONG_AGO) < self.rules.duplicates:
                return self.last
            self.seen[parts.message_id] = now
        stored = Stored(self.last, parts, max(due, now), state=2 if due > now else 0)
        self._note("put", self.name, stored)
        self.keep(stored)
        return stored.sequence

    def keep(self, stored: Stored) -> None:
        """What was put, now or in an earlier life of the process."""
        self.last = max(self.last, stored.sequence)
        if stored.state == 2:
            self.scheduled[stored.sequence] = stored
        elif stored.state == 1:
            self.deferred[stored.sequence] = stored
        else:
            bisect.insort(self.ready, stored, key=lambda each: each.sequence)

    def take(self, session: str | None = None) -> Stored | None:
        """The next message, locked."""
        for place, stored in enumerate(self.ready):
            if session is not None and stored.parts.session != session:
                continue
            del self.ready[place]
            self.lock(stored)
            return stored
        return None

    def lock(self, stored: Stored) -> None:
        """Until the lock of its session ends, where it has one."""
        ends = time.time() + self.rules.lock
        stored.token, stored.until = uuid.uuid4(), self.sessions.get(stored.parts.session, (None, ends))[1]
        self.locked[stored.token] = stored

    def renew(self, token: uuid.UUID) -> float:
        stored = self.locked.get(token)
        if stored is None or stored.until <= time.time():
            raise lock_lost()
        stored.until = time.time() + self.rules.lock
        return stored.until

    def settle(self, token: uuid.UUID, how: str, reason: str | None = None, text: str | None = None) -> None:
        """Complete, abandon, release, defer, or make it a dead letter."""
        stored = self.locked.pop(token, None)
        if stored is None:
            raise session_lock_lost() if self.has_sessions else lock_lost()
        stored.token, deferred = None, stored.state == 1
        self.deferred.pop(stored.sequence, None)
        if how == "complete":
            self._note("gone", self.name, stored.sequence)
        elif how == "dead":
            self.bury(stored, reason, text)
        elif how == "defer" or (how == "release" and deferred):
            stored.state = 1
            self._change(stored)
        elif how == "release":
            self.keep(stored)
        else:
            self.fail(stored)

    def fail(self, stored: Stored) -> None:
        """Abandoned, or its lock has expired: counted."""
        stored.token, stored.count = None, stored.count + 1
        if self.dead is not None and stored.count >= self.rules.max_delivery and stored.state == 0:
            text = f"Message could not be consumed after {self.rules.max_delivery} delivery attempts."
            self.bury(stored, "MaxDeliveryCountExceeded", text)
        else:
            self._change(stored)

    def _change(self, stored: Stored) -> None:
        self._note("put", self.name, stored)
        self.keep(stored)

    def bury(self, stored: Stored, reason: str | None, text: str | None) -> None:
        self._note("gone", self.name, stored.sequence)
        if self.dead is None:  # a dead letter that is given up again stays where it is
            self._change(stored)
            return
        said = {"DeadLetterReason": reason, "DeadLetterErrorDescription": text}
        self.dead.last += 1
        parts = stored.parts.with_properties({name: each for name, each in said.items() if each is not None})
        dead = Stored(self.dead.last, parts, stored.enqueued, stored.count)
        self._note("put", self.dead.name, dead)
        self.dead.keep(dead)

    def tick(self, now: float) -> bool:
        """Whether something became ready: a lock has expired, a message is due."""
        before = len(self.ready)
        for token, stored in list(self.locked.items()):
            if stored.until <= now:
                del self.locked[token]
                self.fail(stored)
        for number, stored in list(self.scheduled.items()):
            if stored.enqueued <= now:
                del self.scheduled[number]
                self._note("gone", self.name, number)
                self.last += 1  # appended as if it had been sent now, with a new number
                stored.state, stored.sequence = 0, self.last
                self._change(stored)
        for stored in list(self.ready):
            ttl = min([each for each in (stored.parts.ttl, self.rules.ttl) if each], default=0.0)
            if ttl and self.dead is not None and stored.enqueued + ttl <= now:
                self.ready.remove(stored)
                if self.rules.dead_letters_expired:
                    self.bury(stored, "TTLExpiredException", "The message expired and was dead lettered.")
                else:
                    self._note("gone", self.name, stored.sequence)
        return len(self.ready) != before

    # -- sessions

    @property
    def has_sessions(self) -> bool:
        """Whether it is consumed by sessions. Dead letters are not."""
        return self.rules.sessions and self.dead is not None

    def free_session(self) -> str | None:
        """The session of the oldest message that nobody has."""
        return next((each.parts.session for each in self.ready if each.parts.session not in self.sessions), None)

    def renew_session(self, name: str) -> float:
        """Until when it is locked now, and with it all of its messages."""
        link, until = self.sessions.get(name, (None, LONG_AGO))
        if until <= time.time():
            raise session_lock_lost()
        until = time.time() + self.rules.lock
        self.sessions[name] = (link, until)
        for stored in self.locked.values():
            if stored.parts.session == name:
                stored.until = until
        return until

    def end_session(self, name: str, *, counted: bool) -> None:
        """Its messages are anybody's. Those of one whose lock has ended are counted, those of one closed are not."""
        self.sessions.pop(name, None)
        for token, stored in list(self.locked.items()):
            if stored.parts.session == name:
                if counted:
                    del self.locked[token]
                    self.fail(stored)
                else:
                    self.settle(token, "release")

    def expired_sessions(self, now: float) -> list[tuple[Any, str]]:
        """The links of sessions whose locks have ended. Look before `tick`, which counts what had a lock of its own."""
        return [(link, name) for name, (link, until) in self.sessions.items() if until <= now]


@dataclass
class Namespace:
    """All entities, and the journal in which they are kept."""

    journal: Path
    queues: dict[str, Queue] = field(default_factory=dict)
    topics: dict[str, dict[str, Queue]] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    """The XML by which each entity was made, by its path."""

    def __post_init__(self) -> None:
        self._file: Any = None
        for operation in self._read():
            self._replay(*operation)
        self._file = self.journal.open("ab", buffering=0)

    def _read(self) -> Iterator[tuple[Any, ...]]:
        if not self.journal.exists():
            return
        with self.journal.open("rb") as file:
            while True:
                try:
                    yield pickle.load(file)  # noqa: S301 - this program wrote it
                except (EOFError, pickle.UnpicklingError):  # killed in the middle of a line
                    return

    def _replay(self, what: str, name: str, *more: Any) -> None:
        if what == "entity":
            self._make(name, *more)
            return
        if what == "removed":
            self._remove(name)
            return
        queue = self.find(name)
        if queue is None:
            return
        if what == "state":
            queue.states[more[0]] = more[1]
            return
        number = more[0] if what == "gone" else more[0].sequence
        queue.ready = [each for each in queue.ready if each.sequence != number]
        queue.deferred.pop(number, None)
        queue.scheduled.pop(number, None)
        if what == "put":
            more[0].token = None
            queue.keep(more[0])

    def note(self, *operation: Any) -> None:
        if self._file is not None:
            self._file.write(pickle.dumps(operation))

    def find(self, path: str) -> Queue | None:
        """A queue, a subscription, or their dead letters."""
        lower = path.lower()
        if lower.endswith(DEAD):
            queue = self.find(lower.removesuffix(DEAD))
            return None if queue is None else queue.dead
        topic, _, subscription = lower.partition("/subscriptions/")
        return self.topics.get(topic, {}).get(subscription) if subscription else self.queues.get(lower)

    def exists(self, path: str) -> bool:
        return path.lower() in self.topics or self.find(path) is not None

    def make(self, path: str, kind: str, rules: Rules, xml: str) -> None:
        self.note("entity", path, kind, rules, xml)
        self._make(path, kind, rules, xml)

    def _make(self, path: str, kind: str, rules: Rules, xml: str) -> None:
        lower = path.lower()
        self.described[lower] = xml
        if kind == "topic":
            self.topics[lower] = {}
        elif kind == "queue":
            self.queues[lower] = Queue(path, rules, self.note)
        else:
            topic, _, name = lower.partition("/subscriptions/")
            self.topics[topic][name] = Queue(path, rules, self.note)

    def remove(self, path: str) -> None:
        self.note("removed", path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        lower = path.lower()
        self.described.pop(lower, None)
        topic, _, name = lower.partition("/subscriptions/")
        if name:
            self.topics[topic].pop(name, None)
        self.queues.pop(lower, None)
        self.topics.pop(lower, None)

    def everything(self) -> list[Queue]:
        subscriptions = [each for topic in self.topics.values() for each in topic.values()]
        queues = [*self.queues.values(), *subscriptions]
        return [*queues, *(each.dead for each in queues if each.dead is not None)]

    def publish(self, path: str, parts: Parts, due: float = LONG_AGO) -> list[tuple[Queue, int]]:
        """Where it is kept now, and under which number."""
        lower = path.lower()
        targets = list(self.topics[lower].values()) if lower in self.topics else [self.queues[lower]]
        kept: list[tuple[Queue, int]] = []
        for queue in targets:
            forward = queue.rules.forward
            if queue.has_sessions and not parts.session:
                raise Refused("amqp:not-allowed", "The SessionId was not set on a message, and it cannot be sent.")
            target = self.find(forward) if forward else None
            if target is not None and target.has_sessions and not parts.session:
                queue.last += 1
                why = "Session enabled entity doesn't allow a message whose session identifier is null."
                queue.bury(Stored(queue.last, parts, time.time()), "Session ID is null", why)
            elif forward:
                kept += self.publish(forward, parts, due)
            else:
                kept.append((queue, queue.put(parts, due)))
        return kept
