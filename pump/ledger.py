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


class Standing(NamedTuple):
    """What is known of a message's earlier runs."""

    attempts: int
    """Runs that certainly ended in a counted verdict, or with their process."""
    surplus: int
    """Deliveries nobody can explain: perhaps each ended with the process."""


FRESH: Final = Standing(0, 0)


@dataclass(slots=True)
class _Account:
    attempts: int = 0
    charged: int = 0
    explained: int = 0
    """So many of the unexplained deliveries are explained by us,"""
    judged: int | None = None
    """and one more once the broker counts beyond this, its count at the delivery that we judged last."""
    nacks: int = 0
    due: float = 0.0
    first_failure: float = 0.0
    rejection: Rejection | None = None
    touched: float = 0.0


class Ledger:
    """Attempts and forgiven deliveries by message identity: bounded, expiring, erased on a terminal verdict.

    `attempts before a run = carried + unexplained deliveries − those forgiven`; an account keeps the number up to
    which the broker's count has been explained, so that forgiving is setting that number, not counting beside it.
    """

    def __init__(self, clock: Clock, *, capacity: int = CAPACITY, lifetime: float = LIFETIME) -> None:
        self._clock: Final = clock
        self._capacity: Final = capacity
        self._lifetime: Final = lifetime
        self._lock: Final = threading.Lock()
        self._accounts: Final[OrderedDict[str, _Account]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def arrived(self, message: Message) -> Standing:
        """What is known before this run. A count lower than the one we judged last becomes the base of later ones."""
        account = self._find(message)
        if account is not None and account.judged is not None and message.unexplained < account.judged:
            with self._lock:  # a new copy, or one whose count the broker has started over
                account.explained, account.judged = min(account.explained, message.unexplained), None
        return self.standing(message)

    def standing(self, message: Message) -> Standing:
        """What is known of the message besides this delivery."""
        account = self._find(message)
        if account is not None:
            return _standing(account, message)
        if message.attempts or message.unexplained:
            return Standing(message.attempts, message.unexplained)
        return FRESH

    def spend(self, message: Message, attempts: int, rejection: Rejection | None = None, *, until: float = 0.0) -> None:
        """This run counted: so many attempts are known now; a rejection is remembered until it has succeeded.

        A message that comes again later is remembered until then at least.
        """
        with self._lock:
            account = self._judged(message)
            account.attempts, account.charged = attempts, 0
            account.rejection = rejection
            account.touched = max(account.touched, until)
            account.first_failure = account.first_failure or self._clock.wall()

    def forgive(self, message: Message) -> None:
        """This delivery spent nothing, and no earlier one is held against the message any more."""
        with self._lock:
            self._judged(message)

    def refuse(self, message: Message, due: float) -> None:
        """The message was left, which spent nothing; until when it shall not be shown again here."""
        with self._lock:
            account = self._judged(message)
            account.nacks += 1
            account.due = due
            account.touched = max(account.touched, due)
            account.first_failure = account.first_failure or self._clock.wall()

    def spare(self, message: Message) -> None:
        """This delivery spent nothing and taught nothing: what was unexplained before it is so after it."""
        with self._lock:
            account = self._open(message.identity)
            if _is_latest(account, message):
                surplus = _standing(account, message).surplus
                account.explained, account.judged = message.unexplained - surplus, message.unexplained

    def charge(self, identity: str) -> None:
        """A run of this message ended with its process, says whoever found that out: it counts one attempt."""
        with self._lock:
            account = self._open(identity)
            account.charged += 1
            account.explained += 1

    def forget(self, message: Message) -> None:
        """The message has come to its end."""
        if self._accounts:
            with self._lock:
                self._accounts.pop(message.identity, None)

    def due(self, message: Message) -> float:
        """When a nacked message may be shown again here, on the monotonic clock; 0 for any other."""
        account = self._find(message)
        return 0.0 if account is None else account.due

    def nacks(self, message: Message) -> int:
        """How often the message was left."""
        account = self._find(message)
        return 0 if account is None else account.nacks

    def rejection(self, message: Message) -> Rejection | None:
        """The rejection that did not succeed yet. Asking for it keeps it: an outage may last longer than an account."""
        account = self._find(message)
        if account is None or account.rejection is None:
            return None
        with self._lock:
            self._open(message.identity)
        return account.rejection

    def first_failure(self, message: Message) -> float:
        """When the message first failed, in seconds since the epoch: as it says itself, or as remembered."""
        try:
            return float(message.header.headers.get(FIRST_FAILURE_HEADER, ""))
        except ValueError:
            account = self._find(message)
            return account.first_failure if account is not None and account.first_failure else self._clock.wall()

    def _find(self, message: Message) -> _Account | None:
        account = self._accounts.get(message.identity) if self._accounts else None
        if account is None or account.touched < self._clock.monotonic() - self._lifetime:
            return None
        return account

    def _judged(self, message: Message) -> _Account:
        account = self._open(message.identity)
        if _is_latest(account, message):
            account.explained = account.judged = message.unexplained
        return account

    def _open(self, identity: str) -> _Account:
        now = self._clock.monotonic()
        while self._accounts and next(iter(self._accounts.values())).touched < now - self._lifetime:
            self._accounts.popitem(last=False)
        account = self._accounts.setdefault(identity, _Account())
        account.touched = now
        self._accounts.move_to_end(identity)
        while len(self._accounts) > self._capacity:
            self._accounts.popitem(last=False)
        return account


def _standing(account: _Account, message: Message) -> Standing:
    count, judged = message.unexplained, account.judged
    explained = account.explained + (judged is not None and count > judged)
    return Standing(max(message.attempts, account.attempts) + account.charged, max(0, count - explained))


def _is_latest(account: _Account, message: Message) -> bool:
    """Whether no later delivery was judged: of one that comes late nothing follows for those after it."""
    return account.judged is None or message.unexplained >= account.judged
