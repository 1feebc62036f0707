"""The pump goes on after every fault: single calls that fail, servers that die, networks that are cut."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.nats import Nats
from brokers.proxy import Proxy
from pump.context import current_context
from pump.errors import PublishError, TransportError
from pump.message import Message
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsTransport
from pump.transports.nats.client import PumpClient
from pump.transports.nats.connection import NatsConnection, ServerAddress
from support.nats_faults import DELAY, MODES, POINTS, Faults
from support.nats_wire import BOTH, Seen, Wire, in_each_pump, name, pumping, subscribed
from support.pumps import PROACTOR, Kind, Order, result_of
from support.waiting import LIMIT, eventually, eventually_async

TROUBLES: dict[str, Callable[[Proxy], None]] = {
    "cut": Proxy.cut,
    "reset": Proxy.reset,
    "stall": Proxy.stall,
    "half": lambda proxy: proxy.stall("to_client"),
}
SOON = 5.0
"""The time after which everything goes on, in seconds."""
NOTICED = 15.0
"""The time after which a connection that is dead or half open is noticed, by default, in seconds."""


@pytest.mark.requirement("R-39", "B-23")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
@in_each_pump
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
        subscriptions=[
            # Short waits of the program's own: what the test measures is that nothing else waits.
            subscribed(kind, topic, lease=1.0, failure_backoff=(0.2, 1), requeue_backoff=(0.1, 1))
        ],
        publications=[Publication(Order, topic=out)],
    )
    with dispatcher:
        wire.orders(topic, 1)
        eventually(lambda: wire.count(out) >= 1)
        faults.arm(point, mode)
        if point in {"connect", "subscribe"}:
            dispatcher.restart(topic)  # a new consumer is opened
        wire.orders(topic, 2, 3)
        eventually(lambda: faults.done)
        eventually(lambda: wire.numbers(out) >= {1, 2, 3} and wire.settled(topic, topic), SOON)
        assert dispatcher.ready

    assert faults.done == [(point, mode)]
    assert wire.count(f"{topic}=2Edlq") == 0


@pytest.mark.requirement("R-15", "P-12", "R-39")
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_nothing_is_lost_when_the_server_is_restarted_or_killed_under_load(own_nats_server: Nats, how: str) -> None:
    transport = NatsTransport(own_nats_server.url)
    stop = threading.Event()
    loads = {name(): (Seen(_slowly(kind, 0.001)), kind, list[int]()) for kind in BOTH}
    with ExitStack() as ends:
        for topic, (seen, kind, confirmed) in loads.items():
            pump = ends.enter_context(pumping(transport, kind, seen, subscribed(kind, topic, lease=3)))
            posting = threading.Thread(target=_post, args=(pump, confirmed, stop))
            posting.start()
            ends.callback(posting.join)
        ends.callback(stop.set)
        for _ in range(2):
            _go_on(*(confirmed for *_, confirmed in loads.values()))
            if how == "restart":
                own_nats_server.restart()
            else:
                own_nats_server.kill()
                own_nats_server.start()
        _go_on(*(confirmed for *_, confirmed in loads.values()))
        stop.set()
        with Wire(own_nats_server.url) as wire:
            for topic in loads:
                eventually(lambda topic=topic: wire.settled(topic, topic), 30)  # type: ignore[misc]
                assert wire.count(f"{topic}=2Edlq") == 0

    for seen, _, confirmed in loads.values():
        assert set(confirmed) <= {order.number for order in seen.requests}


def _go_on(*confirmed: list[int]) -> None:
    before = [len(each) for each in confirmed]
    eventually(lambda: all(len(each) > count + 100 for each, count in zip(confirmed, before, strict=True)), 30)


def _post(dispatcher: Dispatcher, confirmed: list[int], stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        try:
            dispatcher.post(Order(number))
        except PublishError:
            stop.wait(0.05)
        else:
            confirmed.append(number)


def _slowly(kind: Kind, duration: float) -> Any:
    return (lambda _: asyncio.sleep(duration)) if kind.awaits else (lambda _: time.sleep(duration))


@pytest.mark.requirement("P-12")
@pytest.mark.parametrize("down", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_a_pump_goes_on_soon_after_the_server_is_back(own_nats_server: Nats, down: float) -> None:
    loads = {name(): (Seen(), kind) for kind in BOTH}
    dispatchers = []
    with ExitStack() as pumps:
        for topic, (seen, kind) in loads.items():
            rules = subscribed(kind, topic)
            dispatchers.append(pumps.enter_context(pumping(NatsTransport(own_nats_server.url), kind, seen, rules)))
            with Wire(own_nats_server.url) as wire:
                wire.orders(topic, 1)
            seen.wait(1)
        own_nats_server.stop()
        time.sleep(down)
        own_nats_server.start()
        with Wire(own_nats_server.url) as wire:
            for topic in loads:
                wire.orders(topic, 2)
        for seen, _ in loads.values():
            seen.wait(2, SOON)

        assert all(each.ready for each in dispatchers)


class Held(PumpClient):
    """A client that stays at the end of its reconnect until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def flush(self, timeout: int = 10) -> None:
        await super().flush(timeout)
        if self.stats["reconnects"]:
            await self.let_go.wait()


