"""Connections that break, links that are detached, a broker that is busy or hangs: locks outlive all of that."""

import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from brokers.fixtures import ProxyTo
from brokers.servicebus import ServiceBus
from pump import Dispatcher, Publication, Subscription
from pump.clock import SystemClock
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Header, Message
from pump.transports.servicebus import ServiceBusSettings, ServiceBusTransport
from pump.transports.servicebus.consumer import ServiceBusConsumer
from pump.transports.servicebus.entities import Facts
from support.pumps import Kind, Order
from support.servicebus_bench import PATIENCE, QueueBench, receive
from support.waiting import eventually

LEASE = 4.0


@pytest.fixture
def own_bench(own_servicebus: ServiceBus, hurried: None) -> Iterator[QueueBench]:
    with ExitStack() as stack:
        yield QueueBench(own_servicebus, stack)


@pytest.mark.parametrize("fault", ["detach", "close", "busy"])
def test_what_is_in_hand_stays_so_whatever_breaks(own_bench: QueueBench, fault: str) -> None:
    broker, consumer = own_bench.broker, own_bench.consumer(lease=20.0)
    own_bench.send("1", "2")
    first, second = receive(consumer, 2, 2)

    if fault == "busy":
        for what in ("settle", "renew-lock"):
            broker.command("busy", kind=what, count=1)
    else:
        broker.command(fault)
    consumer.receive(1, 0.1)
    consumer.extend(second)
    eventually(lambda: done(lambda: consumer.nack(second)), PATIENCE)
    consumer.acknowledge(first)

    (again,) = receive(consumer)
    assert (again.body, again.generation) == (b"2", second.generation)
    consumer.acknowledge(again)
    own_bench.holds(0)


def done(call: Callable[[], object]) -> bool:
    """Whether a verdict was carried out; a pump tries again as well."""
    try:
        call()
    except TransportError:
        return False
    return True


