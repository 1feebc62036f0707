"""What a DontAckAction does, in every kind of pump: the message stays with the broker, and no attempt is counted."""

import asyncio
import logging
from contextlib import ExitStack

import pytest

from pump.clock import ManualClock
from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    MessageAction,
    RejectMessageAction,
)
from pump.handlers import DontAckOnError, FeatureSwitch
from pump.subscription import Subscription
from support.pump_fixtures import Pumping
from support.pumps import PROACTOR, Bench, Broker, Kind, Order, Outcomes, consuming, numbers

NAMED = "orders.place"


def fails(_: object) -> object:
    raise DontAckAction


@pytest.mark.requirement("B-01")
def test_it_is_a_decision_like_the_other_three() -> None:
    bases = {action.__bases__ for action in (DeferMessageAction, RejectMessageAction, InvalidMessageAction)}

    assert DontAckAction.__bases__ == (MessageAction,)
    assert bases == {(MessageAction,)}


@pytest.mark.requirement("B-01")
def test_its_reason_and_its_cause_are_optional() -> None:
    bare = DontAckAction()
    with pytest.raises(DontAckAction) as caught:
        raise DontAckAction("closed for today") from ValueError("cause")

    assert (bare.reason, bare.__cause__) == ("", None)
    assert caught.value.reason == "closed for today"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.requirement("B-02", "B-03", "E-29")
def test_the_message_is_not_acknowledged_and_the_pump_goes_on(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction(), None)
    bench = pumping(body)
    bench.post_orders(1)
    bench.run(turns=1)
    after_the_first = bench.calls

    bench.post_orders(2)
    bench.run()

    assert after_the_first == ["nack"]
    assert numbers(bench.acknowledged) == [1, 2]
    assert body.runs == 3
    assert bench.broker.named("acknowledge", "nack") == ["nack", "acknowledge", "acknowledge"]


@pytest.mark.requirement("B-04")
@pytest.mark.parametrize("times", [1, 2, 5])
def test_each_counts_as_unacceptable_once(pumping: Pumping, times: int) -> None:
    bench = pumping(Outcomes(*[DontAckAction()] * times, None))
    bench.post_orders(1)

    bench.run(turns=times + 1)

    assert bench.unacceptable == times
    assert numbers(bench.acknowledged) == [1]


@pytest.mark.requirement("B-05")
def test_the_cause_is_logged_with_message_channel_and_handler(pumping: Pumping) -> None:
    cause = ValueError("the database is away")

    def body(_: object) -> None:
        raise DontAckAction("later") from cause

    bench = pumping(body)
    bench.post_orders(1)
    bench.run(turns=1)

    (record,) = [each for each in bench.logs if "Not acknowledging" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    assert record.exc_info[1] is cause
    assert "order-1" in record.getMessage()
    assert "Order" in record.getMessage()
    assert vars(record)["message_id"] == "order-1"
    assert vars(record)["channel"] == "Order"
    assert vars(record)["handler"] in record.getMessage()


@pytest.mark.requirement("B-05")
def test_without_a_cause_there_is_still_one_record(pumping: Pumping) -> None:
    bench = pumping(fails, may_block=True)
    bench.post_orders(1)

    bench.run(turns=1)

    records = [each for each in bench.logs if each.levelno >= logging.WARNING]
    assert [each.getMessage().split(" (")[0] for each in records] == ["Not acknowledging message; next try in 1 s"]
    assert not records[0].exc_info or records[0].exc_info[1] is None


def test_a_subscription_that_did_not_declare_it_is_told_of_once(pumping: Pumping) -> None:
    bench = pumping(fails)
    bench.post_orders(1)

    bench.run(turns=3)

    assert sum("may_block=True" in each for each in bench.said) == 1


@pytest.mark.parametrize("options", [{"may_block": True}, {"on_unhandled": "dont_ack"}])
def test_a_subscription_that_declared_it_is_not_told_of(pumping: Pumping, options: dict[str, object]) -> None:
    bench = pumping(fails, **options)
    bench.post_orders(1)

    bench.run(turns=3)

    assert not any("may_block=True" in each for each in bench.said)


# -- the delay


@pytest.mark.requirement("B-06")
def test_the_pump_waits_a_second_once_before_it_goes_on(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction(), None))
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=2)

    assert list(bench.clock.waits).count(1.0) == 1
    assert bench.clock.monotonic() - began == pytest.approx(1.0, abs=0.01)


@pytest.mark.requirement("B-06")
@pytest.mark.parametrize("delay", [0.25, 5, 90])
def test_the_delay_is_the_subscriptions(pumping: Pumping, delay: float) -> None:
    bench = pumping(Outcomes(DontAckAction(), None), dont_ack_delay=delay)
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=2)

    assert bench.clock.monotonic() - began == pytest.approx(delay, abs=0.01)


@pytest.mark.requirement("B-06")
def test_a_delay_of_nothing_is_allowed(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction(), None), dont_ack_delay=0)
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=2)

    assert bench.clock.monotonic() == began
    assert numbers(bench.acknowledged) == [1]


@pytest.mark.requirement("B-06")
def test_a_waiting_proactor_does_not_block_its_loop() -> None:
    clock = ManualClock()
    ticks = 0

    async def consume() -> None:
        nonlocal ticks
        async with consuming(PROACTOR, fails, Broker(clock), clock=clock) as running:
            await running.post_async(Order())
            while ticks < 100 or 1.0 not in clock.waits:
                await asyncio.sleep(0)
                ticks += 1

    asyncio.run(consume())

    assert ticks >= 100
    assert list(clock.waits).count(1.0) == 1


