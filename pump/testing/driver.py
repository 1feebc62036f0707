"""What the contract suite works with: a transport in one colour, driven as if each of its calls blocked.

The tests are in `pump.testing.contract` and `pump.testing.settlement`.
"""

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast
from uuid import uuid4

import pytest

from pump.clock import Clock, Signal, SystemClock
from pump.colour import Colour
from pump.dead_letter import Rejection
from pump.errors import TransportError
from pump.ledger import Ledger
from pump.message import Header, Message
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.telemetry import Telemetry
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import AsyncProducer, Producer, Transport
from pump.verdict import Judge

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

EMPTY_DELAY: Final = 0.02


class Background:
    """A call that runs in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.ended: Final = Signal()
        self.result: object = None
        """What it returned, or the exception that it raised."""
        self._call: Final = call
        threading.Thread(target=self._run, name="contract", daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # the test looks at it
            self.result = error
        self.ended.set()


class ChannelDriver:
    """A channel of either colour, driven as if its calls blocked."""

    def __init__(self, driver: "TransportDriver", subscription: Subscription, channel: Channel | AsyncChannel) -> None:
        self.subscription: Final = subscription
        self._driver: Final = driver
        self._channel: Final = channel

    def receive_once(self, timeout: float) -> Message | None:
        """The message of one receive, which may end early with None."""
        return self._driver.call(self._channel.receive, timeout)

    def receive(self, within: float) -> Message | None:
        """The next message that comes in time, or None."""
        clock = self._driver.clock
        deadline = clock.monotonic() + within
        while True:
            left = deadline - clock.monotonic()
            message = self.receive_once(max(left, 0.0))
            if message is not None or left <= 0:
                return message
            if not self._driver.capabilities.waits:
                self._driver.pause(min(left, EMPTY_DELAY))  # so does the pump, after an empty receive

    def receive_in_spite_of_errors(self, within: float) -> Message | None:
        """The same, where the connection may break meanwhile."""
        deadline = self._driver.clock.monotonic() + within
        while True:
            left = deadline - self._driver.clock.monotonic()
            try:
                return self.receive(max(left, 0.0))
            except TransportError:
                if left <= 0:
                    raise
                self._driver.pause(EMPTY_DELAY)  # so does the pump, before it tries again

    def acknowledge(self, message: Message) -> None:
        """As Channel's."""
        self._driver.call(self._channel.acknowledge, message)

    def nack(self, message: Message, delay: float = 0.0) -> None:
        """As Channel's."""
        self._driver.call(self._channel.nack, message, delay)

    def requeue(self, message: Message, delay: float = 0.0, attempts: int = 1) -> None:
        """As Channel's."""
        self._driver.call(self._channel.requeue, message, delay, attempts)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """As Channel's."""
        self._driver.call(self._channel.reject, message, rejection)

    def extend(self, message: Message) -> None:
        """As Channel's."""
        self._driver.call(self._channel.extend, message)

    def purge(self) -> int:
        """As Channel's."""
        return self._driver.call(self._channel.purge)

    def stop(self) -> None:
        """As Channel's."""
        self._channel.stop()

    def close(self) -> None:
        """As Channel's."""
        self._driver.call(self._channel.close)


