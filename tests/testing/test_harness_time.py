"""The harness's time, and the plugin's fixtures."""

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from pump.clock import ManualClock, Signal
from pump.errors import HandlerTimeout, PumpError
from pump.handlers import Timeout
from pump.handling.delivery import Delivery
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from pump.testing import PumpHarness, SelfMovingClock, memory_transport
from support.pumps import PROACTOR, Order, Outcomes, numbers
from support.waiting import LIMIT


def test_a_blocking_wait_moves_the_time() -> None:
    clock = SelfMovingClock()

    woken = clock.wait(Signal(), 60)

    assert not woken
    assert clock.monotonic() == 1_000_060


def test_what_comes_due_on_the_way_happens_at_its_time_and_may_end_the_wait() -> None:
    clock, signal, rung = SelfMovingClock(), Signal(), []
    clock.alarm(10, lambda: rung.append(clock.monotonic()))
    clock.alarm(20, signal.set)
    clock.alarm(30, lambda: rung.append(clock.monotonic()))

    woken = clock.wait(signal, 60)

    assert woken
    assert clock.monotonic() == 1_000_020
    assert rung == [1_000_010]


def test_a_wait_for_something_that_is_there_moves_nothing() -> None:
    clock, signal = SelfMovingClock(), Signal()
    signal.set()

    assert clock.wait(signal, 60)
    assert clock.monotonic() == 1_000_000


def test_sleeping_async_handlers_take_no_real_time(benches: ExitStack) -> None:
    async def handle(_: Order) -> None:
        await asyncio.sleep(3600)

    harness = benches.enter_context(PumpHarness(handle))
    harness.post(Order(1))
    began = harness.clock.monotonic()

    harness.run()

    assert harness.clock.monotonic() - began == pytest.approx(3600, abs=1)
    assert numbers(harness.acknowledged) == [1]


def test_a_timeout_ends_an_async_handler_at_its_time(benches: ExitStack) -> None:
    @Timeout(5)
    async def handle(_: Order) -> None:
        await asyncio.Event().wait()

    harness = benches.enter_context(PumpHarness(handle))
    began = harness.clock.monotonic()

    with pytest.raises(HandlerTimeout):
        harness.handle(Order(1))

    assert harness.clock.monotonic() - began == pytest.approx(5, abs=0.01)


def test_a_handler_that_waits_for_a_thread_is_waited_for(benches: ExitStack) -> None:
    gate = threading.Event()

    async def handle(_: Order) -> None:
        await asyncio.to_thread(gate.wait, LIMIT)

    harness = benches.enter_context(PumpHarness(handle, in_flight=2))
    threading.Timer(0.02, gate.set).start()
    harness.post(Order(1))

    harness.run()

    assert numbers(harness.acknowledged) == [1]
    assert harness.calls == ["acknowledge"]


def test_a_handler_that_waits_for_nothing_is_an_error_and_no_hang(benches: ExitStack) -> None:
    if threading.active_count() > 1:
        pytest.skip("a thread might bring it about")

    async def handle(_: Order) -> None:
        await asyncio.Event().wait()

    harness = benches.enter_context(PumpHarness(handle))

    with pytest.raises(PumpError, match="waits for something that nothing here can bring about"):
        harness.handle(Order(1))


def test_several_in_flight_share_the_time(benches: ExitStack) -> None:
    async def handle(_: Order) -> None:
        await asyncio.sleep(10)

    harness = benches.enter_context(PumpHarness(handle, in_flight=4))
    for number in range(12):
        harness.post(Order(number))
    began = harness.clock.monotonic()

    harness.run()

    assert len(harness.acknowledged) == 12
    assert harness.clock.monotonic() - began <= 60


# -- fixtures


def test_a_manual_clock_stands_still(manual_clock: ManualClock) -> None:
    before = manual_clock.monotonic()
    manual_clock.advance(5)

    assert manual_clock.monotonic() - before == 5


def test_a_memory_transport_goes_by_the_manual_clock_where_both_are_asked_for(
    memory_transport: Any, manual_clock: ManualClock
) -> None:
    assert memory_transport.bus.clock is manual_clock


def test_else_it_goes_by_real_time(memory_transport: Any) -> None:
    body = Outcomes(None)
    assert not isinstance(memory_transport.bus.clock, ManualClock)
    with Dispatcher(
        memory_transport,
        handlers=[PROACTOR.handler(body)],
        subscriptions=[Subscription(Order)],
        publications=[Publication(Order)],
    ) as dispatcher:
        dispatcher.post(Order())


def test_each_memory_transport_has_a_bus_of_its_own() -> None:
    first: Any = memory_transport()
    second: Any = memory_transport()

    assert first.bus is not second.bus


def test_a_harness_of_the_fixture_is_closed_after_the_test(pytester_like: list[PumpHarness]) -> None:
    assert pytester_like[0].bus.locked("Order") == 1


@pytest.fixture
def pytester_like(pump_harness: type[PumpHarness]) -> list[PumpHarness]:
    def keep(_: Delivery[Order]) -> None:
        """Settles nothing."""

    harness = pump_harness(keep)
    harness.post(Order(1))
    harness.step()
    return [harness]
