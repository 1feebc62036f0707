"""What becomes of a message: every decision about that is made in this file, by code that does no I/O and never waits.

A pump asks its Judge about each message: `arrived` before it is handled, then `handled` or `failed`. The answer is a
verdict, and each verdict is one call of the channel:

* Acknowledge: the message is done.
* Nack: it stays with the broker; the run does not count as an attempt, and the pump waits before it goes on.
* Requeue: it comes again after a delay, with one attempt more behind it.
* Reject: it becomes a dead letter, or goes to the invalid-message channel.
* HandBack: it goes back as if it had not been received.
* Unsettled: the broker is sent nothing; the handler settles the message itself, or its lease ends.

docs/settlement.md, printed from this code, says which outcome has which verdict.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from math import inf
from typing import Final

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection, RejectionKind
from pump.duration import delay_seconds, seconds
from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    LeaseLost,
    MessageAction,
    MessageRefused,
    RejectMessageAction,
    Undecodable,
    reason_of,
    within,
)
from pump.in_hand.gate import OPEN_GATE, Gate
from pump.in_hand.slots import NOWHERE, CrashGuard
from pump.ledger import NO_RUNS, Ledger, PastRuns
from pump.message import Message
from pump.pump_log import PumpLog
from pump.settling import ACKNOWLEDGE, HAND_BACK, UNSETTLED, Acknowledge, Nack, Reject, Requeue, Verdict
from pump.subscription import Subscription
from pump.unacceptable import UnacceptableCount


class SetupFault(Exception):  # noqa: N818 - a fault of the set-up, never of the message
    """Raised only by the pump's own mapping and set-up, `from` the ConfigurationError: a handler cannot raise it."""


class Stopped(Enum):
    """Why a pump does not run."""

    REQUESTED = "requested"
    LIMIT_EXCEEDED = "limit exceeded"
    CONFIGURATION_ERROR = "configuration error"
    INTERRUPTED = "a handler raised KeyboardInterrupt"


_REPORTED: Final = (Requeue, Reject)  # listeners are told of these; one tuple, because every message needs it
EXHAUSTED: Final = "attempts exhausted"
PROCESS_DIED: Final = "process died"
NACKED_TOO_OFTEN: Final = "not acknowledged too often"
UNREADABLE: Final = "unreadable"

_PRECEDENCE: Final = (
    DeferMessageAction,
    DontAckAction,
    RejectMessageAction,
    InvalidMessageAction,
    SetupFault,
)
"""Of several decisions in one exception group the first of these counts."""
_BACKOFF_GROWTH: Final = 1.35
"""Slow enough that after an outage of ten seconds the next try comes within five, however the jitter fell."""


def may_release(message: Message, broker_limit: int | None, max_attempts: int | None) -> bool:
    """Whether a nack may give the message to the broker: the broker's own limit must leave room for every attempt."""
    return broker_limit is None or broker_limit - message.deliveries >= (max_attempts or 1) + 1


def may_requeue(message: Message, broker_limit: int | None, max_attempts: int | None, attempts: int) -> bool:
    """Whether a requeue may give the same message to the broker: its limit must leave room for the attempts left."""
    needed = 1 if max_attempts is None else max(1, max_attempts - attempts)
    return broker_limit is None or broker_limit - message.deliveries >= needed


