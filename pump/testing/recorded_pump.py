"""One subscription under test: the real judge, channel and pump, which record what they do and pause when asked to."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from heapq import heappush
from inspect import iscoroutinefunction
from typing import Any, Final

from pump.handling.dispatch import DispatchSettings, Router, request_of
from pump.ledger import Ledger
from pump.message import Message
from pump.program.performer_group import make_proactor, make_reactor
from pump.program.plan import Plan
from pump.program.processor import CommandProcessor
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.settling import Unsettled, Verdict
from pump.testing.records import Call, Records
from pump.transport_kit.protocol import Transport
from pump.verdict import Judge

_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "acknowledge": (),
    "nack": ("delay",),
    "requeue": ("delay", "attempts"),
    "reject": ("rejection",),
    "hand_back": (),
}
"""The calls of a channel that are recorded, and the arguments of each besides the message."""


class RecordingJudge(Judge):
    """A judge that records its verdicts, and lets a pump run only as long as the test wants."""

    pump: "RecordedPump"

    @property
    def running(self) -> bool:
        """Whether another message may be handled, and the test wants it."""
        return super().running and self.pump.goes_on(self.pump)

    def connected(self) -> None:
        """The channel works, and was asked for messages."""
        super().connected()
        self.pump.asked = True

    def settled(self, message: Message, verdict: Verdict) -> None:
        """The verdict was carried out."""
        super().settled(message, verdict)
        self._note(message, verdict)

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        """The verdict could not be carried out."""
        super().unsettled(message, verdict, error)
        self._note(message, verdict)

    def _note(self, message: Message, verdict: Verdict) -> None:
        if not (isinstance(verdict, Unsettled) and message.settled):  # else it was recorded when its handler settled it
            self.pump.records.verdicts.append((self.pump.request(message), verdict))


class RecordedPump:
    """The pump of one subscription. Its channel stays open from one run to the next."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        settings: DispatchSettings,
        processor: CommandProcessor,
        *,
        records: Records,
        goes_on: "Callable[[RecordedPump], bool]",
    ) -> None:
        self.plan: Final = plan
        self.records: Final = records
        self.router: Final = Router(plan.rules, plan.handlers, settings, processor)
        self.turns = 0
        """How many messages it has begun to handle."""
        self.asked = False
        """Whether it has asked the bus for messages since this was last set to False."""
        self.nacked: Final[set[str]] = set()
        """The identities of messages that were nacked since this was last cleared."""
        self._bus: Final = records.bus
        self._clock: Final = records.clock
        self.goes_on: Final = goes_on
        """Whether the test wants another message handled."""
        awaits = plan.rules.pump == "proactor"
        log = PumpLog(plan.rules.channel, settings.telemetry)
        cancelled = is_cancelled if awaits else _never
        self.judge: Final = RecordingJudge(plan.rules, Ledger(self._clock), self._clock, log, cancelled=cancelled)
        self.judge.pump = self
        parts = (transport, self.judge, self.router)
        self.pump: Final = make_proactor(*parts) if awaits else make_reactor(*parts)
        if isinstance(self.pump, Proactor):
            dispatch = self.pump._dispatch  # noqa: SLF001 - the harness changes what it runs
            setattr(self.pump, "_dispatch", lambda message: self._clock.handling(dispatch(message)))  # noqa: B010 - it is Final to all others
        self.channel: Final[Channel | AsyncChannel] = self.pump.channel
        self._record(self.channel)

    # -- for the harness

    @property
    def ended(self) -> bool:
        """Whether the pump has stopped for good."""
        return self.judge.stopped is not None

    def at_rest(self, *, nacked_count: bool) -> bool:
        """Whether nothing is left to do; nacked messages, and those behind them, count only with `nacked_count`."""
        channel = self.plan.rules.channel
        if self.ended or self.channel.is_shut:
            return True
        if self._bus.scheduled(channel):
            return False
        if nacked_count or not self.nacked:
            return self.waits
        intake = self.channel._intake  # noqa: SLF001 - the harness looks inside what it runs
        blocked = {intake.domain(each) for each in intake.waiting if each.identity in self.nacked} - {None}
        next_ones = (*intake.waiting, *self._bus.messages(channel)[:1])
        return not intake.in_hand and all(
            each.identity in self.nacked or intake.domain(each) in blocked for each in next_ones
        )

    @property
    def waits(self) -> bool:
        """Whether no message is in the bus or in hand, but perhaps some are due later."""
        channel = self.plan.rules.channel
        return self.ended or not (self._bus.pending(channel) or self._bus.locked(channel))

    def request(self, message: Message) -> object:
        """The request in a message, or the message itself where it cannot be mapped."""
        try:
            return request_of(self.router.route(message).mapper, message)
        except Exception:
            return message

    # -- recording

    def _record(self, channel: Channel | AsyncChannel) -> None:
        """Put functions that record in front of the channel's methods."""
        take = channel.take

        def taken() -> Message | None:
            message = take()
            self.turns += message is not None
            self.asked = self.asked or self.channel.is_shut
            return message

        calls: dict[str, object] = {"take": taken}
        calls |= {name: _within(partial(self._call, name), getattr(channel, name)) for name in _ARGUMENTS}
        # The channel stays open from one run to the next.
        calls |= {
            name: _within(lambda *_: nullcontext(self.ended), getattr(channel, name)) for name in ("finish", "close")
        }
        for name, call in calls.items():
            setattr(channel, name, call)

    @contextmanager
    def _call(self, name: str, message: Message, *arguments: object) -> Iterator[bool]:
        call = Call(name)
        call.request, call.message = self.request(message), message
        vars(call).update(zip(_ARGUMENTS[name], arguments, strict=False))
        self.records.calls.append(call)
        try:
            yield True
        except BaseException as error:
            call.error = error
            raise
        if name == "nack":
            self.nacked.add(message.identity)
        if name == "requeue" and call.delay:
            heappush(self.records.dues, self._clock.monotonic() + call.delay)


def _within(context: Callable[..., AbstractContextManager[bool]], method: Callable[..., Any]) -> Callable[..., object]:
    """The method, called inside a context that decides whether it is called at all."""

    def call(*arguments: object) -> None:
        with context(*arguments) as wanted:
            if wanted:
                method(*arguments)

    async def call_async(*arguments: object) -> None:
        with context(*arguments) as wanted:
            if wanted:
                await method(*arguments)

    return call_async if iscoroutinefunction(method) else call


def _never() -> bool:
    """Whether a handler that blocks was cancelled."""
    return False
