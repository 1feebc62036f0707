"""The pump that handles several messages at a time: a task that ends by itself ends no slot and no pump."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pump.clock import ManualClock, SystemClock
from pump.handling.delivery import AsyncDelivery
from pump.ledger import Ledger
from pump.message import Message
from pump.program.performer import ProactorPerformer
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.concurrent_proactor import ConcurrentProactor
from pump.telemetry import Telemetry
from pump.verdict import Judge
from support.channels import AsyncScriptedConsumer, Script, capabilities
from support.court import rules
from support.pumps import CONCURRENT, PROACTOR, Broker, Kind, Order, consuming, consuming_by
from support.waiting import LIMIT, eventually


class Line:
    """A pump with several slots over a scripted consumer, which the test stops."""

    def __init__(self, dispatch: Callable[[Message], Awaitable[object]], **options: Any) -> None:
        self.clock = ManualClock(automatic=True)
        self.script = Script(self.clock)
        self.rules = rules(in_flight=2)
        log = PumpLog("samples", Telemetry())
        self.judge = Judge(self.rules, Ledger(self.clock), self.clock, log, chance=lambda: 0.0)
        self.channel = AsyncChannel(self._open, capabilities(), self.judge)
        self.pump = ConcurrentProactor(self.channel, dispatch, **options)

    async def _open(self) -> AsyncScriptedConsumer:
        return AsyncScriptedConsumer(self.script.open())

    def run(self, seconds: float = 20.0) -> None:
        self.clock.alarm(seconds, self.judge.stop)
        asyncio.run(asyncio.wait_for(self.pump.run(), LIMIT))


async def returns(_: Message) -> None:
    await asyncio.sleep(0)


def test_it_waits_between_empty_receives_where_the_transport_does_not() -> None:
    line = Line(returns, empty_delay=0.5)

    line.run(20.0)

    assert line.clock.waits.count(0.5) == pytest.approx(len(line.script.done("receive")), abs=1)
    assert len(line.script.done("receive")) < 45


def test_it_does_not_wait_while_messages_come() -> None:
    line = Line(returns, empty_delay=0.5)
    line.script.put(*"123456")

    line.run(5.0)

    acknowledged = [call for call in line.script.calls if call.startswith(("acknowledge", "receive"))]
    assert acknowledged.index("acknowledge 6") < 14


@pytest.mark.parametrize("lease", [None, 30.0])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
def test_a_turn_that_dies_frees_its_slot_and_its_message_comes_again(
    lease: float | None, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(returns)
    line.script.put("1", "2", "3", lease=lease)
    line.script.fail("acknowledge", error, error)

    line.run()

    assert line.script.done("acknowledge")[-1] == "acknowledge 3"
    assert line.channel.in_hand == ()
    assert caplog.text.count("ended unexpectedly; the message comes again") == 2
    assert (len(line.script.consumers) > 1) is (lease is None)


class Batches:
    """A handler that settles what it collects when there are enough."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[AsyncDelivery[Order]] = []
        self.batches = 0

    async def handle(self, delivery: AsyncDelivery[Order]) -> None:
        self.kept.append(delivery)
        if len(self.kept) == self.size:
            batch, self.kept = self.kept, []
            self.batches += 1
            for each in batch:
                await each.ack()


def test_a_handler_may_collect_as_many_messages_as_may_be_in_hand() -> None:
    batches, broker = Batches(20), Broker()
    with consuming_by(PROACTOR, batches.handle, broker, in_flight=20, buffer_size=1) as dispatcher:
        dispatcher.post_many([Order(number) for number in range(60)])
        eventually(lambda: batches.batches == 3)

    assert broker.bus.pending("orders") == 0


def test_a_handler_may_collect_messages_that_come_again_after_a_crash() -> None:
    """A handler that has returned did not kill the process, however often the process died."""
    batches, broker = Batches(20), Broker()
    with consuming_by(PROACTOR, batches.handle, broker, in_flight=20).publishing() as dispatcher:
        dispatcher.post_many([Order(number) for number in range(20)])
    for _ in range(4):
        died = broker.consumer(dispatcher.subscriptions[0])
        assert len(died.receive(20, 0.0)) == 20
        died.close()

    with consuming_by(PROACTOR, batches.handle, broker, in_flight=20):
        eventually(lambda: batches.batches == 1)

    assert broker.bus.pending("orders") == 0