class TransportDriver:
    """A transport under test in one colour, through a bridge where that is not its own."""

    def __init__(self, transport: Transport, colour: Colour, clock: Clock) -> None:
        self.transport: Final = transport
        self.capabilities: Final = transport.capabilities
        self.clock: Final = clock
        self._real_clock: Final = SystemClock()
        self._loop: Final = LoopThread("contract") if colour == "awaiting" else None
        self._blocking: Final = blocking(transport) if colour == "blocking" else None
        self._awaiting: Final = awaiting(transport) if colour == "awaiting" else None
        self._channels: Final[list[ChannelDriver]] = []
        self._producer: Producer | AsyncProducer | None = None

    def call(
        self,
        function: Callable[Arguments, Result | Coroutine[Any, Any, Result]],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """What the function returns, awaited on the driver's loop where necessary."""
        result = function(*args, **options)
        return self._run(result) if inspect.iscoroutine(result) else cast("Result", result)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        assert self._loop is not None
        return self._loop.run(work)

    def prepare(self, *subscriptions: Subscription, publications: tuple[Publication, ...] = ()) -> None:
        """As the transport's."""
        if self._blocking is not None:
            self._blocking.prepare(subscriptions, publications)
        if self._awaiting is not None:
            self._run(self._awaiting.async_prepare(subscriptions, publications))

    def open(self, subscription: Subscription) -> ChannelDriver:
        """A channel like that of a pump, with a ledger of its own; closed with the driver."""
        channel = ChannelDriver(self, subscription, self._make_channel(subscription))
        self._channels.append(channel)
        return channel

    def _make_channel(self, subscription: Subscription) -> Channel | AsyncChannel:
        log = PumpLog(subscription.channel, Telemetry())
        judge = Judge(subscription, Ledger(self.clock), self.clock, log)
        if self._blocking is not None:
            return Channel(partial(self._blocking.consumer, subscription), self.capabilities, judge)
        assert self._awaiting is not None
        return AsyncChannel(partial(self._awaiting.async_consumer, subscription), self.capabilities, judge)

    def send(self, *messages: Message, delay: float = 0.0) -> None:
        """Send all of them at once; they are confirmed when this returns."""
        if self._producer is None:
            self._producer = self._open_producer()
        self.call(self._producer.send, messages, delay)

    def _open_producer(self) -> Producer | AsyncProducer:
        if self._blocking is not None:
            return self._blocking.producer()
        assert self._awaiting is not None
        return self._run(self._awaiting.async_producer())

    def pause(self, duration: float) -> None:
        """Wait on the driver's clock."""
        self.clock.wait(Signal(), duration)

    def begin(self, call: Callable[[], object]) -> Background:
        """Begin a call that may take long, and give it a moment of real time to start."""
        begun = Background(call)
        self._real_clock.wait(begun.ended, 0.2)
        return begun

    def ends_within(self, background: Background, limit: float) -> bool:
        """Whether the call ends in this much real time."""
        return self._real_clock.wait(background.ended, limit)

    def soon(self, condition: Callable[[], bool], limit: float = 5.0) -> bool:
        """Whether the condition becomes true in this much real time."""
        deadline = self._real_clock.monotonic() + limit
        while not condition():
            if self._real_clock.monotonic() > deadline:
                return False
            self._real_clock.wait(Signal(), 0.002)
        return True

    def close(self) -> None:
        """Close whatever was opened, even if closing some of it fails."""
        with ExitStack() as stack:
            if self._loop is not None:
                stack.callback(self._loop.close)
            if self._producer is not None:
                stack.callback(self.call, self._producer.close)
            for channel in self._channels:
                stack.callback(channel.close)


class Sample(Command):
    """The request of the contract's messages."""


class ContractBase:
    """What the author of a transport may set, and what the tests use. The defaults are for slow brokers."""

    arrives_within_seconds: float = 10.0
    """How long it may take until a message arrives after it was sent, given back, or its lease ended."""
    silence_seconds: float = 0.3
    """How long the contract waits before it concludes that no message comes."""
    released_within_seconds: float = 0.1
    """How long it may take until another consumer has a nacked message, where nack releases."""
    delay_seconds: float = 1.0
    """The delay that messages are deferred by."""
    early_seconds: float = 0.1
    """How much too early a deferred message may come."""
    late_seconds: float = 1.5
    """How much too late a deferred message may come."""
    lease_seconds: float = 1.0
    """The shortest lease that the broker grants, where it grants any."""
    wakes_within_seconds: float = 1.0
    """How long a stopped receive may take to return, in real time."""
    recovers_within_seconds: float = 30.0
    """How long it may take until messages arrive again after the connection broke."""
    makes_channels_on_use: bool = False
    """Whether the broker itself creates a missing channel when it is consumed."""

    @pytest.fixture
    def transport(self) -> Transport:
        """The transport under test, on a broker where new names are free."""
        raise NotImplementedError("a TransportContract needs the fixture `transport`")

    @pytest.fixture
    def clock(self) -> Clock:
        """The transport's clock."""
        return SystemClock()

    def unique_name(self) -> str:
        """A name for a topic or a channel that is new to the broker."""
        return f"contract-{uuid4().hex[:12]}"

    def dead_letter_subscription(self, name: str) -> Subscription:
        """The subscription that consumes the dead letters of that name."""
        return Subscription(Sample, topic=name, channel=name, dead_letter=None)

    def break_connection(self, transport: Transport) -> None:
        """Cut the consumers' present connections, as a network does."""
        pytest.skip("the contract was not told how to break the connection")

    def restart_broker(self, transport: Transport) -> None:
        """Stop the broker's process and start it again."""
        pytest.skip("the contract was not told how to restart the broker")

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        """Send, not by the transport itself, a message that the transport cannot read; returns the body."""
        pytest.skip("the contract was not given a message that the transport cannot read")

    @pytest.fixture(params=["blocking", "awaiting"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        """The colour in which the transport is driven."""
        return cast("Colour", request.param)

    @pytest.fixture
    def driver(self, transport: Transport, colour: Colour, clock: Clock) -> Iterator[TransportDriver]:
        """The transport in that colour; whatever it opened is closed at the end."""
        driver = TransportDriver(transport, colour, clock)
        yield driver
        driver.close()

    def subscription(self, topic: str = "") -> Subscription:
        """A subscription with a channel of its own, to that topic or to one of the channel's name; leases are short."""
        name, lease = self.unique_name(), self.lease_seconds
        return Subscription(Sample, topic=topic or name, channel=name, dead_letter=f"{name}-dead", lease=lease)

    def open(self, driver: TransportDriver, subscription: Subscription | None = None) -> ChannelDriver:
        """A channel that is prepared for receiving and posting."""
        subscription = subscription or self.subscription()
        driver.prepare(subscription, publications=(Publication(Sample, topic=subscription.topic),))
        return driver.open(subscription)

    def open_dead_letters(self, driver: TransportDriver, channel: ChannelDriver) -> ChannelDriver:
        """The dead letters of a channel. Has to be opened before there are any."""
        return self.open(driver, self.dead_letter_subscription(channel.subscription.dead_letter or ""))

    def message(self, channel: ChannelDriver, body: bytes = b"", header: Header | None = None) -> Message:
        """A message to a channel's topic."""
        header = header or Header("", type="Sample", key="k")
        return Message(header._replace(id=uuid4().hex, topic=channel.subscription.topic), body)

    def send(self, driver: TransportDriver, channel: ChannelDriver, *bodies: str) -> None:
        """Send messages to a channel's topic, all of one key."""
        driver.send(*(self.message(channel, body.encode()) for body in bodies))

    def expect(self, channel: ChannelDriver, within: float | None = None) -> Message:
        """The next message; fails if none comes."""
        message = channel.receive(self.arrives_within_seconds if within is None else within)
        assert message is not None, f"nothing came on {channel.subscription.channel}"
        return message

    def expect_bodies(self, channel: ChannelDriver, *bodies: str) -> None:
        """Acknowledge the next messages, which have to be these."""
        for body in bodies:
            message = self.expect(channel)
            assert message.body.decode() == body
            channel.acknowledge(message)

    def expect_nothing(self, *channels: ChannelDriver) -> None:
        """Fail if a message comes on one of these."""
        for channel in channels:
            message = channel.receive(self.silence_seconds)
            assert message is None, f"{message} came on {channel.subscription.channel}"

    def expect_nothing_left(self, driver: TransportDriver, channel: ChannelDriver) -> None:
        """Fail if a message comes, also after closing the channel and opening it again."""
        self.expect_nothing(channel)
        channel.close()
        lapse = self.lease_seconds if driver.capabilities.leases else 0.0
        message = driver.open(channel.subscription).receive(lapse + self.silence_seconds)
        assert message is None, f"{message} was left on {channel.subscription.channel}"

    def fetch_ahead(self, driver: TransportDriver, channel: ChannelDriver) -> None:
        """Settle some messages, so that the channel receives several at a time from now on."""
        for text in ("a", "b", "c", "d"):
            self.send(driver, channel, text)
            self.expect_bodies(channel, text)

    def assert_on_time(self, driver: TransportDriver, began: float, delay: float | None = None) -> None:
        """Fail if what was due after the delay came too early or too late."""
        delay = self.delay_seconds if delay is None else delay
        waited = driver.clock.monotonic() - began
        assert delay - self.early_seconds <= waited <= delay + self.late_seconds, f"it came after {waited:.2f} s"
