"""A pump that meets too many unacceptable messages stops, and says so; every kind of pump."""

import logging

import pytest

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
)
from pump.subscription import OnUnhandled
from pump.verdict import Stopped
from support.pump_fixtures import Pumping
from support.pumps import Outcomes, numbers


@pytest.mark.requirement("B-10", "B-03")
def test_reaching_the_limit_stops_the_pump_and_lets_go_of_the_channel(pumping: Pumping) -> None:
    body = Outcomes(DontAckAction())
    bench = pumping(body, unacceptable_limit=3)
    bench.post_orders(1, 2)

    bench.run(seconds=60)

    bus = bench.broker.bus
    assert bench.stopped is Stopped.LIMIT_EXCEEDED
    assert body.runs == 3
    assert bench.calls == ["nack"] * 3
    assert bench.broker.named("close") == ["close"]
    assert (bus.pending("Order"), bus.locked("Order")) == (2, 0)


@pytest.mark.requirement("B-10")
def test_the_stop_is_an_error_in_the_log_and_told_to_listeners(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction()), unacceptable_limit=1)
    bench.post_orders(1)

    bench.run()

    (record,) = [each for each in bench.logs if each.levelno == logging.ERROR]
    assert record.getMessage() == "pump on Order stops: limit exceeded"
    assert [fields["reason"] for event, fields in bench.events if event == "pump_stopped"] == ["limit exceeded"]


@pytest.mark.requirement("B-11")
@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_is_no_limit(pumping: Pumping, limit: int) -> None:
    body = Outcomes(DontAckAction())
    bench = pumping(body, unacceptable_limit=limit)
    bench.post_orders(1)

    bench.run(turns=100)

    assert body.runs == 100
    assert bench.unacceptable == 100
    assert bench.stopped is None


@pytest.mark.requirement("B-38")
def test_a_window_begins_the_count_anew(pumping: Pumping) -> None:
    bench = pumping(
        Outcomes(*[DontAckAction()] * 4, None), unacceptable_limit=3, unacceptable_window=1, dont_ack_delay=0
    )
    bench.post_orders(1)

    bench.run(turns=2)
    first = bench.unacceptable
    bench.advance(1.1)
    bench.run(turns=2)

    assert (first, bench.unacceptable) == (2, 2)
    assert bench.stopped is None


@pytest.mark.requirement("B-38")
def test_within_the_window_the_limit_holds(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction()), unacceptable_limit=3, unacceptable_window=1, dont_ack_delay=0)
    bench.post_orders(1)

    bench.run(turns=2)
    bench.advance(0.5)
    bench.run(turns=2)

    assert bench.stopped is Stopped.LIMIT_EXCEEDED


@pytest.mark.requirement("B-04")
@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (None, 0),
        (DontAckAction(), 1),
        (DeferMessageAction(1), 0),
        (RejectMessageAction("no"), 1),
        (InvalidMessageAction("wrong"), 1),
        (ValueError("any"), 1),
        (ConfigurationError("a handler's own"), 1),
    ],
    ids=["returned", "left", "deferred", "rejected", "invalid", "unhandled", "configuration"],
)
def test_what_counts(pumping: Pumping, outcome: BaseException | None, counted: int) -> None:
    bench = pumping(Outcomes(outcome))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.unacceptable == counted


def test_a_deferral_counts_when_the_budget_is_spent(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DeferMessageAction(1)), max_attempts=2)
    bench.post_orders(1)

    bench.run()

    assert bench.unacceptable == 1
    assert [each.reason for each in bench.dead_letters] == ["attempts exhausted"]


@pytest.mark.parametrize("setting", ["retry", "dont_ack", "reject", "acknowledge", "nak"])
def test_an_unhandled_error_counts_whatever_becomes_of_its_message(pumping: Pumping, setting: OnUnhandled) -> None:
    bench = pumping(Outcomes(ValueError("any")), on_unhandled=setting)
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.unacceptable == 1


def test_an_unreadable_message_counts(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.post_raw(b"\xff\xfe")

    bench.run()

    assert bench.unacceptable == 1
    assert len(bench.invalid) == 1


def test_a_success_changes_nothing_of_the_count(pumping: Pumping) -> None:
    bench = pumping(Outcomes(RejectMessageAction("a"), None, RejectMessageAction("b"), None), unacceptable_limit=3)
    bench.post_orders(1, 2, 3, 4)

    bench.run()

    assert bench.unacceptable == 2
    assert numbers(bench.acknowledged) == [2, 4]
