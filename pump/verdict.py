"""What becomes of a message.

Every decision to acknowledge, leave, requeue, reject or hand back a message is made in this file, by code that does no
I/O and never waits. The pumps only carry the verdicts out.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Protocol, TypeAlias, TypeVar

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection, RejectionKind
from pump.duration import seconds
from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    LeaseLost,
    MessageAction,
    Refused,
    RejectMessageAction,
    Undecodable,
)
from pump.ledger import FRESH, Ledger, Standing
from pump.message import Message
from pump.pump_log import Report
from pump.subscription import Subscription

Done = TypeVar("Done", None, Awaitable[None], covariant=True)
"""What a channel's methods return: None where they block, an awaitable where they do not."""


class Settles(Protocol[Done]):
    """Where verdicts are carried out: a Channel, or an AsyncChannel."""

    def acknowledge(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's
    def nack(self, message: Message, delay: float) -> Done: ...  # noqa: D102 - as Channel's
    def requeue(self, message: Message, delay: float, attempts: int) -> Done: ...  # noqa: D102 - as Channel's
    def reject(self, message: Message, rejection: Rejection) -> Done: ...  # noqa: D102 - as Channel's
    def hand_back(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's
    def leave(self, message: Message) -> Done: ...  # noqa: D102 - as Channel's


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The message is done."""

    ends: ClassVar[bool] = True
    pause: float = 0.0

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.acknowledge(message)


@dataclass(frozen=True, slots=True)
class Nack:
    """The message stays with the broker, unspent; the pump pauses before it goes on."""

    ends: ClassVar[bool] = False
    pause: float
    error: BaseException | None = None

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.nack(message, self.pause)


@dataclass(frozen=True, slots=True)
class Requeue:
    """The message comes again after the delay, with so many attempts behind it."""

    ends: ClassVar[bool] = False
    delay: float
    attempts: int
    error: BaseException | None = None
    pause: float = 0.0

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.requeue(message, self.delay, self.attempts)


@dataclass(frozen=True, slots=True)
class Reject:
    """The message becomes a dead letter, or goes to the invalid-message channel."""

    ends: ClassVar[bool] = True
    rejection: Rejection
    pause: float = 0.0

    @property
    def error(self) -> BaseException | None:
        """What the handler raised, if anything."""
        return self.rejection.error

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.reject(message, self.rejection)


@dataclass(frozen=True, slots=True)
class HandBack:
    """The message goes back as if it had not been received."""

    ends: ClassVar[bool] = False
    pause: float = 0.0
    error: BaseException | None = None

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.hand_back(message)


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is said to the broker: the handler settles the message itself, or nobody does."""

    ends: ClassVar[bool] = False
    pause: float = 0.0
    error: BaseException | None = None

    def settle(self, channel: Settles[Done], message: Message) -> Done:
        """Carry it out."""
        return channel.leave(message)


Verdict: TypeAlias = Acknowledge | Nack | Requeue | Reject | HandBack | Leave

ACKNOWLEDGE: Final = Acknowledge()
HAND_BACK: Final = HandBack()
LEAVE: Final = Leave()


class SetupFault(Exception):  # noqa: N818 - a fault of the set-up, never of the message
    """Raised by the pump's own mapping and set-up alone, `from` the ConfigurationError: a handler cannot raise it."""


class Stopped(Enum):
    """Why a pump does not run."""

    REQUESTED = "requested"
    LIMIT_EXCEEDED = "limit exceeded"
    CONFIGURATION_ERROR = "configuration error"


_TOLD: Final = (Requeue, Reject)  # a tuple, since every message pays for the question
EXHAUSTED: Final = "attempts exhausted"
PROCESS_DIED: Final = "process died"
LEFT_TOO_OFTEN: Final = "left too often"
UNREADABLE: Final = "unreadable"

_PRECEDENCE: Final = (
    DeferMessageAction,
    DontAckAction,
    RejectMessageAction,
    InvalidMessageAction,
    SetupFault,
)
_BACKOFF_GROWTH: Final = 1.35
"""Slow enough that after an outage of ten seconds the next try comes within five, however the jitter fell."""


def may_release(message: Message, broker_limit: int | None, max_attempts: int | None) -> bool:
    """Whether a nack may go to a broker that gives messages up by itself: our budget must still fit."""
    return broker_limit is None or broker_limit - message.deliveries >= (max_attempts or 1) + 1


def may_requeue(message: Message, broker_limit: int | None, max_attempts: int | None, attempts: int) -> bool:
    """Whether a requeue of the same message may go to such a broker: the rest of our budget must still fit."""
    needed = 1 if max_attempts is None else max(1, max_attempts - attempts)
    return broker_limit is None or broker_limit - message.deliveries >= needed


def _never() -> bool:
    return False


class Judge:
    """Passes a verdict on every message of one pump, and says when that pump stops and how long it waits."""

    def __init__(
        self,
        rules: Subscription,
        ledger: Ledger,
        clock: Clock,
        report: Report,
        *,
        may_block: bool = False,
        cancelled: Callable[[], bool] = _never,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.stopping: Final = Signal()
        """Set when the pump shall stop, or has."""
        self.stopped: Stopped | None = None
        self.unacceptable = 0
        """How many messages were unacceptable, within the window where there is one."""
        self._rules: Final = rules
        self._ledger: Final = ledger
        self._clock: Final = clock
        self._report: Final = report
        self._may_block = may_block
        self._cancelled: Final = cancelled
        self._chance: Final = chance
        self._max_attempts: Final = rules.max_attempts
        self._refusal: Final = rules.refusal
        self._retry_delay: Final = 0.0 if rules.on_unhandled == "nak" else None
        self._dont_ack_delay: Final = seconds(rules.dont_ack_delay)
        self._window: Final = seconds(rules.unacceptable_window)
        self._window_began = clock.monotonic()
        self._failures = 0
        self._unsettled = 0

    @property
    def running(self) -> bool:
        """Whether another turn may begin. Reaching the unacceptable limit ends that."""
        if 0 < self._rules.unacceptable_limit <= self.unacceptable:
            self.stop(Stopped.LIMIT_EXCEEDED)
        return self.stopped is None

    def stop(self, why: Stopped = Stopped.REQUESTED) -> None:
        """No further turn begins; waits end. The first reason stands."""
        if self.stopped is None:
            self.stopped = why
            if why is not Stopped.REQUESTED:
                self._report.stopping(why.value)
        self.stopping.set()

    # -- on arrival

    def suspect(self, message: Message) -> bool:
        """Whether its unexplained deliveries may mean that it kills processes: such a one is handled alone."""
        standing = self._ledger.standing(message)
        limit = self._max_attempts
        return limit is not None and standing.surplus > 0 and standing.attempts + standing.surplus >= limit

    def arrived(self, message: Message) -> Verdict | None:
        """The verdict on a message before it is handled; None if it is fit to be handled."""
        if message.fault or message.attempts or message.unexplained or self._ledger:
            verdict = self._unfit(message)
            if verdict is not None:
                return verdict
        reason = "" if self._refusal is None else self._refusal(message)
        if not reason:
            return None
        self._count()
        return self._again(message, Refused(reason), self._retry_delay, reason)

    def _unfit(self, message: Message) -> Verdict | None:
        pending = self._ledger.rejection(message)
        if pending is not None:
            return Reject(pending)
        if message.fault:
            return self._undecodable(message, None, UNREADABLE, message.fault, 0)
        return self._spent(message, self._ledger.arrived(message))

    def _spent(self, message: Message, standing: Standing) -> Verdict | None:
        limit = self._max_attempts
        if limit is None or standing is FRESH:
            return None
        if standing.attempts >= limit:
            self._count()
            return self._given_up(message, None, EXHAUSTED, runs=0)
        if not self._may_block and standing.surplus >= 3 * limit:
            text = f"delivered {message.deliveries} times, and no run of it ever ended"
            self._count()
            return self._given_up(message, None, PROCESS_DIED, description=text, runs=0)
        return None

    # -- after handling

    def handled(self, message: Message) -> Verdict:
        """The verdict on a message whose handler returned. What was lost meanwhile comes again, unspent."""
        if message.lost and not message.settled:
            self._ledger.forgive(message)
        if message.lost or message.explicit or not self._rules.auto_ack:
            return LEAVE
        return ACKNOWLEDGE

    def failed(self, message: Message, error: BaseException) -> Verdict:
        """The verdict on a message whose mapping or handling raised. Asked to stop, it stops."""
        asked = self._asks_to_stop(error)
        if asked:
            self.stop()
        if message.explicit and not message.claim():
            self._report.after_settlement(message, error)
            return LEAVE
        if message.lost and _is_cancellation(error):  # it was ended because the message is lost
            self._ledger.spare(message)
            self._report.interrupted(message)
            return LEAVE
        if message.lost or not (self._rules.auto_ack or message.explicit):
            self._report.unhandled(message, error)
            return LEAVE
        if asked:
            self._ledger.spare(message)
            return HAND_BACK
        return self._judge(message, error)

    def decided(self, message: Message, action: MessageAction) -> Verdict:
        """The verdict on a message that its handler settles itself, by the decision it would otherwise raise."""
        return self._judge(message, action)

    def naked(self, message: Message, delay: float | None) -> Verdict:
        """The verdict on a message that its handler asks for again: counted, with the delay as given."""
        return self._again(message, None, 0.0 if delay is None else delay)

    def _judge(self, message: Message, error: BaseException) -> Verdict:
        leaves = tuple(_leaves(error))
        decision = _strongest(leaves)
        for leaf in leaves:
            if not isinstance(leaf, _PRECEDENCE):
                self._report.unhandled(message, leaf)
        match decision:
            case DeferMessageAction(delay=delay):
                return self._again(message, decision, delay)
            case DontAckAction():
                return self._leave(message, decision)
            case RejectMessageAction() | InvalidMessageAction():
                return self._decided_against(message, decision)
            case SetupFault():
                return self._misconfigured(message, decision)
            case _:
                return self._unhandled(message, error)

    def _decided_against(self, message: Message, decision: RejectMessageAction | InvalidMessageAction) -> Verdict:
        if isinstance(decision, Undecodable):
            return self._undecodable(message, decision, decision.reason, "", 1)
        if isinstance(decision, InvalidMessageAction):
            return self._reject(message, decision, "unacceptable", decision.reason or "invalid")
        return self._reject(message, decision, "delivery error", decision.reason or "rejected")

    def _undecodable(self, message: Message, error: Undecodable | None, reason: str, text: str, runs: int) -> Verdict:
        self._count()
        if self._rules.on_undecodable == "nak":
            return self._again(message, error or Refused(text), 0.0, reason)
        return self._given_up(message, error, reason, kind="unacceptable", description=text, runs=runs)

    def _misconfigured(self, message: Message, fault: SetupFault) -> Verdict:
        self._report.unhandled(message, fault.__cause__ or fault)
        self.stop(Stopped.CONFIGURATION_ERROR)
        self._ledger.spare(message)
        return Nack(0.0, fault)

    def _asks_to_stop(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled()
        return any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error))

    def _unhandled(self, message: Message, error: BaseException) -> Verdict:
        match self._rules.on_unhandled:
            case "dont_ack":
                return self._leave(message, error)
            case "reject":
                return self._reject(message, error, "delivery error", type(error).__name__)
            case "acknowledge":
                self._count()
                return ACKNOWLEDGE
            case _:  # "retry", or "nak"
                self._count()
                return self._again(message, error, self._retry_delay)

    def _leave(self, message: Message, error: BaseException) -> Verdict:
        self._count()
        if not self._may_block:
            self._may_block = True
            self._report.may_block(message)
        nacks = self._ledger.nacks(message)
        if self._rules.dont_ack_limit is not None and nacks >= self._rules.dont_ack_limit:
            return self._given_up(message, error, LEFT_TOO_OFTEN)
        pause = self._dont_ack_pause(nacks)
        self._ledger.refuse(message, self._clock.monotonic() + pause)
        self._report.left(message, error.__cause__ if isinstance(error, MessageAction) else error, pause)
        return Nack(pause, error)

    def _dont_ack_pause(self, nacks: int) -> float:
        longest = self._rules.dont_ack_longest_delay
        if longest is None:
            return self._dont_ack_delay
        return _doubled(self._dont_ack_delay, nacks, seconds(longest))

    def _again(
        self, message: Message, error: BaseException | None, delay: float | None, spent: str = EXHAUSTED
    ) -> Verdict:
        attempts = self._attempts_before(message) + 1
        if self._max_attempts is not None and attempts >= self._max_attempts:
            if error is None or isinstance(error, DeferMessageAction):
                self._count()
            return self._given_up(message, error, spent)
        if delay is None:
            first, longest = self._rules.requeue_backoff
            delay = _doubled(seconds(first), attempts - 1, seconds(longest))
        self._ledger.spend(message, attempts, until=self._clock.monotonic() + delay)
        self._report.deferred(message, error.__cause__ if isinstance(error, MessageAction) else None, delay, attempts)
        return Requeue(delay, attempts, error)

    def _reject(self, message: Message, error: BaseException, kind: RejectionKind, reason: str) -> Verdict:
        self._count()
        return self._given_up(message, error, reason, kind=kind)

    def _given_up(
        self,
        message: Message,
        error: BaseException | None,
        reason: str,
        *,
        kind: RejectionKind = "delivery error",
        description: str = "",
        runs: int = 1,
    ) -> Verdict:
        told = (error.__cause__ or error) if isinstance(error, MessageAction) else error
        attempts = self._attempts_before(message) + runs
        rejection = Rejection(
            kind,
            reason,
            description or (error.reason if isinstance(error, MessageAction) else ""),
            told,
            message.handler,
            attempts,
            self._ledger.first_failure(message),
            self._clock.wall(),
        )
        self._ledger.spend(message, attempts, rejection)
        self._report.rejected(message, None if isinstance(told, MessageAction) else told, reason)
        return Reject(rejection)

    def _attempts_before(self, message: Message) -> int:
        standing = self._ledger.standing(message)
        return standing.attempts if self._may_block else standing.attempts + standing.surplus

    def _count(self) -> None:
        now = self._clock.monotonic()
        if self._window and now - self._window_began > self._window:
            self.unacceptable = 0
            self._window_began = now
        self.unacceptable += 1

    # -- after settling

    def settled(self, message: Message, verdict: Verdict) -> None:
        """The verdict was carried out."""
        if verdict.ends:
            self._unsettled = 0
            self._ledger.forget(message)
        if isinstance(verdict, _TOLD):
            self._report.carried_out(message, verdict)

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        """The verdict could not be carried out: the message comes again, and a run that succeeded clears it."""
        if isinstance(verdict, Acknowledge):
            self._ledger.forgive(message)
        if not isinstance(error, LeaseLost):
            self._unsettled += 1
        self._report.unsettled(message, error, None if isinstance(verdict, Acknowledge) else verdict.error)

    def handed_back(self, message: Message) -> None:
        """A message nobody began to handle went back, or was lost: that spent nothing."""
        self._ledger.spare(message)

    # -- the channel

    def connected(self) -> None:
        """The channel works: the next failure waits the shortest time again."""
        self._failures = 0

    def disconnected(self, error: BaseException) -> float:
        """How long to wait before the channel is tried again: growing, and jittered; also where only settling fails."""
        first, longest = (seconds(each) for each in self._rules.failure_backoff)
        failures = max(self._failures, self._unsettled - 1)
        delay = min(longest, first * _BACKOFF_GROWTH ** min(failures, 64)) * (1.0 - self._chance() / 4)
        self._failures += 1
        self._report.disconnected(error, delay)
        return delay


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _is_cancellation(error: BaseException) -> bool:
    return any(isinstance(leaf, asyncio.CancelledError) for leaf in _leaves(error))


def _strongest(leaves: tuple[BaseException, ...]) -> BaseException | None:
    for kind in _PRECEDENCE:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return None


def _doubled(first: float, times: int, longest: float) -> float:
    return min(longest, first * 2.0 ** min(times, 64))