class Judge:
    """Passes a verdict on every message of one pump, and says when that pump stops and how long it waits."""

    def __init__(
        self,
        rules: Subscription,
        ledger: Ledger,
        clock: Clock,
        log: PumpLog,
        *,
        guard: CrashGuard | None = None,
        unacceptable: UnacceptableCount | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.rules: Final = rules
        """The subscription, with every default filled in."""
        self.ledger: Final = ledger
        """What is remembered of messages that failed; shared by the pumps of one channel."""
        self.clock: Final = clock
        self.log: Final = log
        self.gate: Final[Gate] = OPEN_GATE if guard is None else guard.gate
        """Lets a suspect be handled alone in this process."""
        self.stopping: Final = Signal()
        """Set when the pump must stop, or has stopped."""
        self.stopped: Stopped | None = None
        """Why the pump stops; None while it runs on."""
        self._count: Final = UnacceptableCount(rules, clock) if unacceptable is None else unacceptable
        self.limit_reached: Final = self._count.reached
        """Set once the channel's messages have reached the unacceptable limit."""
        self._may_block = bool(rules.may_block)
        """Whether DontAck is expected: deliveries of unknown outcome may then be nacks, and count no attempts."""
        self._hand: Final = None if guard is None else guard.hand
        self._acknowledged = 0
        self._tally: Final[dict[str, int]] = {}
        self._shows_messages: Final = log.shows_messages
        log.tallies.append(self.tally)
        self.recorder: Final = log.telemetry.recorder(rules.channel, clock)
        """Is told of every delivery; None if nobody records them."""
        self._decided: Final = None if self.recorder is None else self.recorder.decided
        self._keep: Final = None if self.recorder is None else self.recorder.acknowledged
        self._timed: Final = self._shows_messages or self.recorder is not None
        self._now: Final = clock.monotonic
        self._cancelled: Final = cancelled
        self._chance: Final = chance
        self._max_attempts: Final = rules.max_attempts
        self._refusal: Final = rules.refusal
        self._retry_delay: Final = 0.0 if rules.on_unhandled == "nak" else None
        self._dont_ack_delay: Final = seconds(rules.dont_ack_delay)
        self._failures = 0
        self._settle_failures = 0

    def tally(self) -> Mapping[str, int]:
        """How many verdicts of each kind were carried out, by the log's word for the kind."""
        return {ACKNOWLEDGE.told: self._acknowledged, **self._tally} if self._acknowledged else self._tally

    @property
    def running(self) -> bool:
        """Whether another message may be handled. It stops the pump once the unacceptable limit is reached."""
        if self.limit_reached.is_set():
            self.stop(Stopped.LIMIT_EXCEEDED)
        return self.stopped is None

    @property
    def unacceptable(self) -> int:
        """How many messages of the channel were unacceptable, within the window where there is one."""
        return self._count.number

    def stop(self, why: Stopped = Stopped.REQUESTED) -> None:
        """Handle no further message, and end all waits. The first reason stands."""
        if self.stopped is None:
            self.stopped = why
            if why is not Stopped.REQUESTED:
                self.log.stopping(why.value)
        self.stopping.set()

    # -- before the message is handled

    def suspect(self, message: Message) -> bool:
        """Whether the message may have killed the process before: its deliveries of unknown outcome reach the limit.

        Such a message is handled alone, so that nothing else is lost if it kills the process again.
        """
        runs = self.ledger.past_runs(message)
        limit, unknown = self._max_attempts, runs.unexplained + self.ledger.shared(message)
        return limit is not None and unknown > 0 and runs.attempts + unknown >= limit

    def arrived(self, message: Message) -> Verdict | None:
        """The verdict on a message that must not be handled; None if it may be handled."""
        if message.fault or message.attempts or message.unexplained or self.ledger.accounts:
            verdict = self._unfit(message)
            if verdict is not None:
                return self.told(message, verdict)
        reason = "" if self._refusal is None else self._refusal(message)
        if not reason:
            return None
        self._count.add()
        return self.told(message, self._requeue(message, MessageRefused(reason), self._retry_delay, reason))

    def _unfit(self, message: Message) -> Verdict | None:
        pending = self.ledger.rejection(message)
        if pending is not None:  # it was rejected before, but the rejection could not be carried out
            return Reject(pending)
        if message.fault:
            self._count.add()
            return self._undecodable(message, None, UNREADABLE, message.fault, 0)
        return self._exhausted(message, self.ledger.arrived(message))

    def _exhausted(self, message: Message, runs: PastRuns) -> Verdict | None:
        limit = self._max_attempts
        if limit is None or runs is NO_RUNS:
            return None
        if runs.attempts >= limit and self.ledger.died(message):
            reason, text = (
                PROCESS_DIED,
                f"it was run {runs.attempts} times without success, and in the last run its process died",
            )
        elif runs.attempts >= limit:
            reason, text = EXHAUSTED, ""
        elif not self._may_block and runs.unexplained >= 3 * limit:
            reason, text = (
                PROCESS_DIED,
                f"delivered {message.deliveries} times, and no run ended with a verdict: each may have crashed",
            )
        else:
            return None
        self._count.add()
        return self._give_up(message, None, reason, description=text, runs=0)

    # -- while the message is handled

    def begins(self, message: Message) -> int:
        """A run of the message begins; returns its place in hand, for `ends`. The place outlives this process."""
        if self._timed:
            message.begun_at = self._now()
        hand = self._hand
        if hand is None:
            return NOWHERE
        if message.attempts or message.unexplained or self.ledger.accounts:
            return hand.fill(message.identity, *self.ledger.known(message))
        return hand.fill(message.identity)

    def ends(self, place: int, message: Message, verdict: Verdict) -> None:
        """The run has ended, and its verdict is known."""
        if self._hand is not None:
            self._hand.clear(place)
        if self._timed:
            message.handled_at = self._now()
            if self._decided is not None:
                self._decided(message, verdict)

    def told(self, message: Message, verdict: Verdict) -> Verdict:
        """The verdict, once it is told to the recorder that wants to know it before it is carried out."""
        if self._decided is not None:
            self._decided(message, verdict)
        return verdict

    # -- after the message was handled

    def handled(self, message: Message) -> Verdict:
        """The verdict on a message whose handler returned. An unsettled one comes again, and no attempt is counted."""
        if self.rules.auto_ack and not message.explicit and not message.lost:
            return ACKNOWLEDGE
        if not message.settled:
            self._forgive(message)
        answered = message.explicit and message.answered and not message.lost
        return ACKNOWLEDGE if answered and message.claim() else UNSETTLED

    def failed(self, message: Message, error: BaseException) -> Verdict:
        """The verdict on a message whose mapping or handling raised; also stops the pump if the error asks for that."""
        asked = self._asks_to_stop(error)
        if asked is not None:
            self.stop(asked)
        if message.explicit and not message.claim():
            self.log.failed_after_settlement(message, error)
            return UNSETTLED
        if message.lost and _contains(
            error, asyncio.CancelledError
        ):  # the handler was ended because the message was lost
            if message.blocked_seconds:
                self._count_lapse(message)
            else:
                self.ledger.ignore(message)
                self.log.handler_interrupted(message)
            return UNSETTLED
        if message.lost or not (self.rules.auto_ack or message.explicit):
            self.log.handler_failed(message, error)
            if not self.rules.auto_ack:  # whether it failed or not, it comes again
                self.ledger.forgive(message)
            return UNSETTLED
        ended = message.ended and not _contains(error, MessageAction)
        if ended and asked is None:
            self.log.handler_ended(message, error)
        if ended or asked is not None:
            self.ledger.ignore(message)
            return HAND_BACK
        return self.decided(message, error)

    def asked_again(self, message: Message, delay: float | None) -> Verdict:
        """The verdict when a handler asks to have its message again after exactly this delay; it counts an attempt."""
        return self._requeue(message, None, 0.0 if delay is None else delay)

    def decided(self, message: Message, error: BaseException) -> Verdict:
        """The verdict by the strongest decision in an error: raised, or made by a handler that settles its message."""
        errors = tuple(_flattened(error))
        decision = next((each for kind in _PRECEDENCE for each in errors if isinstance(each, kind)), None)
        for each in errors:
            if not isinstance(each, _PRECEDENCE):
                self.log.handler_failed(message, each)
        if isinstance(decision, DeferMessageAction):
            return self._requeue(message, decision, self._asked_delay(message, decision))
        if isinstance(decision, SetupFault):
            self.log.handler_failed(message, decision if decision.__cause__ is None else decision.__cause__)
            self.stop(Stopped.CONFIGURATION_ERROR)
            self.ledger.ignore(message)
            return Nack(0.0, decision)
        if not (isinstance(decision, DontAckAction) and decision.until is not None):
            self._count.add()
        return self._unacceptable(message, error if decision is None else decision)

    def _asked_delay(self, message: Message, decision: DeferMessageAction) -> float | None:
        """The delay that the decision asks for; None, which means the back-off, also if a subclass made it invalid."""
        try:
            return None if decision.delay is None else delay_seconds(decision.delay)
        except ValueError as error:
            self.log.handler_failed(message, error)
            return None

    def _unacceptable(self, message: Message, error: BaseException) -> Verdict:
        match error:
            case DontAckAction():
                return self._nack(message, error)
            case Undecodable():
                return self._undecodable(message, error, error.reason, "", 1)
            case InvalidMessageAction():
                return self._give_up(message, error, reason_of(error) or "invalid", kind="unacceptable")
            case RejectMessageAction():
                return self._give_up(message, error, reason_of(error) or "rejected")
            case _:
                return self._undecided(message, error)

    def _undecodable(self, message: Message, error: Undecodable | None, reason: str, text: str, runs: int) -> Verdict:
        if self.rules.on_undecodable == "nak":
            return self._requeue(message, MessageRefused(text) if error is None else error, 0.0, reason)
        return self._give_up(message, error, reason, kind="unacceptable", description=text, runs=runs)

    def _asks_to_stop(self, error: BaseException) -> Stopped | None:
        if isinstance(error, asyncio.CancelledError):
            return Stopped.REQUESTED if self._cancelled() else None
        return Stopped.INTERRUPTED if _contains(error, KeyboardInterrupt) else None

    def _undecided(self, message: Message, error: BaseException) -> Verdict:
        """The verdict where nothing in the error is a decision: as `on_unhandled` says."""
        match self.rules.on_unhandled:
            case "dont_ack":
                return self._nack(message, error)
            case "reject":
                return self._give_up(message, error, type(error).__name__, counts=True)
            case "acknowledge":
                return ACKNOWLEDGE
            case _:  # "retry", or "nak"
                return self._requeue(message, error, self._retry_delay)

    def _nack(self, message: Message, error: BaseException) -> Verdict:
        if not self._may_block:
            self._may_block = True
            self.log.unexpected_dont_ack(message)
        nacks = self.ledger.nacks(message)
        if self.rules.dont_ack_limit is not None and nacks >= self.rules.dont_ack_limit:
            return self._give_up(message, error, NACKED_TOO_OFTEN)
        pause, longest = self._dont_ack_delay, self.rules.dont_ack_longest_delay
        if longest is not None:
            pause = _doubled(pause, nacks, seconds(longest))
        self.ledger.nacked(message, self.clock.monotonic() + pause)
        until = error.until if isinstance(error, DontAckAction) else None
        cause = error.__cause__ if isinstance(error, MessageAction) else error
        self.log.nacked(message, cause, pause, wished=until is not None)
        return Nack(pause, error, None if self.rules.request_type is None else until)

    def _requeue(
        self, message: Message, error: BaseException | None, delay: float | None, exhausted: str = EXHAUSTED
    ) -> Verdict:
        """Count an attempt: the message comes again or, after its last attempt, is given up as `exhausted`."""
        attempts = self._attempts_before(message) + 1
        if self._max_attempts is not None and attempts >= self._max_attempts:
            if error is None or isinstance(error, DeferMessageAction):
                self._count.add()
            return self._give_up(message, error, exhausted, counts=True)
        if delay is None:
            first, longest = self.rules.requeue_backoff
            delay = _doubled(seconds(first), attempts - 1, seconds(longest))
        self.ledger.count(message, attempts, until=self.clock.monotonic() + delay)
        self.log.requeued(message, error.__cause__ if isinstance(error, MessageAction) else None, delay, attempts)
        return Requeue(delay, attempts, error)

    def _give_up(
        self,
        message: Message,
        error: BaseException | None,
        reason: str,
        *,
        kind: RejectionKind = "delivery error",
        description: str = "",
        runs: int = 1,
        counts: bool = False,
    ) -> Verdict:
        """`counts`: whether the run spent an attempt, which it does not by a decision of the handler."""
        cause = error.__cause__ if isinstance(error, MessageAction) and error.__cause__ is not None else error
        attempts = self._attempts_before(message) + runs
        rejection = Rejection(
            kind,
            reason,
            description or (reason_of(error) if isinstance(error, MessageAction) else ""),
            cause,
            message.handler,
            attempts,
            self.ledger.first_failure(message),
            self.clock.wall(),
        )
        spent = attempts if counts else attempts - runs
        self.ledger.count(message, spent, rejection, ran=runs > 0)
        self.log.rejected(message, None if isinstance(cause, MessageAction) else cause, reason)
        return Reject(rejection)

    def _attempts_before(self, message: Message) -> int:
        """The attempts before this run. Deliveries of unknown outcome count too, unless they may have been nacks."""
        runs = self.ledger.past_runs(message)
        return runs.attempts if self._may_block else runs.attempts + runs.unexplained

    # -- after the verdict was carried out, or was not

    def settled(self, message: Message, verdict: Verdict) -> None:
        """The verdict was carried out."""
        if verdict is ACKNOWLEDGE:
            self._acknowledged += 1  # faster than an entry of the tally: every message pays for these lines
            if self._keep is not None:
                header, begun, ended = message.header, message.begun_at, message.handled_at
                self._keep((header, message.handler, message.deliveries, message.attempts, begun, ended, self._now()))
        else:
            self._tally[verdict.told] = self._tally.get(verdict.told, 0) + 1
            if self.recorder is not None:
                self.recorder.settled(message, verdict, self._now())
        if self._shows_messages:
            self.log.done(message, verdict.told, self._now() - message.begun_at if message.begun_at else inf)
        if verdict.final:
            self._settle_failures = 0
            if self.ledger.accounts:
                self.ledger.forget(message)
        if isinstance(verdict, _REPORTED):
            self.log.carried_out(message, verdict)

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        """The verdict could not be carried out: the message comes again. A run that succeeded counts no attempt."""
        if isinstance(verdict, Acknowledge):
            self._forgive(message)
        if not isinstance(error, LeaseLost):
            self._settle_failures += 1
        if self.recorder is not None:
            self.recorder.unsettled(message, verdict, error)
        self.log.settle_failed(message, error, None if isinstance(verdict, Acknowledge) else verdict.error)

    def _forgive(self, message: Message) -> None:
        """Count no attempt for a run that succeeded, unless its handler kept the loop from renewing the lease."""
        if message.blocked_seconds:
            self._count_lapse(message)
        else:
            self.ledger.forgive(message)

    def _count_lapse(self, message: Message) -> None:
        attempts = self._attempts_before(message) + 1
        self.ledger.count(message, attempts)
        self.log.lapsed(message, attempts)

    def handed_back(self, message: Message) -> None:
        """A message that no handler began went back, or was lost: no attempt is counted."""
        self.ledger.ignore(message)

    # -- the channel

    def connected(self) -> None:
        """The channel works: after the next failure the pump waits the shortest time again."""
        self._failures = 0

    def disconnected(self, error: BaseException) -> float:
        """How long to wait before the channel is tried again: growing, with jitter; also where only settling fails."""
        first, longest = (seconds(each) for each in self.rules.failure_backoff)
        failures = max(self._failures, self._settle_failures - 1)
        delay = min(longest, first * _BACKOFF_GROWTH ** min(failures, 64)) * (1.0 - self._chance() / 4)
        self._failures += 1
        self.log.disconnected(error, delay)
        return delay


def _flattened(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, nested groups too; or the one error itself."""
    return (each for each in within(error) if not isinstance(each, BaseExceptionGroup))


def _contains(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(each, kind) for each in _flattened(error))


def _doubled(first: float, times: int, longest: float) -> float:
    return min(longest, first * 2.0 ** min(times, 64))
