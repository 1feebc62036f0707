"""What the judge logs, what it tells listeners, and what a dead letter says."""

import logging

import pytest

from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
    TransportError,
)
from support.court import Court, message


@pytest.mark.requirement("B-05")
def test_a_dont_ack_is_logged_with_its_cause_and_told_to_the_listeners(caplog: pytest.LogCaptureFixture) -> None:
    court, action = Court(may_block=True), DontAckAction("not now")
    action.__cause__ = ValueError("why")

    court.turn(message("m-1"), action)
    court.turn(message("m-2"), DontAckAction())

    first, second = caplog.records
    assert (first.levelname, first.exc_info and first.exc_info[1]) == ("WARNING", action.__cause__)
    assert "message m-1, channel samples" in first.getMessage()
    assert second.exc_info is None
    assert court.events == ["nack", "nack"]


def test_a_dont_ack_that_was_not_declared_is_told_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    court = Court(may_block=False)

    for name in "abc":
        court.turn(message(name), DontAckAction())

    assert caplog.text.count("may_block=True") == 1


@pytest.mark.parametrize(
    ("error", "reason", "description", "kept"),
    [
        (RejectMessageAction("no stock"), "no stock", "no stock", RejectMessageAction),
        (InvalidMessageAction("no sku"), "no sku", "no sku", InvalidMessageAction),
        (ValueError("bad"), "attempts exhausted", "", ValueError),
        (DeferMessageAction(1, "later"), "attempts exhausted", "later", DeferMessageAction),
    ],
)
def test_a_rejection_says_why(error: Exception, reason: str, description: str, kept: type[BaseException]) -> None:
    court, delivered = Court(), message(attempts=2)
    delivered.handler = "PlaceOrderHandler"
    court.clock.advance(5)

    court.turn(delivered, error)

    rejection = court.rejection
    assert (rejection.reason, rejection.description, type(rejection.error)) == (reason, description, kept)
    assert (rejection.handler, rejection.attempts) == ("PlaceOrderHandler", 3)
    assert rejection.first_failure == rejection.last_failure == court.clock.wall()


def test_a_rejection_keeps_the_cause_of_a_decision() -> None:
    court, action, cause = Court(), RejectMessageAction("no"), KeyError("sku")
    action.__cause__ = cause

    court.turn(message(), action)

    assert court.rejection.error is cause


def test_decisions_of_ones_own_need_no_super_call_and_reasons_no_text() -> None:
    class OutOfStock(RejectMessageAction):
        def __init__(self, sku: str) -> None:
            self.sku = sku

    class Later(DeferMessageAction):
        def __init__(self) -> None:
            pass

    court = Court()

    assert court.turn(message("1"), OutOfStock("tea")) == ("reject", "delivery error", "rejected")
    assert court.turn(message("2"), Later()) == ("requeue", 1.0, 1)
    court.turn(message("3"), RejectMessageAction(ValueError("no tea")))  # type: ignore[arg-type] # as users do
    assert court.rejection.reason == "no tea"


def test_settling_that_failed_is_logged_with_what_the_handler_raised(caplog: pytest.LogCaptureFixture) -> None:
    court, raised, error = Court(), ValueError("bad"), TransportError("cut off")

    court.turn_that_cannot_be_settled(message(), raised, error)
    court.turn_that_cannot_be_settled(message("2"), None, TransportError("cut off"))

    assert error.__context__ is raised
    assert caplog.text.count("Settling message failed: cut off") == 2
    assert court.events == ["settle_failed", "settle_failed"]


# -- groups, and what else is judged


def test_an_error_is_an_error_though_the_pump_is_being_cancelled() -> None:
    assert Court(cancelled=lambda: True).turn(message(), ValueError("bad")) == ("requeue", 1.0, 1)


def test_of_two_decisions_of_one_kind_the_first_is_taken() -> None:
    court = Court()

    court.turn(
        message(), _grouped(ValueError("x"), _grouped(RejectMessageAction("first")), RejectMessageAction("second"))
    )

    assert court.rejection.reason == "first"


@pytest.mark.requirement("B-16")
def test_what_is_no_decision_in_a_group_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Court().turn(message("m-1"), _grouped(DontAckAction(), _grouped(ValueError("one"), KeyError("two"))))

    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in failed if record.exc_info] == [ValueError, KeyError]
    assert all("message m-1, channel samples" in record.getMessage() for record in failed)


def _grouped(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", list(errors))
