"""One subscription under test: the real judge, channel and pump, which tell what they do and pause where asked to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappush
from typing import Final, Protocol, Self

from pump.context import Processor
from pump.dead_letter import Rejection, dead_letter
from pump.handling.delivery import Settler
from pump.handling.dispatch import AsyncDispatch, Dispatch, Router, request_of
from pump.handling.dispatch_settings import Surroundings
from pump.ledger import Ledger
from pump.message import Message
from pump.program.plan import Plan
from pump.pump_log import Report
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.pumps.own_task import is_cancelled
from pump.pumps.proactor import Proactor
from pump.pumps.reactor import Reactor
from pump.testing.clock import SelfMovingClock
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import Transport
from pump.verdict import Judge, Leave, Verdict


class Bus(Protocol):
    """What a test may ask an in-memory bus; a channel that does not exist holds nothing."""

    def channels(self) -> Sequence[str]:
        """The names of all channels there are."""

    def pending(self, channel: str) -> int:
        """How many messages of the channel can be received now."""

    def locked(self, channel: str) -> int:
        """How many messages of the channel are in the hands of its consumers."""

    def scheduled(self, channel: str) -> int:
        """How many messages of the channel are due later."""

    def messages(self, channel: str) -> Sequence[Message]:
        """Copies of what can be received from the channel now, in order, with the deliveries so far."""


class Call(str):  # noqa: SLOT000 - it is made to carry more
    """A call of a channel: equal to its name, such as "acknowledge", and knowing what it was about."""

    request: object
    """The request in the message, as its handler gets it; the message itself where it cannot be mapped."""
    message: Message
    delay: float | None
    attempts: int | None
    rejection: Rejection | None
    error: BaseException | None
    """What the call raised; None if it succeeded."""

    def __new__(  # noqa: D102 - the class says it
        cls,
        name: str,
        request: object,
        message: Message,
        *,
        delay: float | None = None,
        attempts: int | None = None,
        rejection: Rejection | None = None,
    ) -> Self:
        call = super().__new__(cls, name)
        call.request, call.message, call.error = request, message, None
        call.delay, call.attempts, call.rejection = delay, attempts, rejection
        return call

    @property
    def ends(self) -> bool:
        """Whether it was the end of its message."""
        return self.error is None and self in {"acknowledge", "reject"}


@dataclass(frozen=True)
class DeadLetter:
    """A message that was given up, and what its dead letter says of that."""

    request: object
    """As its handler gets it; the message itself where it cannot be mapped."""
    message: Message
    rejection: Rejection

    @property
    def reason(self) -> str:
        """Why it was given up, in a few words."""
        return self.rejection.reason

    @property
    def description(self) -> str:
        """Why, in more words."""
        return self.rejection.description

    @property
    def error(self) -> BaseException | None:
        """What the handler raised, if anything."""
        return self.rejection.error

    @property
    def attempts(self) -> int:
        """How many attempts it had."""
        return self.rejection.attempts

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the dead letter: its own, and those that say where it comes from and why, `pump-…`."""
        return dead_letter(self.message, self.rejection).headers


class Book:
    """What the lanes of one harness have done, in order; and when messages that were put off come due."""

    def __init__(self) -> None:
        self.calls: Final[list[Call]] = []
        self.verdicts: Final[list[tuple[object, Verdict]]] = []
        self.dues: Final[list[float]] = []
        """A heap."""

    @contextmanager
    def call(self, call: Call) -> Iterator[None]:
        """Note a call, and what it raises."""
        self.calls.append(call)
        try:
            yield
        except BaseException as error:
            call.error = error
            raise