@pytest.mark.requirement("B-07")
@pytest.mark.parametrize(
    "outcome",
    [None, RejectMessageAction("no"), InvalidMessageAction("wrong"), DeferMessageAction(0)],
    ids=["returned", "rejected", "invalid", "deferred"],
)
def test_nothing_else_makes_the_pump_wait(pumping: Pumping, outcome: BaseException | None) -> None:
    bench = pumping(Outcomes(outcome))
    bench.post_orders(1)
    began = bench.clock.monotonic()

    bench.run(turns=1)

    assert bench.clock.monotonic() == began
    assert 1.0 not in bench.clock.waits


@pytest.mark.requirement("B-09")
def test_a_message_that_always_fails_is_looked_at_once_a_second(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction())
    bench = pumping(body)
    bench.post_orders(1)

    bench.run(seconds=10)

    assert 10 <= body.runs <= 11


def test_the_delay_may_grow_up_to_a_limit(pumping: Pumping) -> None:
    bench = pumping(fails, dont_ack_delay=1, dont_ack_longest_delay=5)
    bench.post_orders(1)

    bench.run(turns=5)

    assert [call.delay for call in bench.calls] == [1, 2, 4, 5, 5]


def test_a_message_that_was_left_too_often_is_a_dead_letter_where_that_is_wanted(pumping: Pumping) -> None:
    bench = pumping(fails, dont_ack_limit=2)
    bench.post_orders(1)

    bench.run(turns=3)

    assert [each.reason for each in bench.dead_letters] == ["not acknowledged too often"]
    assert bench.calls == ["nack", "nack", "reject"]


def test_it_spends_no_attempt_however_often(pumping: Pumping) -> None:
    bench = pumping(Outcomes(*[DontAckAction()] * 50, ValueError("a"), ValueError("b"), None), max_attempts=3)
    bench.post_orders(1)

    bench.run(seconds=3600)

    assert numbers(bench.acknowledged) == [1]
    assert len(bench.nacked) == 50
    assert len(bench.deferred) == 2


# -- by attribute


@pytest.mark.requirement("B-12")
def test_a_feature_that_is_off_leaves_its_messages_until_it_is_on(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body, FeatureSwitch(NAMED, dont_ack=True), switches={NAMED: False})
    bench.post_orders(1, 2, key="k")
    bench.run()
    left, runs = numbers(bench.nacked), body.runs

    bench.switches.set(NAMED, on=True)
    bench.run()

    assert (left, runs) == ([1], 0)
    assert numbers(bench.acknowledged) == [1, 2]
    assert bench.pending == []


@pytest.mark.requirement("B-13")
def test_a_feature_that_is_off_consumes_silently_by_default(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body, FeatureSwitch(NAMED), switches={NAMED: False})
    bench.post_orders(1, 2)

    bench.run()

    assert body.runs == 0
    assert numbers(bench.acknowledged) == [1, 2]


@pytest.mark.requirement("B-14")
def test_dont_ack_on_error_keeps_the_original_as_the_cause(pumping: Pumping) -> None:
    original = ValueError("down")
    bench = pumping(Outcomes(original), DontAckOnError())
    bench.post_orders(1)

    with pytest.raises(DontAckAction) as caught:
        bench.handle(Order())
    bench.run()

    assert caught.value.__cause__ is original
    assert numbers(bench.nacked) == [1]


@pytest.mark.requirement("B-15")
def test_dont_ack_on_error_lets_other_decisions_pass(pumping: Pumping) -> None:
    bench = pumping(Outcomes(RejectMessageAction("no such tea")), DontAckOnError())
    bench.post_orders(1)

    bench.run()

    assert bench.nacked == []
    assert [each.reason for each in bench.dead_letters] == ["no such tea"]


@pytest.mark.requirement("B-15")
def test_dont_ack_on_error_lets_cancellation_pass(kind: Kind) -> None:
    handle = kind.handler(Outcomes(asyncio.CancelledError()), DontAckOnError())
    with ExitStack() as stack, pytest.raises(asyncio.CancelledError):
        stack.enter_context(Bench(handle, **kind.options)).handle(Order())


# -- elsewhere


@pytest.mark.requirement("B-36")
def test_no_option_of_a_subscription_is_about_a_transports_nack() -> None:
    assert [name for name in Subscription.__dataclass_fields__ if "nack" in name] == []


@pytest.mark.requirement("B-36")
def test_other_decisions_mean_the_same_beside_it(pumping: Pumping) -> None:
    decisions = {
        1: Outcomes(DontAckAction(), RejectMessageAction("no")),
        2: Outcomes(DontAckAction(), DeferMessageAction(7), None),
        3: Outcomes(DontAckAction(), InvalidMessageAction("wrong")),
    }
    bench = pumping(lambda order: decisions[order.number](order))
    bench.post_orders(1, 2, 3)

    bench.run(seconds=60)

    assert [each.reason for each in bench.dead_letters] == ["no"]
    assert [each.reason for each in bench.invalid] == ["wrong"]
    assert numbers(bench.deferred) == numbers(bench.acknowledged) == [2]


def test_listeners_are_told_of_each_nack_and_its_channel(pumping: Pumping) -> None:
    cause = ValueError("down")

    def body(_: object) -> None:
        raise DontAckAction from cause

    bench = pumping(body)
    bench.post_orders(1)
    bench.run(turns=2)

    told = [fields for event, fields in bench.events if event == "nack"]
    assert [fields["channel"] for fields in told] == ["Order", "Order"]
    assert all(fields["error"] is cause for fields in told)
