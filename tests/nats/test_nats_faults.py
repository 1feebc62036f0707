"""Whatever breaks, the pump goes on: single calls that fail, servers that die, networks that are cut."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.nats import Nats
from brokers.proxy import Proxy
from pump.bridge import blocking
from pump.context import current_context
from pump.dispatcher import Dispatcher
from pump.errors import PublishError
from pump.subscription import Publication
from pump.transports.nats import NatsTransport
from support.nats_faults import DELAY, MODES, POINTS, Faults
from support.nats_wire import Seen, Wire, pumping, subscribed
from support.pumps import PROACTOR, Kind, Order, result_of
from support.waiting import eventually

TROUBLES: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "reset": Proxy.reset,
    "stall": Proxy.stall,
    "half": lambda proxy: proxy.stall("to_client"),
}
SOON = 5.0
"""After how long everything goes on, in seconds."""


@pytest.mark.requirement("R-39", "B-23")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
def test_a_pump_survives_any_call_that_fails_and_goes_on_soon(
    wire: Wire, nats_server: Nats, kind: Kind, topic: str, point: str, mode: str
) -> None:
    faults = Faults()
    out = f"{topic}-out"
    failed: list[int] = []

    async def work(order: Order) -> None:
        if point == "nak" and order.number not in failed:
            failed.append(order.number)
            raise ValueError("once")
        processor: Any = current_context().processor
        await result_of(processor.post_async(order) if kind.awaits else processor.post(order))

    def body(order: Order) -> object:
        if kind.awaits:
            return work(order)
        with pytest.raises(StopIteration):
            work(order).send(None)
        return None

    transport = NatsTransport(nats_server.url, client=faults.client(), publish_timeout=DELAY)
    dispatcher = Dispatcher(
        transport,
        handlers=[kind.handler(body)],
        subscriptions=[subscribed(kind, topic, lease=1.5, failure_backoff=(0.2, 1))],
        publications=[Publication(Order, topic=out)],
    )
    with dispatcher:
        wire.orders(topic, 1)
        eventually(lambda: wire.count(out) >= 1)
        faults.arm(point, mode)
        if point in {"connect", "subscribe"}:
            _reopen(dispatcher, topic)
        began = time.monotonic()
        wire.orders(topic, 2, 3)
        eventually(lambda: faults.done, SOON)
        eventually(lambda: _numbers(wire, out) >= {1, 2, 3} and wire.settled(topic, topic), SOON)
        assert time.monotonic() - began < SOON
        assert dispatcher.ready

    assert faults.done == [(point, mode)]
    assert wire.count(f"{topic}%2Edlq") == 0


def _reopen(dispatcher: Dispatcher, topic: str) -> None:
    """Have the performer open its consumer anew."""
    dispatcher.restart(topic)


def _numbers(wire: Wire, stream: str) -> set[int]:
    found = (wire.stored(stream, each + 1).data for each in range(wire.count(stream)))
    return {int((data or b"0").rpartition(b":")[2].strip(b" }")) for data in found}


@pytest.mark.requirement("R-15", "P-12", "R-39")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_nothing_is_lost_when_the_server_is_restarted_or_killed_under_load(
    own_nats_server: Nats, kind: Kind, topic: str, how: str
) -> None:
    seen = Seen(_slowly(kind, 0.001))
    confirmed: list[int] = []
    stop = threading.Event()
    transport = NatsTransport(own_nats_server.url)
    rules = subscribed(kind, topic, lease=3)
    with pumping(transport, kind, seen, rules) as dispatcher:
        posting = threading.Thread(target=_post, args=(dispatcher, confirmed, stop))
        posting.start()
        for _ in range(2):
            _grows(confirmed)
            if how == "restart":
                own_nats_server.restart()
            else:
                own_nats_server.kill()
                own_nats_server.start()
        _grows(confirmed)
        stop.set()
        posting.join()
        with Wire(own_nats_server.url) as wire:
            eventually(lambda: wire.settled(topic, topic), 30)
            assert wire.count(f"{topic}%2Edlq") == 0

    assert set(confirmed) <= {order.number for order in seen.requests}


def _grows(confirmed: list[int]) -> None:
    before = len(confirmed)
    eventually(lambda: len(confirmed) > before + 100, 30)


def _post(dispatcher: Dispatcher, confirmed: list[int], stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        try:
            dispatcher.post(Order(number))
        except PublishError:
            time.sleep(0.05)
        else:
            confirmed.append(number)


def _slowly(kind: Kind, duration: float) -> Any:
    return (lambda _: asyncio.sleep(duration)) if kind.awaits else (lambda _: time.sleep(duration))


@pytest.mark.requirement("P-12")
@pytest.mark.parametrize("down", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_a_pump_goes_on_soon_after_the_server_is_back(
    own_nats_server: Nats, kind: Kind, topic: str, down: float
) -> None:
    seen = Seen()
    with Wire(own_nats_server.url) as wire:
        wire.stream(topic)
    with pumping(NatsTransport(own_nats_server.url), kind, seen, subscribed(kind, topic)) as dispatcher:
        with Wire(own_nats_server.url) as wire:
            wire.orders(topic, 1)
        seen.wait(1)
        own_nats_server.stop()
        time.sleep(down)
        own_nats_server.start()
        began = time.monotonic()
        with Wire(own_nats_server.url) as wire:
            wire.orders(topic, 2)
        seen.wait(2)

        assert time.monotonic() - began < SOON
        assert dispatcher.ready


@pytest.mark.requirement("P-12", "R-39")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_pump_goes_on_soon_after_the_network_is_back(
    own_nats_server: Nats, proxy_to: ProxyTo, kind: Kind, topic: str, trouble: str
) -> None:
    proxy = proxy_to(own_nats_server.port)
    seen = Seen()
    transport = NatsTransport(proxy.url(own_nats_server.url))
    with Wire(own_nats_server.url) as wire, pumping(transport, kind, seen, subscribed(kind, topic, lease=2)):
        wire.orders(topic, 1)
        seen.wait(1)
        TROUBLES[trouble](proxy)
        wire.orders(topic, 2, 3)
        time.sleep(4)
        proxy.heal()
        began = time.monotonic()
        eventually(lambda: {order.number for order in seen.requests} == {1, 2, 3}, SOON)
        eventually(lambda: wire.settled(topic, topic), SOON)

        assert time.monotonic() - began < SOON


@pytest.mark.requirement("R-15")
def test_what_is_in_hand_when_the_connection_breaks_is_settled_on_the_next_one(
    own_nats_server: Nats, proxy_to: ProxyTo, kind: Kind, topic: str
) -> None:
    proxy = proxy_to(own_nats_server.port)
    transport = NatsTransport(proxy.url(own_nats_server.url))
    seen = Seen(_slowly(kind, 0.5))
    with Wire(own_nats_server.url) as wire, pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, 1)
        seen.wait(1)
        proxy.reset()
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 1


@pytest.mark.requirement("R-06", "P-03")
def test_a_handler_of_five_leases_runs_once(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    seen = Seen(_slowly(kind, 2.5))
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=0.5)):
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 1
    assert wire.consumer(topic, topic).num_redelivered == 0


@pytest.mark.requirement("P-03")
def test_a_handler_whose_lease_is_lost_is_ended_and_its_late_ack_is_not_sent(
    own_nats_server: Nats, proxy_to: ProxyTo, topic: str
) -> None:
    proxy = proxy_to(own_nats_server.port)
    ended: list[BaseException] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    seen = Seen(lambda _: work())
    transport = NatsTransport(proxy.url(own_nats_server.url))
    with Wire(own_nats_server.url) as wire, pumping(transport, PROACTOR, seen, subscribed(PROACTOR, topic, lease=1)):
        wire.orders(topic, 1)
        seen.wait(1)
        proxy.stall()
        eventually(lambda: ended)
        proxy.heal()
        seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert len(ended) == 1


@pytest.mark.parametrize("kind_of_wait", ["receive", "outage"])
def test_an_interrupt_ends_a_receive_at_once_and_loses_nothing(
    own_nats_server: Nats, topic: str, kind_of_wait: str
) -> None:
    transport = NatsTransport(own_nats_server.url)
    rules = subscribed(PROACTOR, topic)
    blocking(transport).prepare([rules], [])
    consumer = blocking(transport).consumer(rules)
    times: list[float] = []

    def receive() -> None:
        consumer.receive(5, 30)
        times.append(time.monotonic())

    if kind_of_wait == "outage":
        own_nats_server.stop()
    waiting = threading.Thread(target=receive)
    waiting.start()
    time.sleep(0.3)
    interrupted = time.monotonic()
    consumer.interrupt()
    waiting.join(5)

    assert times
    assert times[0] - interrupted < 0.05
    if kind_of_wait == "outage":
        own_nats_server.start()
    with Wire(own_nats_server.url) as wire:
        wire.orders(topic, 1)
        received = list(consumer.receive(5, 10))
        while not received:
            received += consumer.receive(5, 1)
        assert [each.body for each in received] == [b'{"number": 1}']
        consumer.acknowledge(received[0])
        consumer.close()
        assert wire.settled(topic, topic)


def test_what_comes_after_an_interrupt_goes_back_if_nobody_asks_for_it(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    rules = subscribed(PROACTOR, topic)
    blocking(transport).prepare([rules], [])
    first, second = (blocking(transport).consumer(rules) for _ in range(2))
    waiting = threading.Thread(target=first.receive, args=(5, 30))
    waiting.start()
    time.sleep(0.2)
    first.interrupt()
    waiting.join()

    wire.orders(topic, 1)
    received = second.receive(5, 5)

    assert [each.body for each in received] == [b'{"number": 1}']
    second.acknowledge(received[0])
    first.close()
    second.close()
    assert wire.settled(topic, topic)


@pytest.mark.requirement("P-11")
def test_a_stop_under_load_ends_soon_and_loses_nothing(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    wire.flood(topic, 3000)
    seen = Seen(_slowly(kind, 0.0005))
    with pumping(transport, kind, seen, subscribed(kind, topic, grace=1, buffer_size=50)):
        seen.wait(200)
        began = time.monotonic()
    took = time.monotonic() - began

    rest = Seen()
    with pumping(transport, kind, rest, subscribed(kind, topic)):
        eventually(lambda: wire.settled(topic, topic), 30)

    assert took < 3
    numbers = [order.number for each in (seen, rest) for order in each.requests]
    assert set(numbers) == set(range(3000))
    assert len(numbers) == 3000
