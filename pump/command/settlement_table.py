"""What becomes of a message, as a table: made by asking a judge for its verdict on sample messages."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from pump.subscription import Subscription
from pump.telemetry import Telemetry
from pump.verdict import (
    Acknowledge,
    HandBack,
    Judge,
    Nack,
    Reject,
    Requeue,
    SetupFault,
    Stopped,
    Unsettled,
    Verdict,
)

HEAD: Final = ("outcome", "verdict", "channel call", "counts as unacceptable", "then")


class _Request:
    """The request of the sample messages."""


_RULES: Final = Subscription(_Request, topic="samples", dead_letter="samples.dead", may_block=True)
"""All options as by default."""


def _sample(*, attempts: int = 0, deliveries: int = 1, fault: str = "", explicit: bool = False) -> Message:
    message = Message(Header("1"), b"", attempts=attempts, deliveries=deliveries, fault=fault)
    message.explicit = explicit
    return message


def _raises(error: BaseException) -> Callable[[Message], object]:
    def handle(_: Message) -> object:
        raise error

    return handle


def _returns(_: Message) -> object:
    return None


def _settles(message: Message) -> object:
    return message.claim()


def _settles_and_fails(message: Message) -> object:
    message.claim()
    raise RuntimeError


@dataclass(frozen=True)
class _Case:
    outcome: str
    handle: Callable[[Message], object] = _returns
    rules: Subscription = _RULES
    message: Callable[[], Message] = _sample
    stopping: bool = False
    """Whether the pump is being stopped."""
    before: int = 0
    """How often the message had the same outcome before."""


class _NoMapper(Mapper[object]):
    """A mapper that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def encode(self, request: object) -> bytes:
        raise self._error

    def decode(self, message: Message) -> object:
        raise self._error


def _maps(error: Exception) -> Callable[[Message], object]:
    return lambda message: request_of(_NoMapper(error), message)


def _group(*errors: BaseException) -> Callable[[Message], object]:
    return _raises(BaseExceptionGroup("", errors))


def _set_up_wrongly() -> SetupFault:
    fault = SetupFault()
    fault.__cause__ = ConfigurationError()
    return fault


def _last_attempt() -> Message:
    return _sample(attempts=2)


def _explicitly_settled() -> Message:
    return _sample(explicit=True)


def _cases() -> Iterator[tuple[str, Sequence[_Case]]]:
    yield "The handler returned", _returned()
    yield "The handler decided", _decided()
    yield "It failed otherwise", _failed()
    yield "Several handlers of one event failed: the strongest decision wins, nested groups too", _grouped()
    yield "It was not handled", _unhandled()
    yield "The handler settles its messages itself", _explicit()


def _returned() -> Sequence[_Case]:
    return [
        _Case("returned"),
        _Case("returned, with `auto_ack=False`", rules=replace(_RULES, auto_ack=False)),
    ]


def _decided() -> Sequence[_Case]:
    limited = replace(_RULES, dont_ack_limit=1)
    return [
        _Case("`DontAckAction`", _raises(DontAckAction())),
        _Case("the same, `dont_ack_limit` reached", _raises(DontAckAction()), limited, before=1),
        _Case("`DeferMessageAction(5)`", _raises(DeferMessageAction(5))),
        _Case("`DeferMessageAction()`: after the requeue back-off", _raises(DeferMessageAction())),
        _Case("`DeferMessageAction`, at the last attempt", _raises(DeferMessageAction(5)), message=_last_attempt),
        _Case('`RejectMessageAction("sold out")`', _raises(RejectMessageAction("sold out"))),
        _Case('`InvalidMessageAction("no sku")`', _raises(InvalidMessageAction("no sku"))),
        _Case("any of these while mapping, such as `DontAckAction`", _maps(DontAckAction("key server down"))),
    ]


def _failed() -> Sequence[_Case]:
    error = RuntimeError("a bug")
    return [
        _Case("it cannot be mapped", _maps(ValueError("no JSON"))),
        _Case("`ConfigurationError` of the pump: mapper, factory, set-up", _maps(ConfigurationError("no such type"))),
        _Case("`ConfigurationError` of the handler: as any other", _raises(ConfigurationError("mine"))),
        _Case('any other exception, `on_unhandled="retry"`, the default', _raises(error)),
        _Case("the same, the second time", _raises(error), message=lambda: _sample(attempts=1)),
        _Case("the same, at the last attempt", _raises(error), message=_last_attempt),
        *(
            _Case(
                f'any other exception, `on_unhandled="{policy}"`', _raises(error), replace(_RULES, on_unhandled=policy)
            )
            for policy in ("dont_ack", "reject", "acknowledge", "nak")
        ),
        _Case("`SystemExit`, `GeneratorExit`: as any other", _raises(SystemExit())),
        _Case("a foreign `CancelledError`: as any other", _raises(asyncio.CancelledError())),
        _Case("cancelled by this pump's own stop", _raises(asyncio.CancelledError()), stopping=True),
        _Case("`KeyboardInterrupt`", _raises(KeyboardInterrupt())),
    ]


