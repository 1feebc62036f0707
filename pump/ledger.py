"""What one process remembers of the messages of one channel that did not go well. Its performers share it."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.message import FIRST_FAILURE_HEADER, Message

CAPACITY: Final = 10_000
LIFETIME: Final = 3600.0


class PastRuns(NamedTuple):
    """What is known of a message's earlier runs."""

    attempts: int
    """Runs that certainly count: they ended in a verdict that counts, or with their process."""
    unexplained: int
    """Deliveries of unknown outcome: perhaps each ended with its process."""


NO_RUNS: Final = PastRuns(0, 0)


@dataclass(slots=True)
class _Account:
    """What is remembered of one message."""

    attempts: int = 0
    crashes: int = 0
    """Runs reported by `count_crash` since `attempts` was set."""
    explained: int = 0
    """How many of the message's unexplained deliveries ended in a way that we know …"""
    judged: int | None = None
    """… plus one where the broker's count is above this one, its count at the delivery that was judged last."""
    nacks: int = 0
    due: float = 0.0
    first_failure: float = 0.0
    rejection: Rejection | None = None
    touched: float = 0.0


class Ledger:
    """Attempts by message identity. Bounded in number and age; an account is removed when its message is done.

    `attempts before a run = carried by the message + unexplained deliveries − those forgiven`. An account keeps the
    number up to which the broker's count is explained, so forgiving a delivery is setting that number: a second count
    beside the broker's would have to know which events the broker counts.
    """

    def __init__(self, clock: Clock, *, capacity: int = CAPACITY, lifetime: float = LIFETIME) -> None:
        self.accounts: Final[OrderedDict[str, _Account]] = OrderedDict()
        """Empty as long as everything goes well, so that the judge need not look anything up."""
        self._clock: Final = clock
        self._capacity: Final = capacity
        self._lifetime: Final = lifetime
        self._lock: Final = threading.Lock()

    def __len__(self) -> int:
        return len(self.accounts)

    def arrived(self, message: Message) -> PastRuns:
        """What is known before this run. If the broker's count is lower than the last one, it starts over from here."""
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

    def count(self, message: Message, attempts: int, rejection: Rejection | None = None, *, until: float = 0.0) -> None:
        """This run counts, and these are the attempts so far. A rejection is kept until it has been carried out.

        A message that comes again later is remembered until then at least.
        """
        with self._lock:
            account = self._judged(message)
            account.attempts, account.crashes = attempts, 0
            account.rejection = rejection
            account.touched = max(account.touched, until)
            account.first_failure = account.first_failure or self._clock.wall()

    def forgive(self, message: Message) -> None:
        """This delivery counts no attempt, and every earlier one of unknown outcome is forgiven."""
        with self._lock:
            self._judged(message)

    def nacked(self, message: Message, due: float) -> None:
        """The message was nacked, which counts no attempt; here it is not presented again before `due`."""
        with self._lock:
            account = self._judged(message)
            account.nacks += 1
            account.due = due
            account.touched = max(account.touched, due)
            account.first_failure = account.first_failure or self._clock.wall()

    def ignore(self, message: Message) -> None:
        """This delivery counts no attempt and explains nothing: earlier ones of unknown outcome stay so."""
        with self._lock:
            account = self._open(message.identity)
            if _is_latest(account, message):
                unexplained = _past_runs(account, message).unexplained
                account.explained, account.judged = message.unexplained - unexplained, message.unexplained

    def count_crash(self, identity: str) -> None:
        """A run of this message ended with its process, as somebody found out: it counts one attempt."""
        with self._lock:
            account = self._open(identity)
            account.crashes += 1
            account.explained += 1

    def forget(self, message: Message) -> None:
        """The message is done."""
        with self._lock:
            self.accounts.pop(message.identity, None)

    def due(self, message: Message) -> float:
        """When a nacked message may be presented again here, on the monotonic clock; 0 for any other."""
        account = self._find(message) if self.accounts else None
        return 0.0 if account is None else account.due

    def nacks(self, message: Message) -> int:
        """How often the message was nacked."""
        account = self._find(message)
        return 0 if account is None else account.nacks

    def rejection(self, message: Message) -> Rejection | None:
        """The rejection that could not be carried out yet. Asking keeps it: an outage may outlast an account's age."""
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
        return account

    def _open(self, identity: str) -> _Account:
        now = self._clock.monotonic()
        while self.accounts and next(iter(self.accounts.values())).touched < now - self._lifetime:
            self.accounts.popitem(last=False)
        account = self.accounts.setdefault(identity, _Account())
        account.touched = now
        self.accounts.move_to_end(identity)
        while len(self.accounts) > self._capacity:
            self.accounts.popitem(last=False)
        return account


def _past_runs(account: _Account, message: Message) -> PastRuns:
    count, judged = message.unexplained, account.judged
    explained = account.explained + (judged is not None and count > judged)
    return PastRuns(max(message.attempts, account.attempts) + account.crashes, max(0, count - explained))


def _is_latest(account: _Account, message: Message) -> bool:
    """Whether no later delivery was judged: one that comes late says nothing of those after it."""
    return account.judged is None or message.unexplained >= account.judged
