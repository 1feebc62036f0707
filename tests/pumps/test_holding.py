"""Where a broker cannot take a message back, or deliver it later, the pump holds it and presents it again itself."""

from contextlib import ExitStack

import pytest

from pump.errors import DeferMessageAction, DontAckAction, RejectMessageAction, TransportError
from support.pump_fixtures import Pumping
from support.pumps import CONCURRENT, Bench, Kind, Order, Outcomes, consuming, numbers
from support.waiting import eventually

HOLDS = {"nack": "holds", "requeue": "hold"}


def test_a_message_that_is_left_is_presented_again_after_the_delay_and_never_nacked(pumping: Pumping) -> None:
    body, begun = Outcomes(DontAckAction(), DontAckAction(), None), []

    def timed(order: Order) -> object:
        begun.append(bench.clock.monotonic())
        return body(order)

    bench = pumping(timed, capabilities=HOLDS)
    bench.post_orders(1)

    bench.run(turns=3)

    assert bench.calls == ["nack", "nack", "acknowledge"]
    assert bench.broker.named("nack", "requeue", "acknowledge") == ["acknowledge"]
    assert [each - begun[0] for each in begun] == pytest.approx([0, 1, 2], abs=0.01)


def test_a_message_that_is_deferred_is_presented_again_when_it_is_due(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DeferMessageAction(7), None), capabilities=HOLDS)
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run()

    assert bench.broker.named("requeue") == []
    assert 7 <= bench.clock.monotonic() - began < 8
    assert numbers(bench.acknowledged) == [1]


def test_its_budget_is_kept_while_it_is_held(pumping: Pumping) -> None:
    body = Outcomes(ValueError("any"))
    bench = pumping(body, capabilities=HOLDS, max_attempts=3)
    bench.post_orders(1)

    bench.run()

    assert body.runs == 3
    assert [letter.attempts for letter in bench.dead_letters] == [3]


def test_its_lease_is_kept_while_it_is_held(pumping: Pumping) -> None:
    body = Outcomes(DeferMessageAction(200), None)
    bench = pumping(body, capabilities=HOLDS, lease=30)
    bench.post_orders(1)

    bench.run()

    assert body.runs == 2
    assert len(bench.broker.named("extend")) >= 6
    assert bench.bus.pending("Order") == 0


def test_a_held_message_whose_lease_is_lost_is_dropped_and_comes_again_from_the_broker(pumping: Pumping) -> None:
    body = Outcomes(DeferMessageAction(200), None)
    bench = pumping(body, capabilities=HOLDS, lease=30)
    bench.broker.break_down("extend", TransportError("away"))
    bench.post_orders(1)

    bench.run()

    assert body.runs == 2
    assert numbers(bench.acknowledged) == [1]
    assert bench.dead_letters == []


def test_nothing_from_behind_a_held_message_is_handled_first(pumping: Pumping) -> None:
    body = Outcomes(None, DontAckAction(), DontAckAction(), None)
    bench = pumping(body, capabilities={**HOLDS, "blocks": "channel"})
    for number in range(1, 5):
        bench.post(Order(number), key="all of them")

    bench.run(seconds=30)

    assert numbers(body.seen) == [1, 2, 2, 2, 3, 4]


def test_a_message_that_is_always_refused_does_not_keep_others_from_being_received(
    pumping: Pumping,
) -> None:
    def body(order: Order) -> None:
        if order.number == 1:
            raise DontAckAction

    bench = pumping(body, capabilities={**HOLDS, "blocks": "partition"})
    for number in range(1, 4):
        bench.post(Order(number), key=str(number))

    bench.run(seconds=30)

    assert numbers(bench.acknowledged) == [2, 3]


def test_an_ordered_channel_holds_what_is_deferred(pumping: Pumping) -> None:
    body = Outcomes(None, DeferMessageAction(60), None)
    bench = pumping(body, ordered=True)
    bench.post_orders(1, 2, 3, 4)

    bench.run()

    assert numbers(body.seen) == [1, 2, 2, 3, 4]
    assert bench.broker.named("requeue") == []


def test_what_is_held_goes_back_when_the_pump_stops(kind: Kind) -> None:
    body = Outcomes(DeferMessageAction(3600))
    with consuming(kind, body, ordered=True) as dispatcher:
        bus = dispatcher.transport.bus  # type: ignore[attr-defined]
        dispatcher.post(Order(1), id="order-1")
        eventually(lambda: body.runs == 1)
        dispatcher.stop()

    assert [(each.id, each.unexplained) for each in bus.messages("orders")] == [("order-1", 0)]


def test_a_held_message_can_still_be_given_up(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction(), RejectMessageAction("no")), capabilities=HOLDS)
    bench.post_orders(1)

    bench.run(turns=2)

    assert [letter.reason for letter in bench.dead_letters] == ["no"]


# -- waiting


def test_several_that_are_left_at_once_are_no_loop_without_a_wait(benches: ExitStack) -> None:
    """Their tasks wait for the delay and keep every slot, although another message could begin."""
    bench = benches.enter_context(Bench(CONCURRENT.handler(left), in_flight=4, capabilities={"blocks": "nothing"}))
    for number in range(40):
        bench.post(Order(number))

    bench.run(seconds=60)

    assert bench._looks < 2_000


def left(order: Order) -> None:
    if order.number > 10:
        raise DontAckAction


def test_one_that_is_due_and_waits_for_another_is_no_loop_without_a_wait(pumping: Pumping) -> None:
    """The first message is due later than the second, and order is kept between them."""
    delays = {11: 600.0, 12: 5.0}

    def body(order: Order) -> None:
        if delays.get(order.number):
            raise DeferMessageAction(delays.pop(order.number))

    bench = pumping(body, capabilities={"requeue": "hold", "blocks": "channel"})
    bench.post_orders(*range(1, 20))

    bench.run(seconds=900)

    assert len(bench.acknowledged) == 19
    assert bench._looks < 10_000
