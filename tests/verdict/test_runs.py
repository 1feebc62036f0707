"""What the judge notes of a run: which message is in hand, and what an unsettled or a lost one costs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pump.errors import DontAckAction, LeaseLost, RejectMessageAction, TransportError, Undecodable
from pump.in_hand.book import Book, Record
from pump.in_hand.folder import StateFolder
from pump.in_hand.gate import Gate
from pump.in_hand.slots import NOWHERE, CrashGuard
from pump.settling import ACKNOWLEDGE, HAND_BACK, UNSETTLED
from support.court import Court, Sample, message


class NotedHand:
    """A hand that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def fill(self, *noted: object) -> int:
        self.told.append(("fill", *noted))
        return 7

    def clear(self, place: int) -> None:
        self.told.append(("clear", place))


@pytest.fixture
def hand() -> NotedHand:
    return NotedHand()


@pytest.fixture
def guarded(hand: NotedHand) -> Court:
    parts: Any = (hand, Gate(lambda: 0), None)
    return Court(guard=CrashGuard(*parts))


# -- in hand


def test_a_run_is_noted_from_its_beginning_to_its_end(guarded: Court, hand: NotedHand) -> None:
    delivered = message("m-1")

    place = guarded.judge.begins(delivered)
    assert hand.told == [("fill", "m-1")]
    guarded.judge.ends(place, delivered, guarded.judge.handled(delivered))

    assert hand.told[1:] == [("clear", 7)]


@pytest.mark.parametrize(
    ("options", "noted"), [({"attempts": 2}, (2, 0, 0)), ({"deliveries": 3}, (0, 0, 2))], ids=["attempts", "deliveries"]
)
def test_what_is_known_of_earlier_runs_is_noted_too(
    guarded: Court, hand: NotedHand, options: dict[str, int], noted: tuple[int, ...]
) -> None:
    guarded.judge.begins(message("m-1", **options))

    assert hand.told == [("fill", "m-1", *noted)]


def test_so_is_what_only_this_process_knows(guarded: Court, hand: NotedHand) -> None:
    guarded.ledger.count(message("m-1"), 1)

    guarded.judge.begins(message("m-1"))

    assert hand.told == [("fill", "m-1", 1, 0, 0)]


def test_without_a_guard_nothing_is_noted() -> None:
    assert Court().judge.begins(message()) == NOWHERE


# -- unsettled


def test_a_handler_that_returned_costs_nothing_to_remember() -> None:
    court = Court()

    assert court.judge.handled(message()) is ACKNOWLEDGE

    assert len(court.ledger) == 0


def test_one_that_settled_its_message_costs_nothing_either() -> None:
    court, delivered = Court(), message(explicit=True)
    delivered.claim()

    assert court.judge.handled(delivered) is UNSETTLED

    assert len(court.ledger) == 0


