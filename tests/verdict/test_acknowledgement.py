"""Implicit settlement: a handler returns or raises, and the pump settles, once and after it."""

import asyncio
import logging

import pytest

from pump.attribute import Attribute, Rest, Steps
from pump.clock import Signal
from pump.errors import DontAckAction, LeaseLost, RejectMessageAction, TransportError
from support.pump_fixtures import Pumping
from support.pumps import Order, Outcomes, numbers


@pytest.mark.requirement("E-19")
def test_a_return_is_exactly_one_acknowledgement_after_the_handler_has_ended(pumping: Pumping) -> None:
    order: list[str] = []

    async def slowly() -> None:
        await asyncio.sleep(5)
        order.append("handler ended")

    def body(_: Order) -> object:
        if bench._pumps[0].plan.rules.pump == "proactor":
            return slowly()
        order.append("handler ended")
        return None

    bench = pumping(body)
    bench.broker.on_call = lambda name: order.append(name) if name == "acknowledge" else None
    bench.post_orders(1)

    bench.run()

    assert order == ["handler ended", "acknowledge"]
    assert bench.calls == ["acknowledge"]


@pytest.mark.requirement("E-29")
def test_each_delivery_is_one_invocation(pumping: Pumping) -> None:
    body = Outcomes(ValueError("a"), DontAckAction(), RejectMessageAction("c"))
    bench = pumping(body)
    bench.post_orders(1)
    bench.run(turns=3)

    received = [message for name, arguments in bench.broker.calls if name == "reject" for message in arguments[:1]]

    assert body.runs == received[0].deliveries == 3


@pytest.mark.requirement("E-22")
@pytest.mark.parametrize("leases", [True, False])
def test_an_acknowledgement_that_fails_is_told_and_is_no_success(pumping: Pumping, *, leases: bool) -> None:
    body = Outcomes(None)
    bench = pumping(body, capabilities={"leases": leases}, lease=5.0)
    error = TransportError("the line is cut")
    bench.broker.break_down("acknowledge", error)
    bench.broker.break_down("extend", error)
    bench.post_orders(1)

    bench.run(turns=1)

    (failed,) = [fields for event, fields in bench.events if event == "settle_failed"]
    assert isinstance(failed["error"], LeaseLost if leases else TransportError)
    assert bench.acknowledged == []
    assert any(each.levelno == logging.ERROR and "Settling message failed" in each.getMessage() for each in bench.logs)


@pytest.mark.requirement("E-22")
@pytest.mark.parametrize("times", [1, 5, 12])
def test_a_run_whose_acknowledgement_failed_is_not_held_against_the_message(pumping: Pumping, times: int) -> None:
    body = Outcomes(None)
    bench = pumping(body, capabilities={"leases": False}, max_attempts=2)
    bench.broker.fail("acknowledge", *[TransportError("cut")] * times)
    bench.post_orders(1)

    bench.run()

    assert body.runs == times + 1
    assert numbers(bench.acknowledged) == [1]
    assert bench.dead_letters == []


@pytest.mark.requirement("E-22")
def test_an_acknowledgement_is_tried_again_while_the_lease_lasts(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body)
    bench.broker.fail("acknowledge", TransportError("a"), TransportError("b"))
    bench.post_orders(1)

    bench.run()

    assert body.runs == 1
    assert bench.calls == ["acknowledge"]
    assert bench.broker.named("acknowledge") == ["acknowledge"] * 3


@pytest.mark.requirement("E-23")
@pytest.mark.parametrize("call", ["nack", "requeue", "reject"])
def test_when_settling_fails_too_both_errors_are_told(pumping: Pumping, call: str) -> None:
    original = ValueError("the handler's own")
    settings = {"nack": "dont_ack", "requeue": "retry", "reject": "reject"}
    bench = pumping(Outcomes(original), on_unhandled=settings[call], capabilities={"leases": False})
    bench.broker.fail(call, TransportError("the line is cut"))
    bench.post_orders(1)

    bench.run(turns=1)

    logged = [each.exc_info[1] for each in bench.logs if each.exc_info]
    (failed,) = [each for each in logged if isinstance(each, TransportError)]
    assert original in logged
    assert "the line is cut" in str(failed)
    assert original in chain(failed)


