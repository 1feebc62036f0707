"""The tools of the contract suite: a transport in one colour, driven as if each of its calls blocked.

The tests are in `pump.testing.contract` and `pump.testing.settlement`.
"""

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast
from uuid import uuid4

import pytest

from pump.clock import Clock, Signal, SystemClock
from pump.colour import Colour
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
from pump.transport_kit.protocol import AsyncConsumer, Consumer, Transport
from pump.verdict import Judge

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

EMPTY_DELAY: Final = 0.02


def _driven(
    method: Callable[Concatenate[Channel, Arguments], Result],
) -> Callable[Concatenate["ChannelDriver", Arguments], Result]:
    """The same method of a channel of either colour."""

    def call(self: "ChannelDriver", /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return cast("Result", self._driver.call(getattr(self._channel, method.__name__), *args, **options))

    return call


class ChannelDriver:
    """A channel of either colour, driven as if its calls blocked."""

    def __init__(self, driver: "TransportDriver", subscription: Subscription, channel: Channel | AsyncChannel) -> None:
        self.subscription: Final = subscription
        self._driver: Final = driver
        self._channel: Final = channel

    def receive(self, within: float, *, in_spite_of_errors: bool = False) -> Message | None:
        """The next message that comes in time, or None. With `in_spite_of_errors`, the connection may break."""
        clock = self._driver.clock
        deadline = clock.monotonic() + within
        while True:
            left = deadline - clock.monotonic()
            failed = False
            try:
                message = self.receive_once(max(left, 0.0))
            except TransportError:
                if left <= 0 or not in_spite_of_errors:
                    raise
                message, failed = None, True
            if message is not None or left <= 0:
                return message
            if failed or not self._driver.capabilities.waits:  # the pump also waits before it tries again
                clock.wait(Signal(), min(left, EMPTY_DELAY))

    receive_once = _driven(Channel.receive)
    """The message of one receive; the receive may end early with None."""
    acknowledge = _driven(Channel.acknowledge)
    nack = _driven(Channel.nack)
    reject = _driven(Channel.reject)
    extend = _driven(Channel.extend)
    purge = _driven(Channel.purge)
    pause = _driven(Channel.pause)
    resume = _driven(Channel.resume)
    stop = _driven(Channel.stop)
    close = _driven(Channel.close)

    def requeue(self, message: Message, delay: float = 0.0, attempts: int = 1) -> None:
        """As Channel's `requeue`."""
        self._driver.call(self._channel.requeue, message, delay, attempts)


class ConsumerDriver:
    """A transport's consumer of either colour, driven as if its calls blocked."""

    def __init__(self, driver: "TransportDriver", consumer: Consumer | AsyncConsumer) -> None:
        self._driver: Final = driver
        self._consumer: Final[Any] = consumer  # a union of both has no call that mypy understands
        self._closed = False

    def receive(self, limit: int, within: float) -> Sequence[Message]:
        """The first messages that come in time, up to `limit`; none if none comes."""
        clock = self._driver.clock
        deadline = clock.monotonic() + within
        while True:
            left = max(0.0, deadline - clock.monotonic())
            messages: Sequence[Message] = self._driver.call(self._consumer.receive, limit, left)
            if messages or left <= 0:
                return messages
            clock.wait(Signal(), min(left, EMPTY_DELAY))

    def acknowledge(self, message: Message) -> None:
        """As Consumer's."""
        self._driver.call(self._consumer.acknowledge, message)

    def hand_back(self, *messages: Message) -> None:
        """As Consumer's."""
        self._driver.call(self._consumer.hand_back, messages)

    def close(self) -> None:
        """As Consumer's; once."""
        if not self._closed:
            self._closed = True
            self._driver.call(self._consumer.close)


class TransportDriver:
    """A transport under test in one colour; through a bridge if that is not its own colour."""

    def __init__(self, transport: Transport, colour: Colour, clock: Clock) -> None:
        self.transport: Final = transport
        self.capabilities: Final = transport.capabilities
        self.clock: Final = clock
        self._real_clock: Final = SystemClock()
        self._loop: LoopThread | None = None
        self._prepare: Callable[..., Any]
        self._make_consumer: Callable[..., Any]
        self._make_producer: Callable[[], Any]
        self._make_channel: type[Channel | AsyncChannel]
        if colour == "blocking":
            one = blocking(transport)
            self._prepare, self._make_consumer, self._make_producer = one.prepare, one.consumer, one.producer
            self._make_channel = Channel
        else:
            two = awaiting(transport)
            self._loop = LoopThread("contract")
            self._prepare, self._make_consumer = two.async_prepare, two.async_consumer
            self._make_producer, self._make_channel = two.async_producer, AsyncChannel
        self._channels: Final[list[ChannelDriver]] = []
        self._consumers: Final[list[ConsumerDriver]] = []
        self._producer: Any = None

    def call(
        self,
        function: Callable[Arguments, Result | Coroutine[Any, Any, Result]],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call the function and return its result, awaited on the driver's loop if necessary."""
        result = function(*args, **options)
        if self._loop is not None and inspect.iscoroutine(result):
            result = self._loop.run(result)
        return cast("Result", result)

    def prepare(self, *subscriptions: Subscription, publications: tuple[Publication, ...] = ()) -> None:
        """As the transport's `prepare`."""
        self.call(self._prepare, subscriptions, publications)

    def open(self, subscription: Subscription) -> ChannelDriver:
        """A channel like that of a pump, with a ledger of its own; closed with the driver."""
        log = PumpLog(subscription.channel, Telemetry())
        judge = Judge(subscription, Ledger(self.clock), self.clock, log)
        channel = self._make_channel(partial(self._make_consumer, subscription), self.capabilities, judge)
        self._channels.append(ChannelDriver(self, subscription, channel))
        return self._channels[-1]

    def consumer(self, subscription: Subscription) -> "ConsumerDriver":
        """A consumer without a channel around it; closed with the driver."""
        consumer = ConsumerDriver(self, self.call(self._make_consumer, subscription))
        self._consumers.append(consumer)
        return consumer

    def send(self, *messages: Message, delay: float = 0.0) -> None:
        """Send all of them at once; they are confirmed when this returns."""
        if self._producer is None:
            self._producer = self.call(self._make_producer)
        self.call(self._producer.send, messages, delay)

    def begin(self, call: Callable[[], Result]) -> "Future[Result]":
        """Begin a call that may take long, in a thread of its own, and give it a moment of real time to start."""
        future: Future[Result] = Future()
        ended = Signal()
        future.add_done_callback(lambda _: ended.set())

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # the test gets it
                future.set_exception(error)

        threading.Thread(target=run, name="contract", daemon=True).start()
        self._real_clock.wait(ended, 0.2)
        return future

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
            for consumer in self._consumers:
                stack.callback(consumer.close)


class Sample(Command):
    """The request of the contract's messages."""


class ContractBase:
    """The settings that a transport's author may change, and the tools of the tests. Defaults suit slow brokers."""

    arrives_within_seconds: float = 10.0
    """How long it may take until a message arrives after it was sent, given back, or its lease ended."""
    silence_seconds: float = 0.3
    """How long the contract waits before it concludes that no message comes."""
    released_within_seconds: float = 0.1
    """How long it may take until another consumer has a nacked message, where nack releases."""
    delay_seconds: float = 1.0
    """The delay of deferred messages."""
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
    ordered: bool = False
    """Whether the channels keep order. Inherit once more from your test class, with True, to test that too."""

    @pytest.fixture
    def transport(self) -> Transport:
        """The transport under test, on a broker where new names are free."""
        raise NotImplementedError("a TransportContract needs the fixture `transport`")

    @pytest.fixture
    def clock(self) -> Clock:
        """The transport's clock."""
        return SystemClock()

    def skip_if(self, condition: bool, why: str) -> None:  # noqa: FBT001 - it reads as it should
        """Skip a test of what the transport does not promise."""
        if condition:
            pytest.skip(why)

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

    def in_another_process(self, transport: Transport) -> str:
        """Python code that sets `transport`, in another process, to one like this on the same broker."""
        pytest.skip("the contract was not told how another process reaches the broker")

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
        """A subscription with a channel of its own; by default the topic has the channel's name. Leases are short."""
        name, lease = self.unique_name(), self.lease_seconds
        return Subscription(
            Sample, topic=topic or name, channel=name, dead_letter=f"{name}-dead", lease=lease, ordered=self.ordered
        )

    def requeue(self, driver: TransportDriver) -> str:
        """How a message comes again later; in an ordered channel it is always held."""
        return "hold" if self.ordered else driver.capabilities.requeue

    def open(self, driver: TransportDriver, subscription: Subscription | None = None) -> ChannelDriver:
        """A channel that is prepared for receiving and posting."""
        subscription = subscription or self.subscription()
        driver.prepare(subscription, publications=(Publication(Sample, topic=subscription.topic),))
        return driver.open(subscription)

    def open_with(self, driver: TransportDriver, *bodies: str) -> ChannelDriver:
        """A channel to whose topic these messages were sent."""
        channel = self.open(driver)
        self.send(driver, channel, *bodies)
        return channel

    def open_both(self, driver: TransportDriver, *bodies: str) -> tuple[ChannelDriver, ChannelDriver]:
        """A channel to whose topic these messages were sent, and its dead letters."""
        channel = self.open(driver)
        dead_letters = self.open_dead_letters(driver, channel)
        if bodies:
            self.send(driver, channel, *bodies)
        return channel, dead_letters

    def open_dead_letters(self, driver: TransportDriver, channel: ChannelDriver) -> ChannelDriver:
        """The dead letters of a channel. Open it before there are any."""
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

    def expect_on_either(
        self, driver: TransportDriver, first: ChannelDriver, second: ChannelDriver
    ) -> tuple[Message, ChannelDriver, ChannelDriver]:
        """The next message of a channel that has two consumers, the one that has it, and the other one."""
        deadline = driver.clock.monotonic() + self.arrives_within_seconds
        for holder, other in cycle(((first, second), (second, first))):
            message = holder.receive(self.silence_seconds / 10)
            if message is not None:
                return message, holder, other
            assert driver.clock.monotonic() < deadline, f"nothing came on {first.subscription.channel}"
        raise AssertionError  # a cycle never ends

    def expect_bodies(self, channel: ChannelDriver, *bodies: str) -> None:
        """Acknowledge the next messages; fails if they are not these."""
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
        """Fail if a message that was due after the delay came too early or too late."""
        delay = self.delay_seconds if delay is None else delay
        waited = driver.clock.monotonic() - began
        assert delay - self.early_seconds <= waited <= delay + self.late_seconds, f"it came after {waited:.2f} s"
