"""What one process remembers of the messages of one channel that did not go well. Its performers share it."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.in_hand.book import ChannelBook, Record
from pump.message import FIRST_FAILURE_HEADER, Message

CAPACITY: Final = 10_000
LIFETIME: Final = 3600.0


class PastRuns(NamedTuple):
    """What is known of a message's earlier runs."""

    attempts: int
    """Runs that certainly count: each ended with a verdict that counts, or with its process."""
    unexplained: int
    """Deliveries of unknown outcome: each may have ended with its process."""


NO_RUNS: Final = PastRuns(0, 0)


@dataclass(slots=True)
class _Account:
    """What is remembered of one message."""

    attempts: int = 0
    died: bool = False
    """Whether the last of the attempts ended with its process."""
    shared: int = 0
    """How many processes died with this message and others in hand, since a run of it ended in another way."""
    explained: int = 0
    """How many of the message's unexplained deliveries have an outcome that is known by now."""
    judged: int | None = None
    """The broker's count at the delivery that was judged last; where it is higher now, one more is explained."""
    nacks: int = 0
    due: float = 0.0
    first_failure: float = 0.0
    rejection: Rejection | None = None
    touched: float = 0.0
    booked: bool = False
    """Whether the book has a record of the message."""

    def explained_at(self, count: int) -> int:
        return self.explained + (self.judged is not None and count > self.judged)

    def record(self) -> Record:
        return Record(self.attempts, self.shared, self.explained, self.judged, self.died)