@pytest.fixture
def silent() -> Iterator[tuple[str, socket.socket]]:
    """A place that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        port = server.getsockname()[1]
        yield f"servicebus://a:b@127.0.0.1:{port}?emulator=true&management_port={port}&timeout=60", server


def test_a_receive_whose_consumer_is_closed_is_a_transport_error(silent: tuple[str, socket.socket]) -> None:
    url, server = silent
    orders = Subscription(Order, topic="orders", channel="orders")
    consumer = ServiceBusConsumer(ServiceBusSettings.from_url(url), orders, Facts(), SystemClock())
    with ThreadPoolExecutor(1) as calls:
        received = calls.submit(consumer.receive, 1, 60.0)
        with server.accept()[0]:
            consumer.close()
            assert isinstance(received.exception(PATIENCE), TransportError)


def test_a_post_whose_producer_is_closed_is_a_publish_error(silent: tuple[str, socket.socket]) -> None:
    url, server = silent
    producer = ServiceBusTransport.from_url(url).producer()
    with ThreadPoolExecutor(1) as calls:
        sent = calls.submit(producer.send, [Message(Header("1", "orders"), b"1")])
        with server.accept()[0]:
            producer.close()
            assert isinstance(sent.exception(PATIENCE), PublishError)


def test_a_lost_lock_is_a_lost_lease(own_bench: QueueBench) -> None:
    consumer = own_bench.consumer()
    own_bench.send("1")
    (message,) = receive(consumer)

    own_bench.broker.command("expire", entity=own_bench.name)

    with pytest.raises(LeaseLost):
        consumer.extend(message)
    with pytest.raises(LeaseLost):
        consumer.nack(message)
    (again,) = receive(consumer)
    assert again.deliveries == 2


def test_an_outage_has_one_line_when_it_begins_and_one_when_it_ends(
    own_servicebus: ServiceBus, proxy_to: ProxyTo, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = proxy_to(own_servicebus.port)
    with ExitStack() as stack:
        bench = QueueBench(own_servicebus, stack)
        bench.transport = type(bench.transport).from_url(proxy.url(own_servicebus.url))
        consumer = bench.consumer(lease=60.0)
        bench.send("1")
        (message,) = receive(consumer)
        caplog.clear()
        caplog.set_level(logging.INFO, "pump")

        proxy.cut()
        for _ in range(5):
            assert consumer.receive(1, 0.2) == []
        proxy.heal()
        bench.send("2")
        (other,) = receive(consumer)

        lines = [each.getMessage() for each in caplog.records if "servicebus" in each.getMessage()]
        assert len(lines) == 2, lines
        assert "lost" in lines[0]
        assert "again" in lines[1]
        consumer.acknowledge(message)
        consumer.acknowledge(other)
        bench.holds(0)


def test_a_handler_of_several_locks_runs_once_though_its_connections_break(
    own_servicebus: ServiceBus, proxy_to: ProxyTo, kind: Kind, hurried: None
) -> None:
    proxy, runs = proxy_to(own_servicebus.port), list[int]()
    name = QueueBench(own_servicebus, ExitStack()).name

    def slow(order: Order) -> None:
        runs.append(order.number)
        until = time.monotonic() + 3 * LEASE
        for moment in (1.0, 5.0):
            time.sleep(moment)  # a handler that blocks its thread, or its loop
            proxy.reset()
            own_servicebus.command("detach")
        own_servicebus.command("busy", kind="renew-lock", count=1)
        time.sleep(max(0.0, until - time.monotonic()))

    options = {**kind.options, "lease": LEASE, "grace": 1.0}
    dispatcher = Dispatcher(
        proxy.url(own_servicebus.url),
        handlers=[kind.handler(slow)],
        subscriptions=[Subscription(Order, topic=name, channel=name, **options)],
        publications=[Publication(Order, topic=name)],
    )
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: runs and own_servicebus.command("count", entity=name)["all"] == 0, PATIENCE + 3 * LEASE)

    assert runs == [1]


@pytest.mark.parametrize("scheme", ["servicebus", "servicebus+sessions"])
@pytest.mark.parametrize(
    "seconds", [1.0, pytest.param(10.0, marks=[pytest.mark.long, pytest.mark.requirement("P-12")])]
)
@pytest.mark.filterwarnings(  # the client forgets a connection that the broker has ended, without closing its own end
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_consumers_work_again_soon_after_an_outage_and_make_a_deleted_queue_again(
    own_servicebus: ServiceBus, kind: Kind, hurried: None, scheme: str, seconds: float
) -> None:
    bench, seen = QueueBench(own_servicebus, ExitStack()), list[int]()
    dispatcher = Dispatcher(
        own_servicebus.url.replace("servicebus", scheme, 1),
        handlers=[kind.handler(lambda order: seen.append(order.number))],
        subscriptions=[Subscription(Order, topic=bench.name, channel=bench.name, **kind.options)],
        publications=[Publication(Order, topic=bench.name)],
    )
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: 1 in seen, PATIENCE)

        own_servicebus.stop()
        time.sleep(seconds)
        own_servicebus.start()
        posted(dispatcher, Order(2))
        assert eventually_within(lambda: 2 in seen, 5.0)

        with bench.transport._entities._admin() as admin:
            admin.delete_queue(bench.name)
        eventually(lambda: posts(dispatcher, Order(3)), PATIENCE)
        eventually(lambda: 3 in seen, PATIENCE)


def posts(dispatcher: Dispatcher, order: Order) -> bool:
    """Whether it could be posted."""
    try:
        dispatcher.post(order)
    except PublishError:
        return False
    return True


def posted(dispatcher: Dispatcher, order: Order) -> None:
    eventually(lambda: posts(dispatcher, order), PATIENCE)


def eventually_within(condition: Callable[[], object], seconds: float) -> bool:
    began = time.monotonic()
    eventually(condition, PATIENCE)
    return time.monotonic() - began <= seconds


def test_a_stop_waits_for_no_broker_that_hangs(own_servicebus: ServiceBus, kind: Kind, hurried: None) -> None:
    name, seen = QueueBench(own_servicebus, ExitStack()).name, list[int]()

    def stuck(order: Order) -> None:
        seen.append(order.number)
        time.sleep(8.0)

    dispatcher = Dispatcher(
        own_servicebus.url,
        handlers=[kind.handler(stuck)],
        subscriptions=[Subscription(Order, topic=name, channel=name, grace=1.0, **kind.options)],
        publications=[Publication(Order, topic=name)],
    )
    with dispatcher:
        dispatcher.post_many([Order(1), Order(2), Order(3)])
        eventually(lambda: seen, PATIENCE)
        own_servicebus.pause()
        began = time.monotonic()
    took = time.monotonic() - began
    own_servicebus.unpause()

    assert took < 1.0 + 2.0 + 3.0, "the grace, two seconds, and three for a machine that is busy"
