"""Runs handlers as a dispatcher would, without a broker and without waiting, for tests."""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, Self, TypeVar, Unpack, cast

from pump.attribute import SwitchProvider
from pump.clock import Clock
from pump.context import Context, find_context, in_context
from pump.dead_letter import RejectionKind
from pump.duration import Duration
from pump.duration import seconds as in_seconds
from pump.errors import ConfigurationError, PumpError
from pump.handling.dispatch import Bound, DispatchSettings
from pump.handling.pipeline import done
from pump.mapping.mapper import Mapper
from pump.message import NO_HEADERS, Header, Message
from pump.program.dispatcher import Dispatcher
from pump.program.plan import Plan
from pump.program.processor import CommandProcessor, PostOptions
from pump.program.producers import Producers
from pump.program.validation import problems, raise_errors
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.proactor import Proactor
from pump.settling import Verdict
from pump.subscription import Publication, Subscription
from pump.telemetry import Listener, Telemetry, log
from pump.testing.clock import SelfMovingClock, SelfMovingLoop
from pump.testing.recorded_pump import RecordedPump
from pump.testing.records import Bus, Call, DeadLetter, Records
from pump.testing.settings import SubscriptionOptions, Switchboard, program_of
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import Transport, find_transport
from pump.verdict import Stopped
from pump.wire_name import wire_type

Result = TypeVar("Result")

MOST_LOOKS: Final = 100_000
"""How often a run may look for a message; a run that still has work then is an error."""


def memory_transport(clock: Clock | None = None) -> Transport:
    """An in-memory bus of its own, on this clock, or on the machine's."""
    make: Callable[..., Transport] = find_transport("memory")
    return make(clock=clock)


