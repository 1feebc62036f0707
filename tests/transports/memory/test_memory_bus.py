"""The in-memory bus: what it promises in addition to the contract of all transports."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from pump.clock import ManualClock, Signal, SystemClock
from pump.dead_letter import Rejection
from pump.errors import ConfigurationError, LeaseLost, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import AwaitingTransport, BlockingTransport
from pump.transports.memory import MemoryConsumer, MemoryProducer, MemoryTransport

LIMIT = 10.0
"""Seconds of real time after which a test that still waits has failed."""

FAILED = Rejection("delivery error", "failed")
UNACCEPTABLE = Rejection("unacceptable", "unreadable")


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str = "tea"


def orders(**options: Any) -> Subscription:
    return Subscription(PlaceOrder, **{"topic": "orders", **options})


def message(name: str, topic: str = "orders") -> Message:
    return Message(Header(name, topic), name.encode())


def names(messages: Sequence[Message]) -> str:
    return " ".join(each.id for each in messages)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def transport(clock: ManualClock) -> MemoryTransport:
    return MemoryTransport(clock=clock)


@pytest.fixture
def consumer(transport: MemoryTransport) -> MemoryConsumer:
    return transport.consumer(orders())


@pytest.fixture
def producer(transport: MemoryTransport, consumer: MemoryConsumer) -> MemoryProducer:
    return transport.producer()


@pytest.fixture
def threads(clock: ManualClock) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool
        clock.advance(10_000)  # ends every wait that a failed test has left


def send(producer: MemoryProducer, ids: str, **options: float) -> None:
    producer.send([message(each) for each in ids.split()], **options)


def begin_receive(pool: ThreadPoolExecutor, consumer: MemoryConsumer, timeout: float) -> "Future[Sequence[Message]]":
    """Begin a receive; it is under way when this returns."""
    future = pool.submit(consumer.receive, 1, timeout)
    until(lambda: is_waiting(consumer) or future.done())
    return future


def is_waiting(consumer: MemoryConsumer) -> bool:
    channel = consumer._channel
    return channel is not None and consumer in channel.waiting


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


async def give_way(times: int = 10) -> None:
    """Let the loop's other tasks run until they wait."""
    for _ in range(times):
        await asyncio.sleep(0)


# -- what it is


def test_it_is_of_both_colours_by_nature(transport: MemoryTransport) -> None:
    assert isinstance(transport, BlockingTransport)
    assert isinstance(transport, AwaitingTransport)


def test_making_and_using_one_starts_no_thread() -> None:
    before = set(threading.enumerate())

    transport = MemoryTransport()
    consumer = transport.consumer(orders())
    send(transport.producer(), "a b", delay=0.01)

    assert names(consumer.receive(1, LIMIT)) == "a"
    assert set(threading.enumerate()) <= before


def test_a_bus_without_a_name_is_private() -> None:
    mine, other = MemoryTransport(), MemoryTransport.from_url("memory://")

    mine.consumer(orders())

    assert list(other.bus.channels()) == []


def test_transports_of_one_name_share_a_bus() -> None:
    by_url = MemoryTransport.from_url("memory://shop%20one/east")

    assert by_url.bus is MemoryTransport("shop one/east").bus
    assert by_url.bus is not MemoryTransport("shop two").bus


def test_a_shared_bus_keeps_its_clock(clock: ManualClock) -> None:
    first = MemoryTransport("has-a-clock", clock=clock)

    assert MemoryTransport("has-a-clock").bus.clock is first.bus.clock
    assert MemoryTransport("has-a-clock", clock=clock).bus.clock is clock
    with pytest.raises(ConfigurationError, match="has-a-clock is in use already, with another clock"):
        MemoryTransport("has-a-clock", clock=ManualClock())


def test_a_url_may_set_the_ack_timeout() -> None:
    transport = MemoryTransport.from_url("memory://?ack_timeout=2.5")
    consumer = transport.consumer(orders())
    send(transport.producer(), "a")

    [received] = consumer.receive(1, 0)

    assert received.lease_expires is not None
    assert received.lease_expires - transport.bus.clock.monotonic() == pytest.approx(2.5, abs=0.5)