class Ledger:
    """Attempts by message identity. Bounded in number and age; an account is removed when its message is done.

    `attempts before a run = carried by the message + unexplained deliveries − those forgiven`. An account keeps the
    number up to which the broker's count is explained. To forgive a delivery is to set that number: a second count
    beside the broker's would have to know which events the broker counts.

    It begins with the records of earlier processes, from the book, and keeps those records up to date.
    """

    def __init__(
        self, clock: Clock, *, book: ChannelBook | None = None, capacity: int = CAPACITY, lifetime: float = LIFETIME
    ) -> None:
        self.accounts: Final[OrderedDict[str, _Account]] = OrderedDict()
        """Empty as long as everything goes well, so that the judge need not look anything up."""
        self.accused: Final[set[str]] = set()
        """The identities of messages that were in hand, together with others, when a process died."""
        self._clock: Final = clock
        self._capacity: Final = capacity
        self._lifetime: Final = lifetime
        self._lock: Final = threading.Lock()
        self._book: Final = book
        for identity, record in ({} if book is None else book.read()).items():
            self._load(identity, record)

    def __len__(self) -> int:
        return len(self.accounts)

    def arrived(self, message: Message) -> PastRuns:
        """What is known before this run. If the broker's count is lower than the last one, it has started over."""
        account = self._find(message)
        if account is not None and account.judged is not None and message.unexplained < account.judged:
            with self._lock:  # a new copy, or one whose count the broker has started over
                account.explained, account.judged = min(account.explained, message.unexplained), None
        return self.past_runs(message)

    def past_runs(self, message: Message) -> PastRuns:
        """What is known of the message besides this delivery."""
        account = self._find(message)
        if account is not None:
            return _past_runs(account, message)
        if message.attempts or message.unexplained:
            return PastRuns(message.attempts, message.unexplained)
        return NO_RUNS

    def count(
        self,
        message: Message,
        attempts: int,
        rejection: Rejection | None = None,
        *,
        until: float = 0.0,
        ran: bool = True,
    ) -> None:
        """Count this run: `attempts` is the number so far. A rejection is kept until it has been carried out.

        A message that comes again later is remembered at least until that time, `until`. If it was not run this time
        (`ran`), the way in which its last run ended stays known.
        """
        with self._lock:
            died = not ran and self.died(message)
            account = self._judged(message)
            account.attempts, account.died = attempts, died
            account.rejection = rejection
            account.touched = max(account.touched, until)
            account.first_failure = account.first_failure or self._clock.wall()
        self._correct(message, account)

    def forgive(self, message: Message) -> None:
        """Count no attempt for this delivery, and forgive every earlier one of unknown outcome."""
        with self._lock:
            account = self._judged(message)
        self._correct(message, account)

    def nacked(self, message: Message, due: float) -> None:
        """Note a nack, which counts no attempt; the message is not presented again here before `due`."""
        with self._lock:
            account = self._judged(message)
            message.attempts = max(message.attempts, account.attempts)
            account.nacks += 1
            account.due = due
            account.touched = max(account.touched, due)
            account.first_failure = account.first_failure or self._clock.wall()
        self._correct(message, account)

    def ignore(self, message: Message) -> None:
        """Count no attempt for this delivery; the outcome of earlier unexplained ones stays unknown.

        The attempts that are known here are put on the message, for the broker to keep.
        """
        with self._lock:
            account = self._open(message.identity)
            message.attempts = max(message.attempts, account.attempts)
            if _is_latest(account, message):
                unexplained = _past_runs(account, message).unexplained
                account.explained, account.judged = message.unexplained - unexplained, message.unexplained

    def forget(self, message: Message) -> None:
        """The message is done."""
        with self._lock:
            account = self.accounts.pop(message.identity, None)
            self.accused.discard(message.identity)
        if account is not None and account.booked and self._book is not None:
            self._book.write({message.identity: None})

    def keep(self, *, attempts: bool) -> None:
        """Write into the book which deliveries cost no attempt, for the next process.

        With `attempts`, also how often each message was run: for channels where the broker does not keep that.
        """
        with self._lock:
            records = {
                identity: account.record() if attempts or account.booked else account.record()._replace(attempts=0)
                for identity, account in self.accounts.items()
            }
        kept = {identity: record for identity, record in records.items() if record.says_anything}
        if kept and self._book is not None:
            self._book.write(kept)

    def known(self, message: Message) -> tuple[int, int, int]:
        """What a slot notes when a run begins: the attempts, the explained deliveries, and the broker's count."""
        account = self._find(message)
        if account is None:
            return message.attempts, 0, message.unexplained
        explained = account.explained_at(message.unexplained)
        return max(message.attempts, account.attempts), explained, message.unexplained

    def shared(self, message: Message) -> int:
        """How many processes have died with this message and others in hand."""
        account = self._find(message) if message.identity in self.accused else None
        return 0 if account is None else account.shared

    def died(self, message: Message) -> bool:
        """Whether the last of the message's attempts ended with its process."""
        account = self._find(message)
        return account is not None and account.died

    def due(self, message: Message) -> float:
        """When a nacked message may be presented again here, on the monotonic clock; 0 for any other."""
        account = self._find(message) if self.accounts else None
        return 0.0 if account is None else account.due

    def nacks(self, message: Message) -> int:
        """How often the message was nacked."""
        account = self._find(message)
        return 0 if account is None else account.nacks

    def rejection(self, message: Message) -> Rejection | None:
        """The rejection that could not be carried out yet. Each call renews the account: an outage may outlast it."""
        account = self._find(message)
        if account is None or account.rejection is None:
            return None
        with self._lock:
            self._open(message.identity)
        return account.rejection

    def first_failure(self, message: Message) -> float:
        """When the message first failed, in seconds since the epoch: as its header says, or as remembered here."""
        try:
            return float(message.header.headers.get(FIRST_FAILURE_HEADER, ""))
        except ValueError:
            account = self._find(message)
            return account.first_failure if account is not None and account.first_failure else self._clock.wall()

    def _correct(self, message: Message, account: _Account) -> None:
        """Correct the book's record of a message: a later run of it has ended in another way."""
        if account.booked and self._book is not None:
            self._book.write({message.identity: account.record()})

    def _load(self, identity: str, record: Record) -> None:
        account = self._open(identity)
        account.attempts, account.shared, account.died = record.attempts, record.shared, record.died
        account.explained, account.judged, account.booked = record.explained, record.judged, True
        if record.shared:
            self.accused.add(identity)

    def _find(self, message: Message) -> _Account | None:
        account = self.accounts.get(message.identity) if self.accounts else None
        if account is None or account.touched < self._clock.monotonic() - self._lifetime:
            return None
        return account

    def _judged(self, message: Message) -> _Account:
        """The message's account, with every delivery explained up to this one."""
        account = self._open(message.identity)
        if _is_latest(account, message):
            account.explained = account.judged = message.unexplained
        account.shared, account.died = 0, False
        self.accused.discard(message.identity)
        return account

    def _open(self, identity: str) -> _Account:
        now = self._clock.monotonic()
        while self.accounts and next(iter(self.accounts.values())).touched < now - self._lifetime:
            self.accused.discard(self.accounts.popitem(last=False)[0])
        account = self.accounts.setdefault(identity, _Account())
        account.touched = now
        self.accounts.move_to_end(identity)
        while len(self.accounts) > self._capacity:
            self.accused.discard(self.accounts.popitem(last=False)[0])
        return account


def _past_runs(account: _Account, message: Message) -> PastRuns:
    count = message.unexplained
    return PastRuns(max(message.attempts, account.attempts), max(0, count - account.explained_at(count)))


def _is_latest(account: _Account, message: Message) -> bool:
    """Whether no later delivery was judged: an earlier one, judged late, says nothing about those after it."""
    return account.judged is None or message.unexplained >= account.judged
