"""What the broker is told when a message is left: one nack, before the pump waits, and what others then see of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import entry_points
from inspect import iscoroutinefunction, signature
from typing import get_type_hints

import pytest

from pump.clock import ManualClock
from pump.errors import ConfigurationError, DontAckAction, LeaseLost, TransportError
from pump.transport_kit.protocol import GROUP, AsyncConsumer, Consumer, find_transport
from support.pump_fixtures import Pumping
from support.pumps import CONCURRENT, PROACTOR, REACTOR, Bench, Broker, Kind, Order, Outcomes, consuming, numbers
from support.waiting import eventually


def fails(_: object) -> object:
    raise DontAckAction


@pytest.mark.requirement("B-20", "B-22")
def test_the_channel_is_asked_once_and_asks_the_consumer_once(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.post_orders(1)

    bench.run(turns=1)

    (call,) = bench.calls
    ((_, arguments),) = [each for each in bench.broker.calls if each[0] == "nack"]
    assert call == "nack"
    assert arguments == (call.message,)


@pytest.mark.requirement("B-22")
def test_every_dont_ack_is_one_nack(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.post_orders(1)

    bench.run(turns=4)

    assert bench.calls == ["nack"] * 4
    assert bench.broker.named("nack", "acknowledge", "requeue", "reject") == ["nack"] * 4


@pytest.mark.requirement("B-23")
def test_a_nack_that_fails_for_good_is_logged_and_counted_and_the_pump_waits_and_goes_on(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction(), None)
    bench = pumping(body, capabilities={"leases": False})
    bench.broker.fail("nack", TransportError("the line is cut"))
    bench.post_orders(1, 2)

    bench.run(turns=1)
    after = bench.clock.monotonic()
    bench.run()

    assert bench.unacceptable == 1
    assert any(each.startswith("Settling message failed: the line is cut") for each in bench.said)
    assert bench.clock.waits.count(1.0) == 1
    assert after > 0
    assert numbers(bench.acknowledged) == [1, 2]
    assert bench.stopped is None


@pytest.mark.requirement("B-22", "B-23")
def test_the_pump_asks_once_and_the_channel_tries_while_the_lease_lasts(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.broker.fail("nack", TransportError("a"), OSError("b"))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == ["nack"]
    assert bench.broker.named("nack") == ["nack"] * 3
    assert bench.unacceptable == 1


@pytest.mark.requirement("B-23")
def test_a_nack_that_fails_until_the_lease_has_lapsed_is_given_up(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction(), None)
    bench = pumping(body, lease=5.0)
    bench.broker.break_down("nack", TransportError("away"))
    bench.broker.break_down("extend", TransportError("away"))
    bench.post_orders(1)
    bench.run(turns=1)
    bench.broker.mend()

    bench.run()

    assert isinstance(bench.calls[0].error, LeaseLost)
    assert numbers(bench.acknowledged) == [1]
    assert bench.unacceptable == 1


# -- others


@pytest.mark.requirement("B-08", "B-24", "B-25")
@pytest.mark.parametrize("kind", [REACTOR, PROACTOR], ids=["reactor", "proactor"])
def test_another_consumer_has_the_message_while_the_first_one_waits(kind: Kind) -> None:
    clock = ManualClock()
    broker = Broker(clock)
    with consuming(kind, fails, broker, clock=clock) as running:
        sent = running.post(Order())
        eventually(lambda: 1.0 in clock.waits)
        other = broker.consumer(running.subscriptions[0])

        received = other.receive(1, 0)

        assert [message.id for message in received] == [sent]
        assert clock.monotonic() == 1_000_000.0, "the first one waits still"
        other.acknowledge(received[0])
    assert broker.bus.pending("orders.dead") == 0


@pytest.mark.requirement("B-24")
def test_another_performer_of_the_same_dispatcher_waits_as_well(kind: Kind) -> None:
    clock = ManualClock()
    body = Outcomes(DontAckAction())
    with consuming(kind, body, Broker(clock), clock=clock) as running:
        running.scale("orders", 2)
        running.post(Order())
        eventually(lambda: body.runs == 1 and 1.0 in clock.waits)
        for _ in range(5):
            clock.wait_for_sleepers(2)
            clock.advance(0.19)

        assert body.runs == 1


@pytest.mark.requirement("B-25")
def test_it_is_neither_a_reject_nor_a_requeue(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.post_orders(1)

    bench.run(turns=3)

    bus = bench.broker.bus
    assert bus.pending("Order.dead") == 0
    assert {call.message.id for call in bench.calls} == {"order-1"}
    assert bus.pending("Order") + bus.locked("Order") + bus.scheduled("Order") == 1


@pytest.mark.requirement("B-31")
def test_on_the_memory_bus_the_message_is_locked_no_more_and_is_the_next_again(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.post_orders(1, 2, 3)

    bench.run(turns=1)

    bus = bench.broker.bus
    assert bus.locked("Order") == 0
    assert [message.id for message in bus.messages("Order")] == ["order-1", "order-2", "order-3"]


@pytest.mark.requirement("B-33")
def test_no_successor_is_handled_past_a_message_that_is_left(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction())
    bench = pumping(body)
    bench.post_orders(1, 2, 3, key="k")

    bench.run(seconds=10)

    assert set(numbers(body.seen)) == {1}


@pytest.mark.requirement("B-33")
def test_what_waited_behind_it_comes_in_its_old_order(pumping: Pumping) -> None:
    blocked = True

    def body(order: Order) -> None:
        if order.number == 3 and blocked:
            raise DontAckAction

    bench = pumping(body)
    bench.post_orders(1, 2, 3, 4, 5, 6, 7, key="k")
    bench.run()
    blocked = False
    bench.run()

    assert numbers(bench.acknowledged)[2] == 3
    assert sorted(numbers(bench.acknowledged)) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.requirement("B-33")
def test_a_nack_in_one_ordering_domain_does_not_stop_the_others(benches: ExitStack) -> None:
    handler = CONCURRENT.handler(lambda order: fails(order) if order.number == 1 else None)
    bench = benches.enter_context(Bench(handler, in_flight=4))
    for number, key in enumerate("abbb", start=1):
        bench.post(Order(number), key=key)

    bench.run(seconds=5)

    assert numbers(bench.acknowledged) == [2, 3, 4]
    assert numbers(bench.pending) == [1]


# -- transports


def consumers_of(scheme: str) -> Iterator[type[Consumer]]:
    """The classes of a registered transport's consumers, as its methods say."""
    try:
        transport = find_transport(scheme)
    except ConfigurationError as error:
        pytest.skip(str(error))
    for name in ("consumer", "async_consumer"):
        method = getattr(transport, name, None)
        if method is not None:
            yield get_type_hints(method)["return"]


@pytest.mark.requirement("B-21")
@pytest.mark.parametrize("scheme", sorted({each.name for each in entry_points(group=GROUP)}))
def test_every_transport_has_a_consumer_that_can_leave_a_message(scheme: str) -> None:
    parameters = [list(signature(each.nack).parameters) for each in consumers_of(scheme)]

    assert parameters
    assert all(each == ["self", "message"] for each in parameters)


@pytest.mark.requirement("B-21")
def test_it_is_part_of_what_a_consumer_is() -> None:
    assert list(signature(Consumer.nack).parameters) == ["self", "message"]
    assert iscoroutinefunction(AsyncConsumer.nack)
