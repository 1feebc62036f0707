import asyncio
import logging
from dataclasses import dataclass

import pytest

from pump.clock import ManualClock
from pump.errors import DontAckAction
from pump.handlers import RequestLogging
from support.pipelines import Failing, Harness


@dataclass
class Order:
    card: str = "4111 1111 1111 1111"


WHERE = "(message m-1, channel orders, handler Handler)"


def test_begin_and_end_are_logged_with_the_time_it_took(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def body(request: object) -> None:
        assert isinstance(harness.clock, ManualClock)
        harness.clock.advance(1.5)

    harness.around(RequestLogging(), body)(Order())

    assert [record.getMessage() for record in caplog.records] == [
        f"Handling Order {WHERE}",
        f"Handled Order after 1.500 s {WHERE}",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert caplog.records[0].__dict__["message_id"] == "m-1"
    assert caplog.records[0].__dict__["channel"] == "orders"


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ValueError("4111 1111 1111 1111"), logging.WARNING),
        (asyncio.CancelledError(), logging.WARNING),
        (DontAckAction("later"), logging.INFO),
    ],
)
def test_a_failure_is_logged_without_the_request_and_without_the_errors_text(
    harness: Harness, caplog: pytest.LogCaptureFixture, error: BaseException, level: int
) -> None:
    caplog.set_level(logging.INFO)

    with pytest.raises(type(error)):
        harness.around(RequestLogging(), Failing(error))(Order())

    assert caplog.records[-1].getMessage() == f"{type(error).__name__} from Order after 0.000 s {WHERE}"
    assert caplog.records[-1].levelno == level
    assert "4111" not in caplog.text


def test_the_level_can_be_chosen(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    harness.around(RequestLogging(logging.DEBUG), Failing())()

    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_a_failure_is_never_logged_below_the_level(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its own
        harness.around(RequestLogging(logging.ERROR), Failing(ValueError()))()

    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_the_body_is_logged_when_asked_for_and_cut(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    harness.around(RequestLogging(include_body=True), Failing())(Order("x" * 5000 + "%s"))

    first = caplog.records[0].getMessage()
    assert first.startswith("Handling Order: Order(card='xxx")
    assert len(first) < 1200


def test_outside_of_any_dispatch_there_is_no_message_to_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness = Harness("blocking")
    handle = RequestLogging()(harness.handler(lambda _: None))

    harness.bound(handle, channel="")("tea")

    assert "(message -, channel -, handler Handler)" in caplog.text


def test_a_request_that_cannot_be_shown_is_handled_all_the_same(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    class Secretive:
        def __repr__(self) -> str:
            raise ValueError

    caplog.set_level(logging.INFO)

    assert harness.around(RequestLogging(include_body=True), Failing())(Secretive()) == "done"
    assert "Handling Secretive: its repr raised ValueError" in caplog.text


def test_nothing_is_logged_below_the_loggers_own_level(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    assert harness.around(RequestLogging(), Failing())() == "done"
    assert caplog.records == []
