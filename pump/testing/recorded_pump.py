"""One subscription under test: the real judge, channel and pump, which record what they do and pause when asked to."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappush
from inspect import iscoroutinefunction
from typing import Any, Final

from pump.handling.dispatch import AsyncDispatch, Dispatch, DispatchSettings, Router, request_of
from pump.ledger import Ledger
from pump.message import Message
from pump.program.plan import Plan
from pump.program.processor import CommandProcessor
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.testing.clock import SelfMovingClock
from pump.testing.records import Bus, Call, Records
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import Transport
from pump.verdict import Judge, Unsettled, Verdict

_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "acknowledge": (),
    "nack": ("delay",),
    "requeue": ("delay", "attempts"),
    "reject": ("rejection",),
    "hand_back": (),
}
"""The calls of a channel that are recorded, and what each is given besides the message."""


class RecordingJudge(Judge):
    """The judge, which records its verdicts, and lets a pump run only as long as the test wants it to."""

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
        self._record(message, verdict)

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        """The verdict could not be carried out."""
        super().unsettled(message, verdict, error)
        self._record(message, verdict)

    def _record(self, message: Message, verdict: Verdict) -> None:
        if not (isinstance(verdict, Unsettled) and message.settled):  # else its handler has settled it: recorded then
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
        clock: SelfMovingClock,
        bus: Bus,
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
        self._bus: Final = bus
        self._clock: Final = clock
        self.goes_on: Final = goes_on
        """Whether the test wants another message handled."""
        awaits = plan.rules.pump == "proactor"
        self.judge: Final = RecordingJudge(
            plan.rules,
            Ledger(clock),
            clock,
            PumpLog(plan.rules.channel, settings.telemetry),
            may_block=plan.may_block,
            **({"cancelled": is_cancelled} if awaits else {}),
        )
        self.judge.pump = self
        self.pump: Final = self._proactor(transport) if awaits else self._reactor(transport)
        self.channel: Final[Channel | AsyncChannel] = self.pump.channel
        self._record(self.channel)

    # -- for the harness

    @property
    def ended(self) -> bool:
        """Whether the pump has stopped for good."""
        return self.judge.stopped is not None

    def at_rest(self, *, nacked_count: bool) -> bool:
        """Whether nothing is left to do. Nacked messages, and what waits behind them, may be left out of that."""
        channel = self.plan.rules.channel
        if self.ended:
            return True
        if self._bus.scheduled(channel):
            return False
        if nacked_count or not self.nacked:
            return self.waits
        intake = self.channel._intake  # noqa: SLF001 - the harness looks inside what it runs
        if intake.in_hand or any(message.identity not in self.nacked for message in intake.waiting):
            return False
        first = self._bus.messages(channel)[:1]
        return all(message.identity in self.nacked for message in first)

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

    # -- making

    def _reactor(self, transport: Transport) -> Reactor:
        rules = self.plan.rules
        channel = Channel(lambda: blocking(transport).consumer(rules), transport.capabilities, self.judge)
        return Reactor(channel, Dispatch(self.router, channel))

    def _proactor(self, transport: Transport) -> Proactor:
        rules = self.plan.rules
        channel = AsyncChannel(lambda: awaiting(transport).async_consumer(rules), transport.capabilities, self.judge)
        dispatch = AsyncDispatch(self.router, channel)

        async def handled(message: Message) -> object:
            with self._clock.handling():
                return await dispatch(message)

        return (ConcurrentProactor if rules.in_flight > 1 else Proactor)(channel, handled)

    def _record(self, channel: Channel | AsyncChannel) -> None:
        """Put functions that record in front of the channel's methods."""
        take = channel.take

        def taken() -> Message | None:
            message = take()
            self.turns += message is not None
            return message

        calls: dict[str, object] = {"take": taken}
        calls |= {name: self._recorded(name, getattr(channel, name)) for name in _ARGUMENTS}
        calls |= {name: self._once_ended(getattr(channel, name)) for name in ("finish", "close")}
        for name, call in calls.items():
            setattr(channel, name, call)

    def _once_ended(self, method: Callable[..., Any]) -> Callable[..., object]:
        def call(*arguments: object) -> None:
            if self.ended:
                method(*arguments)

        async def call_async(*arguments: object) -> None:
            if self.ended:
                await method(*arguments)

        return call_async if iscoroutinefunction(method) else call

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., object]:
        def call(message: Message, *arguments: object) -> None:
            with self._call(name, message, arguments):
                method(message, *arguments)

        async def call_async(message: Message, *arguments: object) -> None:
            with self._call(name, message, arguments):
                await method(message, *arguments)

        return call_async if iscoroutinefunction(method) else call

    @contextmanager
    def _call(self, name: str, message: Message, arguments: tuple[object, ...]) -> Iterator[None]:
        given: dict[str, Any] = dict(zip(_ARGUMENTS[name], arguments, strict=False))
        call = Call(name, self.request(message), message, **given)
        self.records.calls.append(call)
        try:
            yield
        except BaseException as error:
            call.error = error
            raise
        if name == "nack":
            self.nacked.add(message.identity)
        if name == "requeue" and call.delay:
            heappush(self.records.dues, self._clock.monotonic() + call.delay)
