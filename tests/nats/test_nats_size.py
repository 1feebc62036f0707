"""What thousands of messages leave behind: nothing."""

import gc
import statistics
import time
import tracemalloc
from typing import Any

import pytest

from pump.clock import ManualClock
from pump.ledger import CAPACITY, LIFETIME, Ledger
from pump.message import Header, Message
from pump.transports.nats import NatsTransport
from support.nats_wire import Seen, Wire, explicit, pumping, subscribed
from support.pumps import Kind
from support.waiting import eventually


class Count:
    """A body that only counts, and keeps nothing."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, _: object) -> None:
        self.runs += 1


@pytest.mark.requirement("E-43", "R-11")
def test_ten_thousand_messages_leave_nothing_in_any_collection(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    wire.flood(topic, 10_000)
    count = Count()
    with pumping(transport, kind, count, subscribed(kind, topic, buffer_size=100)) as dispatcher:
        eventually(lambda: wire.settled(topic, topic), 60)
        group: Any = dispatcher._groups[topic]
        running = group._performers[0]._running
        consumer = running.channel._consumer
        inner = getattr(consumer, "_consumer", consumer)

        assert count.runs == 10_000
        assert len(group._ledger) == 0
        assert len(running.channel._intake) == 0
        assert running.channel._intake._pinned == {}
        assert len(inner._puller.arrived) == 0
        assert len(inner._acknowledged) == 0
        assert len(inner._link.client._resp_map) == 0


@pytest.mark.requirement("R-42", "E-43")
@pytest.mark.parametrize("messages", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_memory_stays_flat(wire: Wire, transport: NatsTransport, kind: Kind, topic: str, messages: int) -> None:
    wire.stream(topic)
    part = messages // 10
    count = Count()

    def after(number: int) -> int:
        wire.flood(topic, part)
        eventually(lambda: count.runs == number * part and wire.settled(topic, topic), 60)
        wire.heard.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with pumping(transport, kind, count, subscribed(kind, topic, buffer_size=100)):
        tracemalloc.start()
        used = [after(number) for number in range(1, 11)]
        tracemalloc.stop()

    assert used[-1] - used[2] < 256 * 1024, used


@pytest.mark.requirement("E-40")
def test_ninety_nine_of_a_hundred_acks_take_less_than_ten_milliseconds(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    took: list[float] = []

    async def ack_async(message: Any) -> None:
        began = time.perf_counter()
        await message.ack()
        took.append(time.perf_counter() - began)

    def body(message: Any) -> object:
        if kind.awaits:
            return ack_async(message)
        began = time.perf_counter()
        message.ack()
        took.append(time.perf_counter() - began)
        return None

    wire.stream(topic)
    wire.flood(topic, 2000)
    with pumping(transport, kind, Seen(body), subscribed(kind, topic), takes=explicit(kind)):
        eventually(lambda: wire.settled(topic, topic), 60)

    assert len(took) == 2000
    assert statistics.quantiles(took, n=100)[98] < 0.010


@pytest.mark.requirement("R-11")
def test_what_crashed_processes_left_is_remembered_for_a_bounded_time() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)

    for number in range(CAPACITY + 500):
        ledger.spend(Message(Header(f"S:{number}"), b"", deliveries=2), 1)
    assert len(ledger) == CAPACITY
    clock.advance(LIFETIME + 1)
    ledger.spend(Message(Header("S:last"), b"", deliveries=2), 1)

    assert len(ledger) == 1
