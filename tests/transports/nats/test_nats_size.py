"""Thousands of messages leave nothing behind in memory."""

import gc
import threading
import tracemalloc
from contextlib import ExitStack
from typing import Any

import pytest

from brokers.nats import Nats
from pump.clock import ManualClock
from pump.ledger import CAPACITY, LIFETIME, Ledger
from pump.message import Header, Message
from pump.transports.nats import NatsTransport
from support.nats_wire import BOTH, Seen, Wire, explicit, pumping, subscribed
from support.pumps import Kind
from support.waiting import LIMIT, eventually


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
        assert running.channel._intake._released == {}
        assert len(inner._puller.arrived) == 0
        assert len(inner._acknowledged) == 0
        assert len(inner._connection.client._resp_map) == 0


@pytest.mark.requirement("R-42", "E-43")
@pytest.mark.parametrize("messages", [8_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_memory_stays_flat(wire: Wire, transport: NatsTransport, topic: str, messages: int) -> None:
    wire.stream(topic)
    part = messages // 10
    counts = [Count() for _ in BOTH]

    def after(number: int) -> int:
        wire.flood(topic, part)
        eventually(lambda: all(count.runs == number * part for count in counts), 60)
        eventually(lambda: all(wire.settled(topic, f"{topic}-{kind.name}") for kind in BOTH))
        eventually(lambda: len(wire.heard) == len(BOTH) * part)
        wire.heard.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with ExitStack() as pumps:
        for kind, count in zip(BOTH, counts, strict=True):
            rules = subscribed(kind, topic, channel=f"{topic}-{kind.name}", buffer_size=100)
            pumps.enter_context(pumping(transport, kind, count, rules))
        tracemalloc.start()
        used = [after(number) for number in range(1, 11)]
        tracemalloc.stop()

    assert min(used[-3:]) - min(used[:3]) < 200 * 1024, used  # messages under way can only add to it


@pytest.mark.requirement("E-04", "E-40")
@pytest.mark.parametrize("word", ["ack", "nak", "term"])
def test_settling_waits_for_nobody(own_nats_server: Nats, kind: Kind, topic: str, word: str) -> None:
    settled = threading.Event()

    async def settle_async(message: Any) -> None:
        await getattr(message, word)()
        settled.set()

    def body(message: Any) -> object:
        if settled.is_set():
            return message.ack()
        own_nats_server.pause()  # it answers nothing
        if kind.awaits:
            return settle_async(message)
        getattr(message, word)()
        settled.set()
        return None

    transport = NatsTransport(own_nats_server.url)
    pump = pumping(transport, kind, Seen(body), subscribed(kind, topic), takes=explicit(kind))
    with pump, Wire(own_nats_server.url) as wire:
        wire.orders(topic, 1)
        assert settled.wait(LIMIT)
        own_nats_server.unpause()
        eventually(lambda: wire.settled(topic, topic))


@pytest.mark.requirement("R-11")
def test_what_crashed_processes_left_is_remembered_for_a_bounded_time() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)

    for number in range(CAPACITY + 500):
        ledger.count(Message(Header(f"S:{number}"), b"", deliveries=2), 1)
    assert len(ledger) == CAPACITY
    clock.advance(LIFETIME + 1)
    ledger.count(Message(Header("S:last"), b"", deliveries=2), 1)

    assert len(ledger) == 1