class SpiedJudge(Judge):
    """The judge, who asks before each turn whether there shall be one."""

    lane: "Lane"

    @property
    def running(self) -> bool:
        """Whether another turn may begin, and the test wants it."""
        return super().running and self.lane.goes_on()

    def connected(self) -> None:
        """The channel works, and was asked for messages."""
        super().connected()
        self.lane.moved = True

    def settled(self, message: Message, verdict: Verdict) -> None:
        """The verdict was carried out."""
        super().settled(message, verdict)
        self._note(message, verdict)

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        """The verdict could not be carried out."""
        super().unsettled(message, verdict, error)
        self._note(message, verdict)

    def _note(self, message: Message, verdict: Verdict) -> None:
        if not (isinstance(verdict, Leave) and message.settled):  # its handler has settled it, and that is noted
            self.lane.book.verdicts.append((self.lane.request(message), verdict))


class SpiedChannel(Channel):
    """The channel, which notes what it is asked, and stays open from one run to the next."""

    lane: "Lane"

    def take(self) -> Message | None:  # noqa: D102 - as Channel's
        return self.lane.taken(super().take())

    def acknowledge(self, message: Message) -> None:  # noqa: D102 - as Channel's
        with self.lane.call("acknowledge", message):
            super().acknowledge(message)

    def nack(self, message: Message, delay: float = 0.0) -> None:  # noqa: D102 - as Channel's
        with self.lane.call("nack", message, delay):
            super().nack(message, delay)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:  # noqa: D102 - as Channel's
        with self.lane.call("requeue", message, delay, attempts):
            super().requeue(message, delay, attempts)

    def reject(self, message: Message, rejection: Rejection) -> None:  # noqa: D102 - as Channel's
        with self.lane.call("reject", message, rejection=rejection):
            super().reject(message, rejection)

    def hand_back(self, message: Message) -> None:  # noqa: D102 - as Channel's
        with self.lane.call("hand_back", message):
            super().hand_back(message)

    def finish(self, timeout: float) -> None:  # noqa: D102 - as Channel's
        if self.lane.ended:
            super().finish(timeout)

    def close(self) -> None:  # noqa: D102 - as Channel's
        if self.lane.ended:
            super().close()


class SpiedAsyncChannel(AsyncChannel):
    """The same, awaiting."""

    lane: "Lane"

    def take(self) -> Message | None:  # noqa: D102 - as AsyncChannel's
        return self.lane.taken(super().take())

    async def acknowledge(self, message: Message) -> None:  # noqa: D102 - as AsyncChannel's
        with self.lane.call("acknowledge", message):
            await super().acknowledge(message)

    async def nack(self, message: Message, delay: float = 0.0) -> None:  # noqa: D102 - as AsyncChannel's
        with self.lane.call("nack", message, delay):
            await super().nack(message, delay)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:  # noqa: D102 - as AsyncChannel's
        with self.lane.call("requeue", message, delay, attempts):
            await super().requeue(message, delay, attempts)

    async def reject(self, message: Message, rejection: Rejection) -> None:  # noqa: D102 - as AsyncChannel's
        with self.lane.call("reject", message, rejection=rejection):
            await super().reject(message, rejection)

    async def hand_back(self, message: Message) -> None:  # noqa: D102 - as AsyncChannel's
        with self.lane.call("hand_back", message):
            await super().hand_back(message)

    async def finish(self, timeout: float) -> None:  # noqa: D102 - as AsyncChannel's
        if self.lane.ended:
            await super().finish(timeout)

    async def close(self) -> None:  # noqa: D102 - as AsyncChannel's
        if self.lane.ended:
            await super().close()