def test_nothing_is_asked_for_before_the_reconnect_has_ended(own_nats_server: Nats) -> None:
    async def lives() -> tuple[bool, bool]:
        connection = await NatsConnection.open(ServerAddress(servers=[own_nats_server.url], client=Held), "test")
        client: Any = connection.client
        try:
            await asyncio.to_thread(own_nats_server.restart)
            await eventually_async(lambda: client.stats["reconnects"])
            early = bool(client.is_connected), connection.alive
            with pytest.raises(TransportError, match="not connected"):
                connection.check_alive("asking")
            client.let_go.set()
            await eventually_async(lambda: connection.alive)
        finally:
            await connection.close()
        return early

    assert asyncio.run(lives()) == (True, False)


@pytest.mark.requirement("P-12", "R-39")
@pytest.mark.parametrize("trouble", TROUBLES)
@in_each_pump
def test_a_pump_goes_on_soon_after_the_network_is_back(
    own_nats_server: Nats,
    proxy_to: ProxyTo,
    kind: Kind,
    topic: str,
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = proxy_to(own_nats_server.port)
    seen = Seen()
    transport = NatsTransport(proxy.url(own_nats_server.url))
    with Wire(own_nats_server.url) as wire, pumping(transport, kind, seen, subscribed(kind, topic, lease=1)):
        wire.orders(topic, 1)
        seen.wait(1)
        TROUBLES[trouble](proxy)
        wire.orders(topic, 2, 3)
        noticed = re.compile("is lost|does not answer requests")
        eventually(lambda: any(topic in text and noticed.search(text) for text in caplog.messages), NOTICED)
        proxy.heal()
        eventually(lambda: {order.number for order in seen.requests} == {1, 2, 3} and wire.settled(topic, topic), SOON)


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
@in_each_pump
def test_a_handler_of_five_leases_runs_once(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    seen = Seen(_slowly(kind, 5))
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1)):
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 1
    assert wire.consumer(topic, topic).delivered.consumer_seq == 1  # type: ignore[union-attr]


@pytest.mark.requirement("P-03")
def test_a_handler_whose_lease_is_lost_is_ended_and_its_late_ack_is_not_sent(
    own_nats_server: Nats, proxy_to: ProxyTo, topic: str
) -> None:
    proxy = proxy_to(own_nats_server.port)
    ended: list[BaseException] = []

    async def work() -> None:
        if ended:
            return
        try:
            await asyncio.sleep(60)
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


@pytest.mark.parametrize("waits_for", ["messages", "server"])
def test_an_interrupt_ends_a_receive_at_once_and_loses_nothing(
    own_nats_server: Nats, topic: str, waits_for: str
) -> None:
    transport = NatsTransport(own_nats_server.url)
    rules = subscribed(PROACTOR, topic)
    blocking(transport).prepare([rules], [])
    consumer: Any = blocking(transport).consumer(rules)
    inner = consumer._consumer
    if waits_for == "server":
        own_nats_server.stop()
        eventually(lambda: not inner._connection.alive)
    waiting = threading.Thread(target=consumer.receive, args=(5, 60))
    waiting.start()
    if waits_for == "messages":
        eventually(lambda: inner._puller.pending)
        own_nats_server.pause()  # it does not answer the request any more
    eventually(lambda: inner._receiving)

    consumer.interrupt()
    waiting.join(LIMIT)

    assert not waiting.is_alive()
    if waits_for == "messages":
        own_nats_server.unpause()
    else:
        own_nats_server.start()
    with Wire(own_nats_server.url) as wire:
        wire.orders(topic, 1)
        received = _received(consumer)
        assert [each.body for each in received] == [b'{"number": 1}']
        consumer.acknowledge(received[0])
        consumer.close()
        eventually(lambda: wire.settled(topic, topic))


def _received(consumer: Any) -> Sequence[Message]:
    received: Sequence[Message] = ()
    deadline = time.monotonic() + LIMIT
    while not received and time.monotonic() < deadline:
        received = consumer.receive(5, 1)
    return received


def test_what_comes_after_an_interrupt_goes_back_if_nobody_asks_for_it(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    rules = subscribed(PROACTOR, topic)
    blocking(transport).prepare([rules], [])
    first, second = (blocking(transport).consumer(rules) for _ in range(2))
    inner: Any = first
    waiting = threading.Thread(target=first.receive, args=(5, 60))
    waiting.start()
    eventually(lambda: inner._consumer._puller.pending)
    first.interrupt()
    waiting.join(LIMIT)

    wire.orders(topic, 1)
    received = _received(second)

    assert [each.body for each in received] == [b'{"number": 1}']
    second.acknowledge(received[0])
    first.close()
    second.close()
    eventually(lambda: wire.settled(topic, topic))


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