def _grouped() -> Sequence[_Case]:
    other, invalid, reject = RuntimeError(), InvalidMessageAction("no sku"), RejectMessageAction("sold out")
    dont_ack, defer = DontAckAction(), DeferMessageAction(5)
    return [
        _Case("Defer, with any others", _group(other, invalid, reject, dont_ack, defer)),
        _Case("DontAck, with Reject, Invalid or errors", _group(other, invalid, reject, dont_ack)),
        _Case("Reject, with Invalid or errors", _group(other, invalid, reject)),
        _Case("Invalid, with errors", _group(other, ExceptionGroup("", [invalid]))),
        _Case("`ConfigurationError` of the pump, with errors", _group(other, _set_up_wrongly())),
        _Case("errors alone: as any other exception", _group(other, ConfigurationError("mine"))),
    ]


def _unhandled() -> Sequence[_Case]:
    cautious = replace(_RULES, may_block=False)
    return [
        _Case("it cannot even be read", message=lambda: _sample(fault="no header")),
        _Case("its attempts were used up before, and its dead letter failed", message=lambda: _sample(attempts=3)),
        _Case(
            "9 deliveries of which no run ended, where DontAck is not expected",
            rules=cautious,
            message=lambda: _sample(deliveries=10),
        ),
    ]


def _explicit() -> Sequence[_Case]:
    return [
        _Case("returned, not settled", message=_explicitly_settled),
        _Case("returned, settled", _settles, message=_explicitly_settled),
        _Case("raised, not settled: as any other exception", _raises(RuntimeError()), message=_explicitly_settled),
        _Case("raised, settled: logged", _settles_and_fails, message=_explicitly_settled),
    ]


class _SilentLog(PumpLog):
    """A log that writes nothing."""

    def __init__(self) -> None:
        super().__init__("samples", Telemetry())

    def stopping(self, why: str) -> None:
        """Write nothing."""

    def _write(self, level: int, message: Message, text: str, error: BaseException | None = None) -> None:
        """Write nothing."""


@dataclass
class _RecordingChannel:
    """A channel that records the calls of its methods."""

    calls: list[str] = field(default_factory=list)

    def acknowledge(self, message: Message) -> None:
        self.calls.append("`acknowledge`")

    def nack(self, message: Message, delay: float) -> None:
        self.calls.append("`nack`")

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        self.calls.append(f"`requeue` in {delay:g} s, {attempts} attempt{'s' if attempts > 1 else ''} spent")

    def reject(self, message: Message, rejection: Rejection) -> None:
        self.calls.append(f"`reject`, {rejection.kind}: {rejection.reason}")

    def hand_back(self, message: Message) -> None:
        self.calls.append("`hand_back`")

    def leave_unsettled(self, message: Message) -> None:
        self.calls.append("none")


def settlement_rows() -> Iterator[Sequence[str]]:
    """The rows under HEAD, one for every way in which the handling of a message can end."""
    for title, cases in _cases():
        yield f"**{title}**", "", "", "", ""
        yield from map(_row, cases)


def _row(case: _Case) -> Sequence[str]:
    clock, message = ManualClock(), case.message()
    judge = Judge(
        case.rules,
        Ledger(clock),
        clock,
        _SilentLog(),
        may_block=bool(case.rules.may_block),
        cancelled=lambda: case.stopping,
    )
    for _ in range(case.before):
        _verdict(judge, case, message)
    counted, channel = judge.unacceptable, _RecordingChannel()
    verdict = _verdict(judge, case, message)
    verdict.settle(channel, message)
    counts = "yes" if judge.unacceptable > counted else "no"
    return case.outcome, _verdict_name(verdict), ", ".join(channel.calls), counts, _then(judge, verdict)


def _verdict(judge: Judge, case: _Case, message: Message) -> Verdict:
    """The same steps as in the pumps."""
    return judge.arrived(message) or _handled(judge, case, message)


def _handled(judge: Judge, case: _Case, message: Message) -> Verdict:
    try:
        case.handle(message)
    except BaseException as error:
        return judge.failed(message, error)
    return judge.handled(message)


_NAMES: Final[dict[type[Verdict], str]] = {
    Acknowledge: "acknowledge",
    Nack: "nack",
    Requeue: "again later",
    Reject: "dead letter",
    HandBack: "hand back",
    Unsettled: "left unsettled",
}


def _verdict_name(verdict: Verdict) -> str:
    match verdict:
        case Requeue(delay=0):
            return "again at once"
        case Reject(rejection=Rejection(kind="unacceptable")):
            return "invalid"
        case _:
            return _NAMES[type(verdict)]


def _then(judge: Judge, verdict: Verdict) -> str:
    if judge.stopped is Stopped.CONFIGURATION_ERROR:
        return "the pump stops, with ERROR"
    if judge.stopped is not None:
        return "the pump stops"
    return f"wait {verdict.pause:g} s, next" if verdict.pause else "next"