def chain(error: BaseException | None) -> list[BaseException]:
    """An error, and whatever led to it."""
    return [] if error is None else [error, *chain(error.__context__ or error.__cause__)]


@pytest.mark.requirement("E-24")
@pytest.mark.parametrize("outcome", [None, ValueError("any"), DontAckAction()], ids=["success", "error", "decision"])
def test_without_auto_ack_nothing_is_said_to_the_broker(pumping: Pumping, outcome: BaseException | None) -> None:
    bench = pumping(Outcomes(outcome), auto_ack=False)
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.broker.named("acknowledge", "nack", "requeue", "reject", "hand_back") == []
    assert bench.broker.bus.locked("Order") == 1


class Skips(Attribute):
    """Answers instead of the handler, except for order 0."""

    def around(self, request: object, rest: Rest) -> Steps:
        if request != Order(0):
            return rest.skip()
        return (yield from rest(request))


@pytest.mark.requirement("E-24")
@pytest.mark.parametrize("auto_ack", [True, False])
def test_what_an_attribute_answers_is_settled_as_if_the_handler_had_returned(
    pumping: Pumping, *, auto_ack: bool
) -> None:
    body = Outcomes(None)
    bench = pumping(body, Skips(), auto_ack=auto_ack)
    bench.post_orders(1)

    bench.run(turns=1)

    settled = bench.broker.named("acknowledge", "nack", "requeue", "reject", "hand_back")
    assert body.runs == 0
    assert settled == (["acknowledge"] if auto_ack else [])
    assert bench.broker.bus.locked("Order") == (0 if auto_ack else 1)


@pytest.mark.requirement("E-24")
def test_without_auto_ack_the_message_comes_again_when_its_lease_is_over(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body, auto_ack=False, lease=20)
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=2)

    assert body.runs == 2
    assert bench.clock.monotonic() - began == pytest.approx(20, abs=1)


@pytest.mark.requirement("E-24")
def test_without_auto_ack_an_interrupt_stops_the_pump_all_the_same(pumping: Pumping) -> None:
    bench = pumping(Outcomes(KeyboardInterrupt()), auto_ack=False)
    bench.post_orders(1)

    bench.run(seconds=5)

    assert bench.stopped is not None


def test_a_long_handler_keeps_its_message(pumping: Pumping) -> None:
    """Its lease is renewed as long as it runs: five leases, one run."""
    body = Outcomes(None)

    async def long() -> None:
        await asyncio.sleep(150)

    def handle(order: Order) -> object:
        body(order)
        if bench._pumps[0].plan.rules.pump == "proactor":
            return long()
        bench.clock.wait(Signal(), 150)
        return None

    bench = pumping(handle, lease=30)
    bench.post_orders(1)

    bench.run()

    assert body.runs == 1
    assert numbers(bench.acknowledged) == [1]
    assert len(bench.broker.named("extend")) >= 5


def test_a_message_whose_lease_was_lost_is_not_settled(pumping: Pumping) -> None:
    """What the handler did is not undone; no verdict is sent, since it would hit another delivery."""
    body = Outcomes(None)

    async def long() -> None:
        await asyncio.sleep(150)

    def handle(order: Order) -> object:
        body(order)
        if body.runs > 1:
            return None
        if bench._pumps[0].plan.rules.pump == "proactor":
            return long()
        bench.clock.wait(Signal(), 150)
        return None

    bench = pumping(handle, lease=30)
    bench.broker.fail("extend", LeaseLost("gone"))
    bench.post_orders(1)

    bench.run()

    assert body.runs == 2
    assert numbers(bench.acknowledged) == [1]
    assert bench.unacceptable == 0