class PumpHarness:
    """The pumps of some handlers, or of a whole Dispatcher, in one thread, on an in-memory bus and an own clock.

    Everything but the broker and the time is real: mappers, pipelines, judge, channel, Reactor or Proactor. Handlers
    are given as to a Dispatcher, with the options of their subscription. A Dispatcher's transport and clock are
    replaced, and each subscription has one performer. Post, run, and see what became of the messages: the properties
    list requests, in the order of events. Close it, or use it in a `with`; the fixture `pump_harness` closes it.
    """

    def __init__(
        self,
        *handlers: object,
        subscriptions: Iterable[Subscription] = (),
        publications: Iterable[Publication | type] = (),
        name: str = "harness",
        factory: Callable[[type], object] | None = None,
        switches: SwitchProvider | None = None,
        mappers: Mapping[type, Mapper[Any]] | None = None,
        listeners: Iterable[Listener] = (),
        **options: Unpack[SubscriptionOptions],
    ) -> None:
        self.clock: Final = SelfMovingClock()
        """The time of pumps, bus and attributes, and of `asyncio.sleep`; it moves when everything waits."""
        self.events: Final[list[tuple[str, Mapping[str, object]]]] = []
        """The events that listeners were called with."""
        self.logs: Final[list[logging.LogRecord]] = []
        """What was logged while running."""
        telemetry = Telemetry(lambda event, fields: self.events.append((event, fields)), *listeners)
        given = handlers[0].settings if handlers and isinstance(handlers[0], Dispatcher) else None
        self.switches: Final = Switchboard(switches or (given.switches if given else None))
        """Turns feature switches on and off: `harness.switches.set("orders.place", False)`."""
        settings = DispatchSettings(
            name=name,
            factory=factory,
            mappers=dict(mappers or {}),
            switches=self.switches,
            clock=self.clock,
            telemetry=telemetry,
        )
        registry, plans, publications, settings = program_of(handlers, subscriptions, publications, options, settings)
        transport = self._transport()
        has_factory = settings.factory is not None
        raise_errors(problems(plans, publications, transport.capabilities, has_factory=has_factory))
        blocking(transport).prepare([*(each.rules for each in plans), *_elsewhere(plans, publications)], publications)
        self.bus: Final[Bus] = cast("Any", transport).bus
        """The in-memory bus; the channels' names are those of the subscriptions."""
        self._sent: Final[list[tuple[Message, bool]]] = []
        self._records: Final = Records(self.clock, self.bus)
        producers = self._producers = _RecordingProducers(transport, self._note)
        producers.open()
        every = registry.joined_by(handler for each in plans for handler in each.handlers)
        self.processor: Final = CommandProcessor(every, publications, settings, producers, self._stop)
        """Sends and publishes in the process, as `self.context.processor` does."""
        self._mappers: Final = {wire_type(each.request): settings.mapper(each.request) for each in publications}
        self._pumps: Final = [
            RecordedPump(each, transport, settings, self.processor, records=self._records, goes_on=self._goes_on)
            for each in plans
        ]
        self._runner: asyncio.Runner | None = None
        self._loop: SelfMovingLoop | None = None
        self._enough: Callable[[], bool] = lambda: False
        self._deadline = inf
        self._looks = 0
        self._made()

    def _transport(self) -> Transport:
        """The in-memory bus; a subclass may give another transport."""
        return memory_transport(self.clock)

    def _made(self) -> None:
        """Called at the end of `__init__`; a subclass may override it."""

    # -- posting

    def post(self, request: object, /, **options: Unpack[PostOptions]) -> str:
        """Post a request to the bus, as the program would; returns its id."""
        return self.processor.post(request, **options)

    def post_raw(
        self,
        body: bytes | str,
        *,
        type: str = "",  # noqa: A002 - the header's own name for it
        topic: str | None = None,
        id: str | None = None,  # noqa: A002 - the header's own name for it
        content_type: str = "application/json",
        version: str = "",
        key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> str:
        """Give the bus a raw message; returns its id. By default it goes to the first subscription's topic."""
        header = Header(
            id=uuid.uuid4().hex if id is None else id,
            topic=self._pumps[0].plan.rules.topic if topic is None else topic,
            type=type,
            version=version,
            content_type=content_type,
            key=key,
            timestamp=self.clock.wall(),
            headers=headers,
        )
        self._producers.send((Message(header, body.encode() if isinstance(body, str) else body),))
        return header.id

    def _note(self, messages: Sequence[Message], delay: float) -> None:
        by_a_handler = find_context() is not None
        self._sent.extend((message, by_a_handler) for message in messages)
        if delay > 0:
            heappush(self._records.dues, self.clock.monotonic() + delay)

    # -- running

    def run(self, *, turns: int | None = None, seconds: Duration | None = None) -> None:
        """Run until nothing is left to do; the clock moves as needed.

        A nacked message (DontAck) is not handled again in the same run, nor are those that wait behind it. With
        `turns`, run for at most this many messages; with `seconds`, for this long by the clock.
        """
        self._must_be_outside()
        last_turn = None if turns is None else self._turns + turns
        self._deadline = inf if seconds is None else self.clock.monotonic() + in_seconds(seconds)

        def enough() -> bool:
            if last_turn is not None and self._turns >= last_turn:
                return True
            if seconds is not None:
                return self.clock.monotonic() >= self._deadline
            return all(pump.at_rest(nacked_count=turns is not None) for pump in self._pumps)

        self._enough = enough
        self._looks = 0
        for pump in self._pumps:
            pump.nacked.clear()
        with self._logging():
            while not enough() and not all(pump.ended for pump in self._pumps):
                for pump in self._pumps:
                    pump.asked = False
                    if isinstance(pump.pump, Proactor):
                        self.await_(pump.pump.run())
                    else:
                        pump.pump.run()

    def step(self) -> None:
        """Handle one message, if there is one or one comes due."""
        self.run(turns=1)

    def advance(self, seconds: Duration) -> None:
        """Move the clock while nothing runs."""
        self.clock.advance(in_seconds(seconds))

    def handle(self, request: object, /, *, headers: Mapping[str, str] = NO_HEADERS) -> object:
        """Run the one handler of a request, attributes included; returns what it returns, raises what it raises.

        The request itself is passed, without mapping; its context has a message with these headers.
        """
        self._must_be_outside()
        pump, message, bound = self._handler_of(request, headers)
        name = bound.registration.name
        context = Context(self.processor, name, message, clock=self.clock, stopping=pump.judge.stopping)

        async def handled() -> object:
            with in_context(context):
                return done(await self.clock.handling(bound.run(request)))

        with self._logging():
            if bound.registration.colour == "awaiting":
                return self.await_(handled())
            with in_context(context):
                return cast("object", bound.run(request))

    def await_(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop of the async handlers, such as `ack()` of an AsyncDelivery."""
        if self._runner is None:
            loop = self._loop = SelfMovingLoop(self.clock)
            self._runner = asyncio.Runner(loop_factory=lambda: loop)
        return self._runner.run(coroutine)

    def _goes_on(self, pump: RecordedPump) -> bool:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise PumpError(f"the run does not come to rest: give it turns= or seconds=. Still pending: {self.pending}")
        self._skip_time()
        return not self._enough() and (len(self._pumps) == 1 or not pump.asked)

    def _skip_time(self) -> None:
        """If all messages are due later, move the clock there at once, instead of by many empty receives."""
        now, dues = self.clock.monotonic(), self._records.dues
        while dues and dues[0] <= now:
            heappop(dues)
        later = min([*dues[:1], self._deadline])
        if now < later < inf and all(pump.waits for pump in self._pumps):
            self.clock.advance(later - now)

    def _handler_of(self, request: object, headers: Mapping[str, str]) -> tuple[RecordedPump, Message, Bound]:
        kind = type(request)
        for pump in self._pumps:
            if any(each.request is kind for each in pump.plan.handlers):
                rules = pump.plan.rules
                header = Header(uuid.uuid4().hex, rules.topic, wire_type(kind), headers=headers)
                message = Message(header, self._mappers[wire_type(kind)].encode(request))
                message.origin = rules.channel
                handlers = pump.router.route(message).handlers
                if len(handlers) > 1 or handlers[0].registration.explicit:
                    break
                return pump, message, handlers[0]
        raise ConfigurationError(
            f"{kind.__name__} does not have exactly one handler that can be called directly: post it, and run"
        )

    @property
    def _turns(self) -> int:
        return sum(pump.turns for pump in self._pumps)

    def _must_be_outside(self) -> None:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as must_not_block does
            raise ConfigurationError("a PumpHarness runs async handlers on a loop of its own: use it in a `def` test")

    @contextmanager
    def _logging(self) -> Iterator[None]:
        keep, level = logging.Handler(), log.level
        keep.emit = self.logs.append  # type: ignore[assignment] # the only thing that it does
        log.addHandler(keep)
        log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeHandler(keep)

    # -- what became of the messages

    @property
    def calls(self) -> list[Call]:
        """Every call of a channel: a string such as "acknowledge", which has `request`, `delay`, `error` and more."""
        return list(self._records.calls)

    @property
    def verdicts(self) -> list[tuple[object, Verdict]]:
        """Pairs of a request and a verdict on it, in order."""
        return list(self._records.verdicts)

    @property
    def acknowledged(self) -> list[object]:
        """The requests that were acknowledged."""
        return self._requests("acknowledge")

    @property
    def nacked(self) -> list[object]:
        """The requests that were not acknowledged (DontAck), once for each time."""
        return self._requests("nack")

    @property
    def deferred(self) -> list[object]:
        """The requests that were deferred, by DeferMessageAction or after an error, once for each time."""
        return self._requests("requeue")

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The messages that were given up, with reason and provenance."""
        return self._given_up("delivery error")

    @property
    def invalid(self) -> list[DeadLetter]:
        """The invalid messages: not mappable, of an unknown type, or invalid as their handler decided."""
        return self._given_up("unacceptable")

    @property
    def pending(self) -> list[object]:
        """The requests that were posted to a subscription and are neither acknowledged nor given up."""
        done = Counter((each.message.origin, each.message.id) for each in self._records.calls if each.ends)
        left = []
        for pump in self._pumps:
            for message, _ in self._sent:
                key = (pump.plan.rules.channel, message.id)
                if message.header.topic == pump.plan.rules.topic:
                    if not done[key]:
                        left.append(pump.request(message))
                    done[key] -= done[key] > 0
        return left

    @property
    def posted(self) -> list[object]:
        """The requests that handlers posted."""
        return [self._mappers[message.header.type].decode(message) for message, inside in self._sent if inside]

    @property
    def unacceptable(self) -> int:
        """How many messages count as unacceptable."""
        return sum(pump.judge.unacceptable for pump in self._pumps)

    @property
    def stopped(self) -> Stopped | None:
        """Why a pump stopped; None while all run."""
        return next((pump.judge.stopped for pump in self._pumps if pump.ended), None)

    def _requests(self, name: str) -> list[object]:
        return [call.request for call in self._records.calls if call == name and call.error is None]

    def _given_up(self, kind: RejectionKind) -> list[DeadLetter]:
        return [
            DeadLetter(call.request, call.message, call.rejection)
            for call in self._records.calls
            if call.error is None and call.rejection is not None and call.rejection.kind == kind
        ]

    # -- end

    def _stop(self) -> None:
        for pump in self._pumps:
            pump.judge.stop()

    def close(self) -> None:
        """Stop the pumps and close everything."""
        self._stop()
        for pump in self._pumps:
            if isinstance(pump.channel, AsyncChannel):
                if self._runner is not None:
                    self.await_(pump.channel.close())
            else:
                pump.channel.close()
        self._producers.close()
        if self._runner is not None and self._loop is not None:
            self._loop.stand_still()
            self._runner.close()
            self._runner = self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _elsewhere(plans: Sequence[Plan], publications: Sequence[Publication]) -> Sequence[Subscription]:
    """A channel for each topic that only other programs read: it keeps the posts there for the test."""
    read = {each.rules.topic for each in plans}
    return [
        Subscription(each.request, topic=each.destination, channel=each.destination, dead_letter=None)
        for each in publications
        if each.destination not in read
    ]


class _RecordingProducers(Producers):
    """Producers that report what they have sent."""

    def __init__(self, transport: Transport, note: Callable[[Sequence[Message], float], None]) -> None:
        super().__init__(transport)
        self._note: Final = note

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        super().send(messages, delay)
        self._note(messages, delay)

    async def send_async(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        await super().send_async(messages, delay)
        self._note(messages, delay)