@pytest.mark.parametrize(
    "url",
    [
        "memory://x?colour=red",
        "memory://x?ack_timeout=2&prefetch=3",
        "memory://x?ack_timeout=soon",
        "memory://x?ack_timeout=",
        "memory://x?ack_timeout=0",
        "memory://x?ack_timeout=nan",
        "memory://x?nonsense",
        "memory://x#part",
        "memory://[x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        MemoryTransport.from_url(url)


# -- topics and channels


def test_a_message_goes_to_every_channel_of_its_topic_and_to_no_other(transport: MemoryTransport) -> None:
    billing = transport.consumer(orders(channel="billing"))
    stock = transport.consumer(orders(channel="stock"))
    transport.consumer(orders(topic="returns"))
    sent = message("a")

    transport.producer().send([sent])

    for consumer in (billing, stock):
        [received] = consumer.receive(10, 0)
        assert received.header is sent.header
        assert received.body is sent.body
    assert transport.bus.pending("returns") == 0


def test_the_channel_is_named_as_the_topic_and_the_topic_as_the_request_by_default(
    transport: MemoryTransport,
) -> None:
    transport.consumer(Subscription(PlaceOrder))

    transport.producer().send([message("a", topic="PlaceOrder")])

    assert list(transport.bus.channels()) == ["PlaceOrder", "PlaceOrder.dead"]
    assert transport.bus.pending("PlaceOrder") == 1


@pytest.mark.parametrize("name", ["a b", "Bestellungen/öst", "日本", "*", "\n"])
def test_a_name_may_be_any_text(transport: MemoryTransport, name: str) -> None:
    consumer = transport.consumer(orders(topic=name, channel=f"{name}!"))

    transport.producer().send([message("a", topic=name)])

    assert names(consumer.receive(1, 0)) == "a"


def test_what_nobody_would_get_is_not_sent_and_nothing_with_it(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer
) -> None:
    with pytest.raises(PublishError, match="'nowhere'") as refused:
        producer.send([message("a"), message("b", topic="nowhere")])

    assert refused.value.sent is False
    assert refused.value.retriable is False
    assert transport.bus.pending("orders") == 0


def test_preparing_a_publication_makes_no_channel_so_that_what_nobody_gets_is_refused(
    transport: MemoryTransport,
) -> None:
    transport.prepare([], [Publication(PlaceOrder, topic="orders")])

    with pytest.raises(PublishError, match="'orders', so nobody would receive it: add a Subscription") as refused:
        transport.producer().send([message("a")])

    assert refused.value.sent is False
    assert list(transport.bus.channels()) == []


def test_preparing_a_publication_leaves_the_channels_as_they_are(transport: MemoryTransport) -> None:
    subscription, publication = orders(channel="billing"), Publication(PlaceOrder, topic="orders")

    transport.prepare([], [publication])
    transport.prepare([subscription], [publication])
    transport.prepare([], [publication])

    assert list(transport.bus.channels()) == ["billing", "billing.dead"]


FORKING = """
import os
from dataclasses import dataclass

from pump import Command, Dispatcher, Publication, PublishError, Subscription
from pump.clock import Signal, SystemClock


@dataclass(frozen=True)
class Order(Command):
    number: int


def handle(order: Order) -> None:
    print(os.getpid() == parent, order, flush=True)
    handled.set()


parent, handled = os.getpid(), Signal()
dispatcher = Dispatcher(
    "memory://", handlers=[handle], subscriptions=[Subscription(Order)], publications=[Publication(Order)]
)


def post(number: int) -> None:
    handled.clear()
    dispatcher.post(Order(number))
    SystemClock().wait(handled, 10)


def in_child(act) -> None:
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    os.waitpid(child, 0)


def refused() -> None:
    try:
        dispatcher.post(Order(2))
    except PublishError as error:
        print(error.sent, error.retriable, error, flush=True)


def of_its_own() -> None:
    global dispatcher
    dispatcher = Dispatcher(
        dispatcher.transport, handlers=[handle], subscriptions=[Subscription(Order)], publications=[Publication(Order)]
    )
    with dispatcher:
        post(4)


with dispatcher:
    post(1)
    in_child(refused)
    post(3)
    in_child(of_its_own)
    post(5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_cannot_post_to_its_parents_bus_and_may_begin_an_empty_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], check=True, capture_output=True, text=True, timeout=60
    )

    first, second, *others = ran.stdout.splitlines()
    assert first == "True Order(number=1)"
    assert second.startswith("False False nothing was sent: the memory bus is in the process ")
    assert others == ["True Order(number=3)", "False Order(number=4)", "True Order(number=5)"]


def test_validating_names_what_is_not_there(transport: MemoryTransport) -> None:
    checked = orders(missing="validate", invalid="bad")

    with pytest.raises(SetupError, match="'orders'"):
        transport.prepare([checked], [])
    transport.prepare([orders(dead_letter=None)], [])
    with pytest.raises(SetupError, match=r"'orders\.dead'"):
        transport.consumer(checked)
    transport.prepare([orders()], [])
    with pytest.raises(SetupError, match="'bad'"):
        transport.consumer(checked)
    transport.prepare([orders(invalid="bad")], [])
    transport.consumer(checked)


def test_validating_sees_a_channel_that_does_not_get_the_topic(transport: MemoryTransport) -> None:
    transport.prepare([orders(topic="returns", channel="desk")], [])

    with pytest.raises(SetupError, match=r"'desk' .* not bound to 'orders'"):
        transport.prepare([orders(channel="desk", missing="validate")], [])


def test_validating_a_publication_asks_for_a_channel_that_gets_it(transport: MemoryTransport) -> None:
    checked = Publication(PlaceOrder, topic="orders", missing="validate")

    with pytest.raises(SetupError, match="'orders'"):
        transport.prepare([], [checked])
    transport.prepare([orders(channel="billing")], [checked])


def test_assuming_checks_nothing_and_makes_nothing(transport: MemoryTransport) -> None:
    transport.prepare([orders(missing="assume")], [Publication(PlaceOrder, missing="assume")])

    assert list(transport.bus.channels()) == []


def test_an_assumed_channel_is_used_as_soon_as_it_is_there(transport: MemoryTransport) -> None:
    consumer = transport.consumer(orders(missing="assume"))

    with pytest.raises(TransportError, match="no channel 'orders'"):
        consumer.receive(1, 0)
    transport.prepare([orders()], [])
    send(transport.producer(), "a")

    assert names(consumer.receive(1, 0)) == "a"


@pytest.mark.parametrize("options", [{"dead_letter": "orders"}, {"invalid": "orders"}])
def test_a_subscription_does_not_receive_its_own_dead_letters(
    transport: MemoryTransport, options: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="its own dead letters"):
        transport.prepare([orders(**options)], [])


def test_a_channel_that_is_not_there_holds_nothing(transport: MemoryTransport) -> None:
    bus = transport.bus

    assert (bus.pending("x"), bus.locked("x"), bus.scheduled("x"), list(bus.messages("x"))) == (0, 0, 0, [])


# -- locks


def test_a_receive_brings_what_is_there_in_order_and_locks_it(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer
) -> None:
    send(producer, "1 2 3")

    batch = consumer.receive(2, 0)

    assert names(batch) == "1 2"
    assert [(each.deliveries, each.unexplained, each.attempts) for each in batch] == [(1, 0, 0)] * 2
    assert all(each.generation == consumer.generation for each in batch)
    assert (transport.bus.locked("orders"), names(transport.bus.messages("orders"))) == (2, "3")


def test_an_acknowledged_message_is_gone(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1")
    [received] = consumer.receive(1, 0)

    consumer.acknowledge(received)

    clock.advance(1000)
    assert (transport.bus.pending("orders"), transport.bus.locked("orders")) == (0, 0)


def test_the_lease_is_the_transports_or_the_subscriptions(transport: MemoryTransport, clock: ManualClock) -> None:
    usual, short = transport.consumer(orders()), transport.consumer(orders(channel="short", lease=4))
    send(transport.producer(), "a")

    [received], [soon] = usual.receive(1, 0), short.receive(1, 0)

    assert received.lease_expires == clock.monotonic() + 30
    assert soon.lease_expires == clock.monotonic() + 4


@pytest.mark.requirement("P-03")
def test_an_extended_lease_begins_anew(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1 2")
    first, second = consumer.receive(2, 0)

    clock.advance(20)
    consumer.extend(first)
    clock.advance(20)

    assert first.lease_expires == clock.monotonic() + 10
    assert names(transport.bus.messages("orders")) == "2"
    consumer.acknowledge(first)
    with pytest.raises(LeaseLost):
        consumer.acknowledge(second)


def test_a_lapsed_lock_makes_the_message_receivable_again(
    consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1 2")
    [first] = consumer.receive(1, 0)

    clock.advance(30)
    again, _ = consumer.receive(2, 0)

    assert (again.id, again.identity) == (first.id, first.identity)
    assert (again.deliveries, again.unexplained) == (2, 1)


SETTLEMENTS: dict[str, Callable[[MemoryConsumer, Message], None]] = {
    "acknowledge": lambda consumer, message: consumer.acknowledge(message),
    "nack": lambda consumer, message: consumer.nack(message),
    "requeue": lambda consumer, message: consumer.requeue(message, 0, 5),
    "requeue later": lambda consumer, message: consumer.requeue(message, 5, 5),
    "reject": lambda consumer, message: consumer.reject(message, FAILED),
    "extend": lambda consumer, message: consumer.extend(message),
}


@pytest.mark.parametrize("settle", SETTLEMENTS.values(), ids=SETTLEMENTS)
@pytest.mark.parametrize("received_again", [False, True])
def test_a_receipt_dies_with_its_lock(
    transport: MemoryTransport,
    consumer: MemoryConsumer,
    producer: MemoryProducer,
    clock: ManualClock,
    settle: Callable[[MemoryConsumer, Message], None],
    *,
    received_again: bool,
) -> None:
    send(producer, "1")
    [stale] = consumer.receive(1, 0)
    clock.advance(30)
    current = consumer.receive(1, 0) if received_again else []

    with pytest.raises(LeaseLost, match="message 1 of orders"):
        settle(consumer, stale)

    for each in current:
        consumer.nack(each)
    [found] = consumer.receive(10, 0)
    assert (found.id, found.attempts, found.unexplained) == ("1", 0, 1)
    assert (transport.bus.pending("orders"), transport.bus.scheduled("orders")) == (0, 0)
    assert transport.bus.pending("orders.dead") == 0


@pytest.mark.parametrize("settle", SETTLEMENTS.values(), ids=SETTLEMENTS)
def test_a_second_settlement_has_no_effect(
    transport: MemoryTransport,
    consumer: MemoryConsumer,
    producer: MemoryProducer,
    settle: Callable[[MemoryConsumer, Message], None],
) -> None:
    send(producer, "1")
    [received] = consumer.receive(1, 0)
    consumer.acknowledge(received)

    with pytest.raises(LeaseLost):
        settle(consumer, received)

    bus = transport.bus
    assert [bus.pending("orders"), bus.scheduled("orders"), bus.pending("orders.dead")] == [0, 0, 0]


def test_another_consumers_message_cannot_be_settled(transport: MemoryTransport) -> None:
    first, second = transport.consumer(orders()), transport.consumer(orders())
    send(transport.producer(), "1")
    [received] = first.receive(1, 0)

    with pytest.raises(LeaseLost):
        second.acknowledge(received)

    first.acknowledge(received)


def test_a_lock_without_end_never_lapses(clock: ManualClock) -> None:
    transport = MemoryTransport(clock=clock, ack_timeout=inf)
    consumer = transport.consumer(orders())
    send(transport.producer(), "1")
    [received] = consumer.receive(1, 0)

    clock.advance(1e9)

    consumer.acknowledge(received)


def test_a_message_without_an_id_is_known_by_its_place(consumer: MemoryConsumer, producer: MemoryProducer) -> None:
    producer.send([message(""), message("")])
    first, second = consumer.receive(2, 0)

    consumer.requeue(first, 0, 1)
    [again] = consumer.receive(1, 0)

    assert first.identity != second.identity
    assert again.identity == first.identity


# -- giving back


@pytest.mark.requirement("B-31", "AC-17")
def test_a_nacked_message_is_unlocked_and_comes_next(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer
) -> None:
    send(producer, "1 2 3")
    [received] = consumer.receive(1, 0)

    consumer.nack(received)

    assert transport.bus.locked("orders") == 0
    assert names(transport.bus.messages("orders")) == "1 2 3"
    [again] = consumer.receive(1, 0)
    assert (again.id, again.deliveries, again.unexplained, again.attempts) == ("1", 2, 0, 0)


@pytest.mark.requirement("B-33")
@pytest.mark.parametrize("order", ["nack first", "nack last"])
def test_what_is_given_back_comes_in_its_old_order(
    consumer: MemoryConsumer, producer: MemoryProducer, order: str
) -> None:
    send(producer, "1 2 3 4")
    first, *successors = consumer.receive(3, 0)

    if order == "nack first":
        consumer.nack(first)
        consumer.hand_back(successors)
    else:
        consumer.hand_back(successors[::-1])
        consumer.nack(first)

    batch = consumer.receive(10, 0)
    assert names(batch) == "1 2 3 4"
    assert [each.unexplained for each in batch] == [0, 0, 0, 0]
    assert [each.deliveries for each in batch] == [2, 2, 2, 1]


def test_handing_back_leaves_alone_what_has_lapsed_or_was_settled(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1 2 3")
    [lapsed] = consumer.receive(1, 0)
    clock.advance(29)
    settled, ours = consumer.receive(2, 0)
    consumer.acknowledge(settled)
    clock.advance(1)

    consumer.hand_back([lapsed, settled, ours])

    assert [(each.id, each.unexplained) for each in transport.bus.messages("orders")] == [("1", 1), ("3", 0)]


def test_a_requeued_message_goes_to_the_tail_with_the_attempts_it_was_given(
    consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1 2")
    consumer.receive(1, 0)
    clock.advance(30)
    [received] = consumer.receive(1, 0)

    consumer.requeue(received, 0, 7)

    other, again = consumer.receive(2, 0)
    assert (other.id, again.id) == ("2", "1")
    assert (again.attempts, again.deliveries, again.unexplained) == (7, 3, 0)
    consumer.hand_back([again, other])
    assert [(each.id, each.attempts) for each in consumer.receive(2, 0)] == [("2", 0), ("1", 7)]


@pytest.mark.requirement("P-05")
def test_a_message_requeued_for_later_comes_when_it_is_due_and_only_here(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    other = transport.consumer(orders(channel="other"))
    send(producer, "1")
    consumer.requeue(consumer.receive(1, 0)[0], 5, 1)
    other.acknowledge(other.receive(1, 0)[0])

    clock.advance(4.9)
    assert list(consumer.receive(1, 0)) == []
    assert transport.bus.scheduled("orders") == 1
    clock.advance(0.1)
    assert names(consumer.receive(1, 0)) == "1"
    assert list(other.receive(1, 0)) == []


def test_closing_gives_back_everything_in_order_and_counts_what_was_not_handed_back(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer
) -> None:
    send(producer, "1 2 3 4")
    batch = consumer.receive(3, 0)
    consumer.hand_back(batch[1:2])

    consumer.close()
    consumer.close()

    found = transport.bus.messages("orders")
    assert [(each.id, each.unexplained) for each in found] == [("1", 1), ("2", 0), ("3", 1), ("4", 0)]
    assert transport.bus.locked("orders") == 0


USES: dict[str, Callable[[MemoryConsumer, Message], object]] = {
    **SETTLEMENTS,
    "receive": lambda consumer, _: consumer.receive(1, 0),
    "hand back": lambda consumer, message: consumer.hand_back([message]),
    "purge": lambda consumer, _: consumer.purge(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_closed_consumer_does_nothing_more(
    transport: MemoryTransport,
    consumer: MemoryConsumer,
    producer: MemoryProducer,
    use: Callable[[MemoryConsumer, Message], object],
) -> None:
    send(producer, "1")
    [received] = consumer.receive(1, 0)
    consumer.close()

    with pytest.raises(TransportError, match="closed"):
        use(consumer, received)

    assert names(transport.bus.messages("orders")) == "1"


def test_a_consumer_that_was_never_used_can_be_closed(transport: MemoryTransport) -> None:
    consumer = transport.consumer(orders(missing="assume"))

    consumer.close()

    with pytest.raises(TransportError, match="closed"):
        consumer.receive(1, 0)


def test_a_closed_producer_sends_nothing(transport: MemoryTransport, producer: MemoryProducer) -> None:
    producer.close()

    with pytest.raises(PublishError, match="closed") as refused:
        send(producer, "1")

    assert refused.value.sent is False
    assert transport.bus.pending("orders") == 0


def test_a_purge_removes_what_waits_and_what_is_due_later_but_nothing_in_hand(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer
) -> None:
    send(producer, "1 2 3 4")
    in_hand, given_back = consumer.receive(2, 0)
    consumer.nack(given_back)
    send(producer, "5", delay=5)

    assert consumer.purge() == 4

    assert (transport.bus.pending("orders"), transport.bus.scheduled("orders")) == (0, 0)
    consumer.acknowledge(in_hand)


# -- dead letters


@pytest.mark.parametrize(
    ("options", "rejection", "grave"),
    [
        ({}, FAILED, "orders.dead"),
        ({}, UNACCEPTABLE, "orders.dead"),
        ({"dead_letter": "lost"}, FAILED, "lost"),
        ({"dead_letter": "lost"}, UNACCEPTABLE, "lost"),
        ({"invalid": "bad"}, FAILED, "orders.dead"),
        ({"invalid": "bad"}, UNACCEPTABLE, "bad"),
        ({"dead_letter": None, "invalid": "bad"}, UNACCEPTABLE, "bad"),
    ],
)
def test_a_rejected_message_is_moved_to_where_its_kind_goes(
    transport: MemoryTransport, options: dict[str, Any], rejection: Rejection, grave: str
) -> None:
    consumer = transport.consumer(orders(**options))
    send(transport.producer(), "1")
    [received] = consumer.receive(1, 0)

    consumer.reject(received, rejection)

    [dead] = transport.bus.messages(grave)
    assert (dead.id, dead.body, dead.deliveries, dead.attempts) == ("1", b"1", 0, 0)
    assert dead.header.headers["pump-reason"] == rejection.reason
    assert dead.header.headers["pump-deliveries"] == "1"
    assert dead.header.headers["pump-position"] == "1"
    assert sum(transport.bus.pending(each) for each in transport.bus.channels()) == 1


@pytest.mark.parametrize("rejection", [FAILED, UNACCEPTABLE])
def test_without_dead_letters_a_rejected_message_is_removed_and_the_log_says_so(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture, rejection: Rejection
) -> None:
    consumer = transport.consumer(orders(dead_letter=None))
    send(transport.producer(), "the-one")
    [received] = consumer.receive(1, 0)

    consumer.reject(received, rejection)

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "the-one" in record.getMessage()
    assert rejection.reason in record.getMessage()
    assert list(transport.bus.channels()) == ["orders"]
    assert (transport.bus.pending("orders"), transport.bus.locked("orders")) == (0, 0)


def test_a_rejection_that_finds_no_dead_letter_channel_leaves_the_message_where_it_is(
    transport: MemoryTransport,
) -> None:
    transport.prepare([orders(dead_letter=None)], [])
    consumer = transport.consumer(orders(missing="assume"))
    send(transport.producer(), "1")
    [received] = consumer.receive(1, 0)

    with pytest.raises(PublishError, match=r"'orders\.dead'") as refused:
        consumer.reject(received, FAILED)

    assert refused.value.sent is False
    assert transport.bus.locked("orders") == 1
    transport.prepare([orders()], [])
    consumer.reject(received, FAILED)
    assert names(transport.bus.messages("orders.dead")) == "1"


# -- time


def test_a_delayed_message_comes_when_it_is_due_behind_what_was_sent_before(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "late", delay=5)
    send(producer, "later", delay=7)
    send(producer, "now")
    assert transport.bus.scheduled("orders") == 2

    clock.advance(6)
    send(producer, "after")
    clock.advance(6)

    assert names(consumer.receive(10, 0)) == "now late after later"


def test_a_delay_that_is_over_is_none(consumer: MemoryConsumer, producer: MemoryProducer) -> None:
    send(producer, "1", delay=-5)

    assert names(consumer.receive(1, 0)) == "1"


def test_an_empty_receive_waits_no_longer_than_it_was_told() -> None:
    clock = ManualClock(automatic=True)
    consumer = MemoryTransport(clock=clock).consumer(orders())
    began = clock.monotonic()

    assert list(consumer.receive(1, 3)) == []
    assert clock.monotonic() == began + 3


@pytest.mark.parametrize("timeout", [1000, inf])
def test_a_waiting_receive_ends_at_the_moment_a_delayed_message_is_due(timeout: float) -> None:
    clock = ManualClock(automatic=True)
    transport = MemoryTransport(clock=clock)
    consumer, producer = transport.consumer(orders()), transport.producer()
    began = clock.monotonic()
    send(producer, "1", delay=5)

    assert names(consumer.receive(1, timeout)) == "1"
    assert clock.monotonic() == began + 5


def test_a_waiting_receive_ends_at_the_moment_a_lock_lapses() -> None:
    clock = ManualClock(automatic=True)
    transport = MemoryTransport(clock=clock)
    first, second = transport.consumer(orders()), transport.consumer(orders())
    send(transport.producer(), "1")
    first.receive(1, 0)
    began = clock.monotonic()

    assert names(second.receive(1, 1000)) == "1"
    assert clock.monotonic() == began + 30


def test_who_waits_already_learns_of_a_time_that_was_not_known_then(
    transport: MemoryTransport, clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    consumer, producer = transport.consumer(orders()), transport.producer()
    send(producer, "1", delay=5)
    received = begin_receive(threads, consumer, 1000)

    send(producer, "2", delay=3)
    until(lambda: clock.waits[-1] == 3)
    clock.wait_for_sleepers(1)
    clock.advance(3)

    assert names(received.result(LIMIT)) == "2"


def test_who_waits_already_learns_when_a_message_that_another_took_would_lapse(
    transport: MemoryTransport, clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    first, second = transport.consumer(orders()), transport.consumer(orders())
    taken, waiting = [begin_receive(threads, each, 1000) for each in (first, second)]

    send(transport.producer(), "1")
    assert names(taken.result(LIMIT)) == "1"
    until(lambda: is_waiting(second) and second.longest_wait == 30)
    clock.wait_for_sleepers(1)
    clock.advance(30)

    assert names(waiting.result(LIMIT)) == "1"


# -- waiting


def test_one_message_wakes_one_waiter(clock: ManualClock, threads: ThreadPoolExecutor) -> None:
    transport = MemoryTransport(clock=clock, ack_timeout=inf)  # where nothing lapses, nobody has to learn of it
    consumers = [transport.consumer(orders()) for _ in range(3)]
    receives = [begin_receive(threads, each, 1000) for each in consumers]

    send(transport.producer(), "1")
    assert [is_waiting(each) for each in consumers] == [False, True, True]
    assert names(receives[0].result(LIMIT)) == "1"
    send(transport.producer(), "2 3")

    assert sorted(names(each.result(LIMIT)) for each in receives) == ["1", "2", "3"]


def test_who_has_stopped_waiting_is_not_woken_in_place_of_another(
    transport: MemoryTransport, clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    first, second = transport.consumer(orders()), transport.consumer(orders())
    empty = begin_receive(threads, first, 5)
    clock.wait_for_sleepers(1)
    clock.advance(5)
    assert list(empty.result(LIMIT)) == []

    received = begin_receive(threads, second, 1000)
    send(transport.producer(), "1")

    assert names(received.result(LIMIT)) == "1"


@pytest.mark.requirement("B-24")
@pytest.mark.parametrize("give_back", ["nack", "requeue", "hand_back", "close"])
def test_what_is_given_back_wakes_a_waiter_at_once(
    transport: MemoryTransport, threads: ThreadPoolExecutor, give_back: str
) -> None:
    first, second = transport.consumer(orders()), transport.consumer(orders())
    send(transport.producer(), "1")
    [held] = first.receive(1, 0)
    received = begin_receive(threads, second, 1000)

    match give_back:
        case "nack":
            first.nack(held)
        case "requeue":
            first.requeue(held, 0, 1)
        case "hand_back":
            first.hand_back([held])
        case _:
            first.close()

    assert names(received.result(LIMIT)) == "1"


def test_a_rejected_message_wakes_who_waits_for_dead_letters(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, threads: ThreadPoolExecutor
) -> None:
    graves = transport.consumer(orders(topic="orders.dead"))
    dead = begin_receive(threads, graves, 1000)
    send(producer, "1")

    consumer.reject(consumer.receive(1, 0)[0], FAILED)

    assert names(dead.result(LIMIT)) == "1"


def test_looking_at_the_bus_shows_what_is_due_as_receivable(
    transport: MemoryTransport, consumer: MemoryConsumer, producer: MemoryProducer, clock: ManualClock
) -> None:
    send(producer, "1", delay=5)

    clock.advance(5)

    assert (transport.bus.scheduled("orders"), transport.bus.pending("orders")) == (0, 1)
    assert names(consumer.receive(1, 0)) == "1"


def test_an_interrupt_ends_the_receive_that_is_under_way(
    transport: MemoryTransport, consumer: MemoryConsumer, threads: ThreadPoolExecutor
) -> None:
    received = begin_receive(threads, consumer, 1000)

    consumer.interrupt()

    assert list(received.result(LIMIT)) == []


def test_an_interrupt_ends_the_next_receive_and_no_later_one(
    consumer: MemoryConsumer, producer: MemoryProducer, threads: ThreadPoolExecutor
) -> None:
    consumer.interrupt()
    assert list(consumer.receive(1, 1000)) == []

    received = begin_receive(threads, consumer, 1000)
    send(producer, "1")

    assert names(received.result(LIMIT)) == "1"


def test_an_interrupted_receive_brings_what_is_there(consumer: MemoryConsumer, producer: MemoryProducer) -> None:
    send(producer, "1")
    consumer.interrupt()

    assert names(consumer.receive(1, 1000)) == "1"


def test_closing_ends_a_receive_that_is_under_way(transport: MemoryTransport, threads: ThreadPoolExecutor) -> None:
    first, second = transport.consumer(orders()), transport.consumer(orders())
    receives = [begin_receive(threads, each, 1000) for each in (first, second)]

    first.close()

    with pytest.raises(TransportError, match="closed"):
        receives[0].result(LIMIT)
    send(transport.producer(), "1")
    assert names(receives[1].result(LIMIT)) == "1"


def test_a_blocking_waiter_that_is_interrupted_passes_its_wake_up_on(
    transport: MemoryTransport, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, staying = transport.consumer(orders()), transport.consumer(orders())
    passed_on: list[Future[Sequence[Message]]] = []

    def wait(signal: Signal, timeout: float | None) -> bool:
        monkeypatch.undo()
        passed_on.append(begin_receive(threads, staying, 1000))
        send(transport.producer(), "1")
        raise KeyboardInterrupt

    monkeypatch.setattr(transport.bus.clock, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        leaving.receive(1, 1000)

    assert names(passed_on[0].result(LIMIT)) == "1"


def test_a_cancelled_waiter_passes_its_wake_up_on(transport: MemoryTransport) -> None:
    async def two_waiters() -> str:
        first, second = [await transport.async_consumer(orders()) for _ in range(2)]
        leaving = asyncio.create_task(first.receive(1, 1000))
        await give_way()
        staying = asyncio.create_task(second.receive(1, 1000))
        await give_way()
        send(transport.producer(), "1")
        assert not is_waiting(first._consumer)
        leaving.cancel()
        async with asyncio.timeout(LIMIT):
            received = await staying
        assert leaving.cancelled()
        return names(received)

    assert asyncio.run(two_waiters()) == "1"


@pytest.mark.parametrize("begun", [False, True])
def test_a_waiter_cancelled_before_anything_came_is_forgotten(transport: MemoryTransport, *, begun: bool) -> None:
    async def waiter() -> None:
        consumer = await transport.async_consumer(orders(missing="assume" if not begun else "create"))
        receive = asyncio.create_task(consumer.receive(1, 1000))
        await give_way(10 if begun else 1)
        assert is_waiting(consumer._consumer) is begun
        receive.cancel()
        await asyncio.wait([receive])
        assert receive.cancelled()
        assert not is_waiting(consumer._consumer)

    asyncio.run(waiter())


def test_an_awaiting_receive_lets_other_tasks_run_even_when_messages_never_run_out(
    transport: MemoryTransport,
) -> None:
    async def busy() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        consumer = await transport.async_consumer(orders())
        send(transport.producer(), "1")
        task = asyncio.create_task(other())
        deadline = asyncio.get_running_loop().time() + 10
        while turns < 10 and asyncio.get_running_loop().time() < deadline:
            await consumer.hand_back(await consumer.receive(1, 1))
        task.cancel()
        return turns

    assert asyncio.run(busy()) == 10


class Tally:
    """Counts which consumer received which message, and knows when all were received."""

    def __init__(self, number: int) -> None:
        self.received: Counter[str] = Counter()
        self._number = number
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + 60

    def add(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self.received.update(each.id for each in messages)

    def open(self) -> bool:
        return self.received.total() < self._number and time.monotonic() < self._deadline


def produce(transport: MemoryTransport, numbers: range) -> None:
    producer = transport.producer()
    for start in numbers[::50]:
        producer.send([message(str(each)) for each in numbers[numbers.index(start) :][:50]])


def consume(transport: MemoryTransport, tally: Tally) -> None:
    consumer = transport.consumer(orders())
    while tally.open():
        batch = consumer.receive(3, 0.05)
        for each in batch:
            consumer.acknowledge(each)
        tally.add(batch)


async def consume_async(transport: MemoryTransport, tally: Tally) -> None:
    consumer = await transport.async_consumer(orders())
    while tally.open():
        batch = await consumer.receive(3, 0.05)
        for each in batch:
            await consumer.acknowledge(each)
        tally.add(batch)


async def consume_thrice(transport: MemoryTransport, tally: Tally) -> None:
    await asyncio.gather(*(consume_async(transport, tally) for _ in range(3)))


@pytest.mark.requirement("B-24")
def test_threads_and_a_loop_at_once_get_each_message_exactly_once() -> None:
    transport, tally, number = MemoryTransport(), Tally(20_000), 20_000
    transport.prepare([orders()], [])

    with ThreadPoolExecutor(5) as pool:
        working: list[Future[None]] = [pool.submit(asyncio.run, consume_thrice(transport, tally))]
        working += [pool.submit(consume, transport, tally) for _ in range(2)]
        working += [pool.submit(produce, transport, range(each, number, 2)) for each in range(2)]
        for each in working:
            each.result()

    assert tally.received.total() == len(tally.received) == number
    assert (transport.bus.pending("orders"), transport.bus.locked("orders")) == (0, 0)


def test_no_wake_up_is_lost_between_waiters_of_both_kinds() -> None:
    transport = MemoryTransport(clock=SystemClock())
    rounds = 2000
    there, back = transport.consumer(orders(topic="there")), transport.consumer(orders(topic="back"))
    transport.prepare([orders(topic="there"), orders(topic="back")], [])

    async def answer() -> None:
        consumer = await transport.async_consumer(orders(topic="there"))
        producer = await transport.async_producer()
        for _ in range(rounds):
            [received] = await consumer.receive(1, 60)
            await consumer.acknowledge(received)
            await producer.send([message(received.id, topic="back")])
        await producer.close()

    loop = LoopThread("answers")
    try:
        answering = loop.submit(answer())
        producer = transport.producer()
        began = time.monotonic()
        for turn in range(rounds):
            producer.send([message(str(turn), topic="there")])
            [received] = back.receive(1, 60)
            assert received.id == str(turn)
            back.acknowledge(received)
        answering.result(LIMIT)
    finally:
        loop.close()

    assert time.monotonic() - began < 60
    assert list(there.receive(1, 0)) == []