def test_one_that_left_its_message_unsettled_spends_no_attempt() -> None:
    court = Court()

    assert court.judge.handled(message(explicit=True, deliveries=3)) is UNSETTLED

    assert court.ledger.past_runs(message(deliveries=4)) == (0, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_the_pump_settles_what_an_attribute_answered_unless_it_is_lost(*, lost: bool) -> None:
    court, delivered = Court(), message(explicit=True, lost=lost)
    delivered.answered = True

    assert court.judge.handled(delivered) is (UNSETTLED if lost else ACKNOWLEDGE)

    assert delivered.settled is not lost


def test_it_settles_an_answered_message_once() -> None:
    court, delivered = Court(), message(explicit=True)
    delivered.answered = True
    delivered.claim()

    assert court.judge.handled(delivered) is UNSETTLED


# -- lost


@pytest.mark.parametrize(("blocked_seconds", "attempts"), [(0.0, 0), (45.0, 1)])
def test_a_handler_that_was_ended_because_its_message_was_lost_spends_an_attempt_if_it_blocked_the_loop(
    blocked_seconds: float, attempts: int
) -> None:
    court, delivered = Court(), message(lost=True)
    delivered.blocked_seconds = blocked_seconds

    assert court.judge.failed(delivered, asyncio.CancelledError()) is UNSETTLED

    assert court.ledger.past_runs(message()).attempts == attempts


@pytest.mark.parametrize(("blocked_seconds", "attempts"), [(0.0, 0), (45.0, 1)])
def test_so_does_one_whose_acknowledgement_came_too_late(blocked_seconds: float, attempts: int) -> None:
    court, delivered = Court(), message()
    delivered.blocked_seconds = blocked_seconds

    court.turn_that_cannot_be_settled(delivered, None, LeaseLost("too late"))

    assert court.ledger.past_runs(message()).attempts == attempts


# -- ended by a stop


def test_a_handler_that_failed_because_a_stop_ended_it_spends_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    court, delivered = Court(), message()
    delivered.ended = True

    assert court.judge.failed(delivered, OSError("cut off")) is HAND_BACK

    assert court.ledger.past_runs(message()) == (0, 0)
    assert "Handler ended by the stop" in caplog.text


def test_one_whose_error_is_that_of_the_stop_itself_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    court, delivered = Court(cancelled=lambda: True), message()
    delivered.ended = True

    assert court.judge.failed(delivered, asyncio.CancelledError()) is HAND_BACK

    assert caplog.text == ""


@pytest.mark.parametrize("raised", [RejectMessageAction("no"), BaseExceptionGroup("all", [RejectMessageAction("no")])])
def test_a_decision_counts_although_a_stop_ended_its_handler(raised: BaseException) -> None:
    court, delivered = Court(), message()
    delivered.ended = True

    assert court.turn(delivered, raised) == ("reject", "delivery error", "no")


# -- unreadable, and not mapped


@pytest.mark.parametrize("attempts", [0, 1])
def test_an_unreadable_message_was_not_run(attempts: int) -> None:
    court = Court()

    court.turn(message(fault="no header", attempts=attempts))

    assert court.rejection.attempts == attempts


def test_a_message_that_its_mapper_did_not_accept_was_run() -> None:
    court = Court()

    court.turn(message(attempts=1), Undecodable("no sku"))

    assert court.rejection.attempts == 2


# -- refusing everything for a while


@pytest.mark.parametrize(("request_of", "calls"), [(Sample, ["shut", "nack"]), (lambda _: Sample, ["nack"])])
def test_an_attribute_that_refuses_for_a_while_shuts_a_channel_of_one_request_only(
    request_of: Any, calls: list[str]
) -> None:
    court = Court(request=request_of, may_block=True)

    court.turn(message(), DontAckAction(until=lambda: False))

    assert [call[0] for call in court.spy.calls] == calls
    assert court.judge.unacceptable == 0


# -- after a death, and after failures to settle


def after_a_death(tmp_path: Path, attempts: int, **rules: Any) -> Court:
    """A process that follows one which died in this run of message 1."""
    Book(StateFolder(tmp_path)).channel("samples").write({"1": Record(attempts=attempts, died=True)})
    return after_a_restart(tmp_path, **rules)


def after_a_restart(tmp_path: Path, **rules: Any) -> Court:
    """A process that follows another one."""
    return Court(book=Book(StateFolder(tmp_path)).channel("samples"), **rules)


def test_that_the_process_died_stays_known_until_the_rejection_is_carried_out(tmp_path: Path) -> None:
    court = after_a_death(tmp_path, attempts=3)

    court.turn_that_cannot_be_settled(message(), None, TransportError("down"))

    assert court.ledger.died(message())


@pytest.mark.parametrize(
    ("error", "spent"), [(RejectMessageAction("sold out"), 1), (ValueError("bad"), 2)], ids=["a decision", "an error"]
)
def test_a_run_that_was_rejected_by_decision_spends_no_attempt_if_its_dead_letter_is_not_stored(
    tmp_path: Path, error: Exception, spent: int
) -> None:
    court = after_a_death(tmp_path, 1, on_unhandled="reject")

    court.turn_that_cannot_be_settled(message(), error, TransportError("down"))

    assert after_a_restart(tmp_path).ledger.past_runs(message()).attempts == spent


def test_it_is_no_longer_known_once_a_run_has_ended_in_another_way(tmp_path: Path) -> None:
    court = after_a_death(tmp_path, attempts=2)

    court.turn_that_cannot_be_settled(message(), ValueError("bad"), TransportError("down"))

    assert not court.ledger.died(message())


def test_a_message_that_is_done_makes_the_next_waits_short_again() -> None:
    court, error = Court(), TransportError("down")
    for _ in range(5):
        court.turn_that_cannot_be_settled(message(), None, error)

    court.turn(message())
    court.turn_that_cannot_be_settled(message(), None, error)

    assert court.judge.disconnected(error) == 1.0