class Lane:
    """One subscription with its pump."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        surroundings: Surroundings,
        processor: Processor,
        *,
        book: Book,
        clock: SelfMovingClock,
        bus: Bus,
        goes_on: "Callable[[Lane], bool]",
    ) -> None:
        self.plan: Final = plan
        self.book: Final = book
        self.router: Final = Router(plan.rules, plan.handlers, surroundings, processor)
        self.turns = 0
        """How many messages it has begun to handle."""
        self.moved = False
        """Whether it has asked for messages since this was last set to False."""
        self.left: Final[set[str]] = set()
        """The identities of messages that were left since this was last cleared."""
        self._bus: Final = bus
        self._clock: Final = clock
        self._goes_on: Final = goes_on
        self._ledger: Final = Ledger(clock)
        self._report: Final = Report(plan.rules.channel, surroundings.telemetry)
        self.pump: Final = self._reactor(transport) if plan.rules.pump == "reactor" else self._proactor(transport)

    # -- for the harness

    @property
    def ended(self) -> bool:
        """Whether its pump has stopped for good."""
        return self.judge.stopped is not None

    def at_rest(self, *, left_count: bool) -> bool:
        """Whether nothing is to be done; what was left, and what waits behind it, may not count."""
        channel = self.plan.rules.channel
        if self.ended:
            return True
        if self._bus.scheduled(channel):
            return False
        if left_count or not self.left:
            return not (self._bus.pending(channel) or self._bus.locked(channel))
        intake = self.channel._intake  # noqa: SLF001 - the harness looks inside what it runs
        if intake.in_hand or any(message.identity not in self.left for message in intake.waiting):
            return False
        first = self._bus.messages(channel)[:1]
        return all(message.identity in self.left for message in first)

    @property
    def waits(self) -> bool:
        """Whether it has nothing, in the bus or in hand, but perhaps for what comes due later."""
        channel = self.plan.rules.channel
        return self.ended or not (self._bus.pending(channel) or self._bus.locked(channel))

    def request(self, message: Message) -> object:
        """The request in a message, or the message itself where it cannot be mapped."""
        try:
            return request_of(self.router.route(message).mapper, message)
        except Exception:
            return message

    # -- for judge and channel

    def goes_on(self) -> bool:
        """Whether the test wants another turn."""
        return self._goes_on(self)

    def taken(self, message: Message | None) -> Message | None:
        """A message, if any, is going to be handled."""
        if message is not None:
            self.turns += 1
        return message

    @contextmanager
    def call(
        self,
        name: str,
        message: Message,
        delay: float | None = None,
        attempts: int | None = None,
        rejection: Rejection | None = None,
    ) -> Iterator[None]:
        """Note a call of the channel."""
        request = self.request(message)
        call = Call(name, request, message, delay=delay, attempts=attempts, rejection=rejection)
        with self.book.call(call):
            yield
        if name == "nack":
            self.left.add(message.identity)
        if name == "requeue" and delay:
            heappush(self.book.dues, self._clock.monotonic() + delay)

    # -- making

    def _spied(self, *, awaits: bool) -> SpiedJudge:
        judge = SpiedJudge(
            self.plan.rules,
            self._ledger,
            self._clock,
            self._report,
            may_block=self.plan.may_block,
            **({"cancelled": is_cancelled} if awaits else {}),
        )
        judge.lane = self
        return judge

    def _reactor(self, transport: Transport) -> Reactor:
        rules = self.plan.rules
        judge = self.judge = self._spied(awaits=False)
        channel = SpiedChannel(
            lambda: blocking(transport).consumer(rules),
            rules,
            transport.capabilities,
            judge,
            self._ledger,
            self._clock,
            self._report,
        )
        channel.lane = self
        self.channel: SpiedChannel | SpiedAsyncChannel = channel
        dispatch = Dispatch(self.router, Settler(judge, channel), judge.stopping)
        return Reactor(channel, dispatch, judge, rules, self._clock)

    def _proactor(self, transport: Transport) -> Proactor:
        rules = self.plan.rules
        judge = self.judge = self._spied(awaits=True)
        channel = SpiedAsyncChannel(
            lambda: awaiting(transport).async_consumer(rules),
            rules,
            transport.capabilities,
            judge,
            self._ledger,
            self._clock,
            self._report,
        )
        channel.lane = self
        self.channel = channel
        dispatch = AsyncDispatch(self.router, Settler(judge, channel), judge.stopping)

        async def handled(message: Message) -> object:
            with self._clock.handling():
                return await dispatch(message)

        kind = ConcurrentProactor if rules.in_flight > 1 else Proactor
        return kind(channel, handled, judge, rules, self._clock)
