"""The table of what becomes of a message: made from a judge's verdicts on sample messages."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pump.clock import ManualClock
from pump.dead_letter import Rejection
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
)
from pump.handling.dispatch import request_of
from pump.ledger import Ledger
from pump.mapping.mapper import Mapper
from pump.message import Header, Message
from pump.pump_log import PumpLog
from pump.settling import Acknowledge, HandBack, Nack, Reject, Requeue, Unsettled, Verdict
from pump.subscription import Subscription
from pump.telemetry import Telemetry
from pump.verdict import Judge, SetupFault, Stopped

HEAD: Final = ("outcome", "verdict", "channel call", "counts as unacceptable", "then")


class _Request:
    """The request of the sample messages."""


_RULES: Final = Subscription(_Request, topic="samples", dead_letter="samples.dead", may_block=True)
"""All other options have their defaults."""


@dataclass(frozen=True)
class _Case:
    """A sample message, and how its handling ends: the handler returns if `raises` is None."""

    outcome: str
    raises: BaseException | None = None
    """What the handler raises."""
    mapper_raises: Exception | None = None
    settles: bool = False
    """Whether the handler settles the message."""
    rules: Subscription = _RULES
    attempts: int = 0
    deliveries: int = 1
    fault: str = ""
    explicit: bool = False
    answered: bool = False
    """Whether an attribute answers instead of the handler."""
    stopping: bool = False
    """Whether the pump is being stopped."""
    ended: bool = False
    """Whether that stop ended the handler, or a wait of its attributes."""
    before: int = 0
    """How often the message had the same outcome before."""


_ERROR: Final = RuntimeError("a bug")
_MINE: Final = ConfigurationError("mine")
_INVALID: Final = InvalidMessageAction("no sku")
_REJECT: Final = RejectMessageAction("sold out")
_DONT_ACK: Final = DontAckAction()
_DEFER: Final = DeferMessageAction(5)


def _group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("", errors)


_CASES: Final[Sequence[str | _Case]] = (
    "The handler returned",
    _Case("returned"),
    _Case("returned, with `auto_ack=False`", rules=replace(_RULES, auto_ack=False)),
    "The handler decided",
    _Case("`DontAckAction`", _DONT_ACK),
    _Case("the same, `dont_ack_limit` reached", _DONT_ACK, rules=replace(_RULES, dont_ack_limit=1), before=1),
    _Case("`DontAckAction(until=…)` of an attribute, such as a switch that is off", DontAckAction(until=lambda: False)),
    _Case("`DeferMessageAction(5)`", _DEFER),
    _Case("`DeferMessageAction()`: after the requeue back-off", DeferMessageAction()),
    _Case("`DeferMessageAction`, at the last attempt", _DEFER, attempts=2),
    _Case('`RejectMessageAction("sold out")`', _REJECT),
    _Case('`InvalidMessageAction("no sku")`', _INVALID),
    _Case("any of these while mapping, such as `DontAckAction`", mapper_raises=DontAckAction("key server down")),
    "It failed otherwise",
    _Case("it cannot be mapped", mapper_raises=ValueError("no JSON")),
    _Case(
        "`ConfigurationError` of the pump: mapper, factory, set-up", mapper_raises=ConfigurationError("no such type")
    ),
    _Case("`ConfigurationError` of the handler: as any other", _MINE),
    _Case('any other exception, `on_unhandled="retry"`, the default', _ERROR),
    _Case("the same, the second time", _ERROR, attempts=1),
    _Case("the same, at the last attempt", _ERROR, attempts=2),
    *(
        _Case(f'any other exception, `on_unhandled="{policy}"`', _ERROR, rules=replace(_RULES, on_unhandled=policy))
        for policy in ("dont_ack", "reject", "acknowledge", "nak")
    ),
    _Case("`SystemExit`, `GeneratorExit`: as any other", SystemExit()),
    _Case("a foreign `CancelledError`: as any other", asyncio.CancelledError()),
    _Case("cancelled by this pump's own stop", asyncio.CancelledError(), stopping=True),
    _Case("any exception after this pump's own stop ended the handler, or the wait of a Retry", _ERROR, ended=True),
    _Case("`KeyboardInterrupt`", KeyboardInterrupt()),
    "Several handlers of one event failed: the strongest decision wins, nested groups too",
    _Case("Defer, with any others", _group(_ERROR, _INVALID, _REJECT, _DONT_ACK, _DEFER)),
    _Case("DontAck, with Reject, Invalid or errors", _group(_ERROR, _INVALID, _REJECT, _DONT_ACK)),
    _Case("Reject, with Invalid or errors", _group(_ERROR, _INVALID, _REJECT)),
    _Case("Invalid, with errors", _group(_ERROR, _group(_INVALID))),
    _Case("`ConfigurationError` of the pump, with errors", _group(_ERROR, SetupFault())),
    _Case("errors alone: as any other exception", _group(_ERROR, _MINE)),
    "It was not handled",
    _Case("it cannot even be read", fault="no header"),
    _Case("its attempts were used up before, and its dead letter failed", attempts=3),
    _Case(
        "9 deliveries of which no run ended, where DontAck is not expected",
        rules=replace(_RULES, may_block=False),
        deliveries=10,
    ),
    "The handler settles its messages itself",
    _Case("returned, not settled", explicit=True),
    _Case("not run: an attribute answered instead, such as a switch that is off", answered=True, explicit=True),
    _Case("returned, settled", settles=True, explicit=True),
    _Case("raised, not settled: as any other exception", _ERROR, explicit=True),
    _Case("raised, settled: logged", _ERROR, settles=True, explicit=True),
)


class _FailingMapper(Mapper[object]):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def encode(self, request: object) -> bytes:
        raise self._error

    def decode(self, message: Message) -> object:
        raise self._error


class _SilentLog(PumpLog):
    """A log that writes nothing."""

    def stopping(self, why: str) -> None:
        pass

    def _write(
        self, level: int, message: Message, text: str, error: BaseException | None = None, *, handler: str = ""
    ) -> None:
        pass


def settlement_rows() -> Iterator[Sequence[str]]:
    """The rows under HEAD, one for every way in which the handling of a message can end."""
    for case in _CASES:
        yield (f"**{case}**", "", "", "", "") if isinstance(case, str) else _row(case)


def _row(case: _Case) -> Sequence[str]:
    clock = ManualClock()
    message = Message(Header("1"), b"", attempts=case.attempts, deliveries=case.deliveries, fault=case.fault)
    message.explicit, message.answered, message.ended = case.explicit, case.answered, case.ended
    log = _SilentLog("samples", Telemetry())
    judge = Judge(case.rules, Ledger(clock), clock, log, cancelled=lambda: case.stopping)
    for _ in range(case.before):
        _verdict(judge, case, message)
    counted = judge.unacceptable
    verdict = _verdict(judge, case, message)
    counts = "yes" if judge.unacceptable > counted else "no"
    return case.outcome, *_name_and_call(verdict), counts, _then(judge, verdict)


def _verdict(judge: Judge, case: _Case, message: Message) -> Verdict:
    """The same steps as in the pumps."""
    if verdict := judge.arrived(message):
        return verdict
    try:
        _handle(case, message)
    except BaseException as error:
        return judge.failed(message, error)
    return judge.handled(message)


def _handle(case: _Case, message: Message) -> None:
    if case.settles:
        message.claim()
    if case.mapper_raises is not None:
        request_of(_FailingMapper(case.mapper_raises), message)
    if case.raises is not None:
        raise case.raises


def _name_and_call(verdict: Verdict) -> tuple[str, str]:
    match verdict:
        case Acknowledge():
            return "acknowledge", "`acknowledge`"
        case Nack():
            return "nack", "`nack`"
        case Requeue(delay, attempts):
            call = f"`requeue` in {delay:g} s, {attempts} attempt{'s' if attempts > 1 else ''} spent"
            return "again later" if delay else "again at once", call
        case Reject(Rejection(kind, reason)):
            return "invalid" if kind == "unacceptable" else "dead letter", f"`reject`, {kind}: {reason}"
        case HandBack():
            return "hand back", "`hand_back`"
        case Unsettled():
            return "left unsettled", "none"


def _then(judge: Judge, verdict: Verdict) -> str:
    if judge.stopped in {Stopped.CONFIGURATION_ERROR, Stopped.INTERRUPTED}:
        return "the pump stops, with ERROR"
    if judge.stopped is not None:
        return "the pump stops"
    if isinstance(verdict, Nack) and verdict.until is not None:
        return "the channel rests until then"
    return f"wait {verdict.pause:g} s, next" if verdict.pause else "next"