def test_every_slot_is_filled_from_the_start_though_no_handler_ends() -> None:
    begun: list[int] = []

    def body(order: Order) -> object:
        begun.append(order.number)
        return asyncio.sleep(3600)

    with consuming(PROACTOR, body, Broker(), in_flight=50, grace=0) as dispatcher:
        dispatcher.post_many([Order(number) for number in range(100)])
        eventually(lambda: len(begun) >= 50)

    assert begun == list(range(50))


@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
@pytest.mark.parametrize("bridged", [False, True], ids=["native", "bridged"])
def test_a_handler_that_blocks_its_loop_for_longer_than_the_lease_keeps_its_message(
    kind: Kind, *, bridged: bool
) -> None:
    runs: list[int] = []

    def body(order: Order) -> None:
        runs.append(order.number)
        time.sleep(0.5)  # longer than the lease, and than any wait for a condition could show

    broker = Broker()
    transport: Any = OnlyBlocking(broker) if bridged else broker
    with consuming_by(kind, kind.handler(body), transport, lease=0.3) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: "acknowledge" in broker.named("acknowledge"))

    assert runs == [1]
    assert broker.bus.pending("orders") == 0
    assert broker.named("extend")


@pytest.mark.parametrize("kind", [PROACTOR, CONCURRENT], ids=["proactor", "concurrent"])
def test_where_leases_are_renewed_on_the_loop_a_handler_that_blocks_it_is_told_of_and_ends_at_its_budget(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    def body(order: Order) -> None:
        runs.append(order.number)
        time.sleep(0.5)

    broker = Broker()
    broker.renews_on_the_loop = True
    with consuming_by(kind, kind.handler(body), broker, lease=0.3, max_attempts=2) as dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: broker.bus.messages("orders.dead"))

    assert len(runs) == 2
    (letter,) = broker.bus.messages("orders.dead")
    assert (letter.header.headers["pump-reason"], letter.header.headers["pump-attempts"]) == ("attempts exhausted", "2")
    told = [each.getMessage() for each in caplog.records if "The event loop was blocked for 0." in each.getMessage()]
    assert len(told) == 2
    assert all("handle_async" in each for each in told)


class OnlyBlocking:
    """A broker as a client library without asyncio would reach it."""

    def __init__(self, broker: Broker) -> None:
        self.capabilities = broker.capabilities
        self.prepare, self.consumer, self.producer = broker.prepare, broker.consumer, broker.producer

    @classmethod
    def from_url(cls, url: str) -> "OnlyBlocking":
        raise NotImplementedError(url)


class Pump:
    """A pump that is run several times; the test says how each run ends."""

    def __init__(self, *lives: BaseException | None) -> None:
        line = Line(returns)
        self.judge, self.channel = line.judge, line.channel
        self.lives = list(lives)
        self.begun = 0

    async def run(self) -> None:
        self.begun += 1
        await asyncio.sleep(0)
        error = self.lives.pop(0)
        if error is not None:
            raise error


def supervised(pump: Any) -> ProactorPerformer:
    clock = ManualClock(automatic=True)
    log = PumpLog("samples", Telemetry())
    return ProactorPerformer("pump-1", rules(), lambda: pump, clock, log, lambda: None, asyncio.get_running_loop())


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("odd"), GeneratorExit()])
def test_a_pump_that_dies_of_somebody_elses_cancellation_is_begun_again(error: BaseException) -> None:
    async def scenario() -> tuple[int, int]:
        pump = Pump(error, error, None)
        performer = supervised(pump)
        performer.start()
        await SystemClock().wait_async(performer.finished, LIMIT)
        return pump.begun, performer.state.restarts

    assert asyncio.run(asyncio.wait_for(scenario(), LIMIT)) == (3, 2)


def test_a_pump_whose_own_task_is_cancelled_ends() -> None:
    async def scenario() -> int:
        pump = Pump(asyncio.CancelledError(), None)
        performer = supervised(pump)
        performer.start()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert performer._task is not None
        performer._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await performer._task
        return pump.begun

    assert asyncio.run(asyncio.wait_for(scenario(), LIMIT)) == 1
