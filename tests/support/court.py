"""A judge with its surroundings: its verdicts are carried out on a channel that only notes its calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from pump.clock import ManualClock
from pump.dead_letter import Rejection
from pump.in_hand.slots import CrashGuard
from pump.ledger import Ledger
from pump.message import Header, Message
from pump.pump_log import PumpLog
from pump.settling import Verdict
from pump.subscription import OnUndecodable, Subscription
from pump.telemetry import Listener, Telemetry
from pump.verdict import Judge

Call: TypeAlias = tuple[object, ...]


class Sample:
    """The request in the messages."""


def message(name: str = "1", **options: Any) -> Message:
    """A delivery of a message, fresh unless said otherwise."""
    header = Header(name, key=options.pop("key", None), headers=options.pop("headers", {}))
    explicit, lost = options.pop("explicit", False), options.pop("lost", False)
    made = Message(header, b"", **options)
    made.explicit, made.lost = explicit, lost
    return made


@dataclass(frozen=True)
class Choosy(Subscription):
    """A subscription with its own rule for messages that cannot be decoded; it also refuses some messages."""

    undecodable: OnUndecodable = field(default="dlq", kw_only=True)
    refuses: Callable[[Message], str] | None = field(default=None, kw_only=True)

    @property
    def on_undecodable(self) -> OnUndecodable:
        return self.undecodable

    @property
    def refusal(self) -> Callable[[Message], str] | None:
        return self.refuses


def rules(**options: Any) -> Subscription:
    return Choosy(options.pop("request", Sample), **{"topic": "samples", "channel": "samples", **options})


class Spy:
    """A channel that notes its calls."""

    def __init__(self) -> None:
        self.calls: Final[list[Call]] = []
        self.rejections: Final[list[Rejection]] = []

    def acknowledge(self, _: Message) -> None:
        self.calls.append(("acknowledge",))

    def nack(self, _: Message, delay: float) -> None:
        self.calls.append(("nack", delay))

    def shut_until(self, _: Callable[[], bool]) -> None:
        self.calls.append(("shut",))

    def requeue(self, _: Message, delay: float, attempts: int) -> None:
        self.calls.append(("requeue", delay, attempts))

    def reject(self, _: Message, rejection: Rejection) -> None:
        self.calls.append(("reject", rejection.kind, rejection.reason))
        self.rejections.append(rejection)

    def hand_back(self, _: Message) -> None:
        self.calls.append(("hand_back",))

    def leave_unsettled(self, _: Message) -> None:
        self.calls.append(("leave_unsettled",))


class Court:
    """One process: a judge and its ledger, on a clock that the test moves."""

    def __init__(
        self,
        *,
        cancelled: Callable[[], bool] | None = None,
        chance: Callable[[], float] = lambda: 0.0,
        clock: ManualClock | None = None,
        book: Any = None,
        guard: CrashGuard | None = None,
        listeners: Sequence[Listener] = (),
        **options: Any,
    ) -> None:
        self.clock: Final = clock or ManualClock()
        self.ledger: Final = Ledger(self.clock, book=book)
        self.rules: Final = rules(**options)
        self.events: Final[list[str]] = []
        telemetry = Telemetry(lambda event, _: self.events.append(event), *listeners)
        self.judge: Final = Judge(
            self.rules,
            self.ledger,
            self.clock,
            PumpLog("samples", telemetry),
            guard=guard,
            chance=chance,
            cancelled=cancelled or (lambda: False),
        )
        self.spy: Final = Spy()

    @property
    def rejection(self) -> Rejection:
        """The rejection that was sent last."""
        return self.spy.rejections[-1]

    def verdict(self, delivered: Message, raised: BaseException | None = None) -> Verdict:
        """The verdict on a delivery; its handler, if it runs, raises this error or returns."""
        arrived = self.judge.arrived(delivered)
        if arrived is not None:
            return arrived
        return self.judge.handled(delivered) if raised is None else self.judge.failed(delivered, raised)

    def turn(self, delivered: Message, raised: BaseException | None = None) -> Call:
        """The call of the channel that a delivery ends with; the call succeeds."""
        verdict = self.verdict(delivered, raised)
        verdict.settle(self.spy, delivered)
        self.judge.settled(delivered, verdict)
        return self.spy.calls[-1]

    def turn_that_cannot_be_settled(
        self, delivered: Message, raised: BaseException | None, error: BaseException
    ) -> Verdict:
        """The verdict of a delivery that the channel cannot carry out."""
        verdict = self.verdict(delivered, raised)
        self.judge.unsettled(delivered, verdict, error)
        return verdict

    def runs(self, delivered: Message) -> bool:
        """Whether the handler would run on this delivery."""
        return self.judge.arrived(delivered) is None
