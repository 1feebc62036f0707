"""What becomes of a message: the judge as a table, and how long a pump goes on and waits."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    LeaseLost,
    MessageAction,
    RejectMessageAction,
    TransportError,
    Undecodable,
)
from pump.message import Message
from pump.verdict import SetupFault, Stopped, may_release, may_requeue
from support.court import Call, Court, message

ACKNOWLEDGE: Call = ("acknowledge",)
HAND_BACK: Call = ("hand_back",)
UNSETTLED: Call = ("leave_unsettled",)
NACK: Call = ("nack", 1.0)
AGAIN: Call = ("requeue", 1.0, 1)


def rejected(reason: str) -> Call:
    return ("reject", "delivery error", reason)


def unacceptable(reason: str) -> Call:
    return ("reject", "unacceptable", reason)


def grouped(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", list(errors))


def fault() -> BaseException:
    error = SetupFault("no mapper")
    error.__cause__ = ConfigurationError("no mapper")
    return error


Outcome = BaseException | None
Options = Mapping[str, Any]

LAST: Options = {"attempts": 2}
NAK: Options = {"undecodable": "nak"}


def stranger(_: Message) -> str:
    return "a stranger"


TABLE: Sequence[tuple[str, Outcome, Options, Options, Call, int, Stopped | None]] = [
    # what happened, what was raised, the message, the rules, the channel call, counted, stopped
    ("returned", None, {}, {}, ACKNOWLEDGE, 0, None),
    ("returned, in the end", None, LAST, {}, ACKNOWLEDGE, 0, None),
    ("DontAck", DontAckAction(), {}, {}, NACK, 1, None),
    ("DontAck at the last attempt", DontAckAction(), LAST, {}, NACK, 1, None),
    ("DontAck without delay", DontAckAction(), {}, {"dont_ack_delay": 0}, ("nack", 0.0), 1, None),
    ("Defer", DeferMessageAction(), {}, {}, AGAIN, 0, None),
    ("Defer for so long", DeferMessageAction(7), {}, {}, ("requeue", 7.0, 1), 0, None),
    ("Defer at once", DeferMessageAction(0), {}, {}, ("requeue", 0.0, 1), 0, None),
    ("Defer, spent", DeferMessageAction(7), LAST, {}, rejected("attempts exhausted"), 1, None),
    ("Defer, never spent", DeferMessageAction(7), LAST, {"max_attempts": None}, ("requeue", 7.0, 3), 0, None),
    ("Reject", RejectMessageAction("no stock"), {}, {}, rejected("no stock"), 1, None),
    ("Reject without a reason", RejectMessageAction(), {}, {}, rejected("rejected"), 1, None),
    ("Invalid", InvalidMessageAction("no sku"), {}, {}, unacceptable("no sku"), 1, None),
    ("Invalid without a reason", InvalidMessageAction(), {}, {}, unacceptable("invalid"), 1, None),
    ("the pump's own set-up", fault(), {}, {}, ("nack", 0.0), 0, Stopped.CONFIGURATION_ERROR),
    ("a handler's ConfigurationError", ConfigurationError("odd"), {}, {}, AGAIN, 1, None),
    ("an error", ValueError("bad"), {}, {}, AGAIN, 1, None),
    ("an error, spent", ValueError("bad"), LAST, {}, rejected("attempts exhausted"), 1, None),
    ("an error, the only attempt", ValueError("bad"), {}, {"max_attempts": 1}, rejected("attempts exhausted"), 1, None),
    ("an error, never spent", ValueError("bad"), LAST, {"max_attempts": None}, ("requeue", 4.0, 3), 1, None),
    ("an error → dont_ack", ValueError("bad"), {}, {"on_unhandled": "dont_ack"}, NACK, 1, None),
    ("an error → dont_ack, last", ValueError("bad"), LAST, {"on_unhandled": "dont_ack"}, NACK, 1, None),
    ("an error → reject", ValueError("bad"), {}, {"on_unhandled": "reject"}, rejected("ValueError"), 1, None),
    ("an error → acknowledge", ValueError("bad"), LAST, {"on_unhandled": "acknowledge"}, ACKNOWLEDGE, 1, None),
    ("an error → nak", ValueError("bad"), {}, {"on_unhandled": "nak"}, ("requeue", 0.0, 1), 1, None),
    (
        "an error → nak, spent",
        ValueError("bad"),
        LAST,
        {"on_unhandled": "nak"},
        rejected("attempts exhausted"),
        1,
        None,
    ),
    ("a bare StopIteration", StopIteration(), {}, {}, AGAIN, 1, None),
    ("SystemExit", SystemExit(1), {}, {}, AGAIN, 1, None),
    ("GeneratorExit", GeneratorExit(), {}, {}, AGAIN, 1, None),
    ("a foreign cancellation", asyncio.CancelledError(), {}, {}, AGAIN, 1, None),
    ("a foreign one in a group", grouped(asyncio.CancelledError(), ValueError("bad")), {}, {}, AGAIN, 1, None),
    ("a group of errors", grouped(ValueError("a"), ValueError("b")), {}, {}, AGAIN, 1, None),
    ("KeyboardInterrupt", KeyboardInterrupt(), {}, {}, HAND_BACK, 0, Stopped.INTERRUPTED),
    (
        "one in a group",
        grouped(ValueError("a"), grouped(KeyboardInterrupt())),
        {},
        {},
        HAND_BACK,
        0,
        Stopped.INTERRUPTED,
    ),
    ("it cannot be read", None, {"fault": "no header"}, {}, unacceptable("unreadable"), 1, None),
    ("it cannot be read → nak", None, {"fault": "no header"}, NAK, ("requeue", 0.0, 1), 1, None),
    ("it cannot be read → nak, spent", None, {"fault": "x", **LAST}, NAK, rejected("unreadable"), 1, None),
    ("it cannot be mapped", Undecodable("no sku"), {}, {}, unacceptable("no sku"), 1, None),
    ("it cannot be mapped → nak", Undecodable("no sku"), {}, NAK, ("requeue", 0.0, 1), 1, None),
    ("it is refused", None, {}, {"refuses": stranger}, AGAIN, 1, None),
    ("it is refused → nak", None, {}, {"refuses": stranger, "on_unhandled": "nak"}, ("requeue", 0.0, 1), 1, None),
    ("it is refused, spent", None, LAST, {"refuses": stranger}, rejected("a stranger"), 1, None),
    ("it is not refused", None, {}, {"refuses": lambda _: ""}, ACKNOWLEDGE, 0, None),
    ("all attempts known already", None, {"attempts": 3}, {}, rejected("attempts exhausted"), 1, None),
    ("more than all", None, {"attempts": 9}, {}, rejected("attempts exhausted"), 1, None),
    ("all, but there is no limit", None, {"attempts": 9}, {"max_attempts": None}, ACKNOWLEDGE, 0, None),
    ("no run ever ended", None, {"deliveries": 10}, {}, rejected("process died"), 1, None),
    ("all but one delivery lost", None, {"deliveries": 9}, {}, ACKNOWLEDGE, 0, None),
]


@pytest.mark.requirement("B-02", "B-04", "B-19", "B-35")
@pytest.mark.parametrize(
    ("outcome", "row"), [(row[0], row[1:]) for row in TABLE], ids=lambda each: each if isinstance(each, str) else ""
)
def test_what_becomes_of_a_message(
    outcome: str, row: tuple[Outcome, Options, Options, Call, int, Stopped | None]
) -> None:
    raised, delivered, options, call, counted, stopped = row
    court = Court(**options)

    assert court.turn(message(**delivered), raised) == call
    assert court.judge.unacceptable == counted
    assert court.judge.stopped is stopped
    assert court.judge.running is (stopped is None)
    assert court.judge.stopping.is_set() is (stopped is not None)


# -- lost, explicit, not to be settled by the pump

OUTCOMES: Mapping[str, Callable[[], Outcome]] = {
    "returned": lambda: None,
    "error": lambda: ValueError("bad"),
    "defer": DeferMessageAction,
    "dont_ack": DontAckAction,
    "reject": RejectMessageAction,
    "invalid": InvalidMessageAction,
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("auto_ack", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_nothing_is_settled_that_is_lost_or_not_the_pumps_to_settle(
    outcome: str, *, explicit: bool, auto_ack: bool, lost: bool
) -> None:
    court = Court(auto_ack=auto_ack)
    raised = OUTCOMES[outcome]()
    left = lost or not (explicit or auto_ack) or (explicit and raised is None)

    call = court.turn(message(explicit=explicit, lost=lost), raised)

    assert (call == UNSETTLED) is left
    assert court.judge.unacceptable == (0 if left or outcome in {"returned", "defer"} else 1)


@pytest.mark.requirement("E-10")
def test_what_a_handler_raises_after_it_has_settled_its_message_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    court, delivered = Court(), message(explicit=True)
    assert delivered.claim()

    assert court.turn(delivered, ValueError("late")) == UNSETTLED
    assert court.judge.unacceptable == 0
    assert "after the message was settled" in caplog.text


def test_a_handlers_error_settles_a_message_that_it_did_not_settle_and_nobody_else_does_then() -> None:
    court, delivered = Court(), message(explicit=True)

    assert court.turn(delivered, ValueError("bad")) == AGAIN
    assert not delivered.claim()


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (DontAckAction(), NACK),
        (DeferMessageAction(3), ("requeue", 3.0, 1)),
        (RejectMessageAction("no"), rejected("no")),
        (InvalidMessageAction("no"), unacceptable("no")),
    ],
)
def test_an_explicit_decision_is_judged_as_one_that_is_raised(action: MessageAction, call: Call) -> None:
    court, delivered = Court(), message(explicit=True)

    court.judge.decided(delivered, action).settle(court.spy, delivered)

    assert court.spy.calls == [call]


@pytest.mark.requirement("E-20")
@pytest.mark.parametrize(("delay", "waits"), [(None, 0.0), (0.0, 0.0), (4.0, 4.0)])
def test_an_explicit_nak_is_counted_and_its_last_one_is_a_dead_letter(delay: float | None, waits: float) -> None:
    court = Court(max_attempts=2)

    court.judge.asked_again(message(), delay).settle(court.spy, message())
    court.judge.asked_again(message(), delay).settle(court.spy, message())

    assert court.spy.calls == [("requeue", waits, 1), rejected("attempts exhausted")]
    assert court.judge.unacceptable == 1


def test_a_cancellation_that_the_pump_asked_for_hands_the_message_back_uncounted() -> None:
    court = Court(cancelled=lambda: True)

    assert court.turn(message(), asyncio.CancelledError()) == HAND_BACK
    assert court.judge.stopped is Stopped.REQUESTED
    assert court.ledger.arrived(message(deliveries=2)) == (0, 0)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), grouped(ValueError("b"), asyncio.CancelledError())])
def test_a_handler_that_was_ended_because_its_message_is_lost_has_not_failed(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    court = Court()

    assert court.turn(message(lost=True), error) == UNSETTLED
    assert court.ledger.arrived(message(deliveries=2)) == (0, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# -- groups

DECISIONS: Mapping[str, tuple[Callable[[], BaseException], Call]] = {
    "Defer": (lambda: DeferMessageAction(5), ("requeue", 5.0, 1)),
    "DontAck": (DontAckAction, NACK),
    "Reject": (lambda: RejectMessageAction("no"), rejected("no")),
    "Invalid": (lambda: InvalidMessageAction("odd"), unacceptable("odd")),
    "Configuration": (fault, ("nack", 0.0)),
    "error": (lambda: ValueError("bad"), AGAIN),
}
PAIRS = list(itertools.combinations(DECISIONS, 2))


@pytest.mark.requirement("B-16", "B-17")
@pytest.mark.parametrize(("stronger", "weaker"), PAIRS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("nested", ["flat", "stronger", "weaker"])
def test_the_strongest_decision_in_a_group_wins(stronger: str, weaker: str, *, turned: bool, nested: str) -> None:
    strong, weak = DECISIONS[stronger][0](), DECISIONS[weaker][0]()
    strong = grouped(grouped(strong)) if nested == "stronger" else strong
    weak = grouped(grouped(weak)) if nested == "weaker" else weak

    call = Court().turn(message(), grouped(weak, strong) if turned else grouped(strong, weak))

    assert call == DECISIONS[stronger][1]


def test_all_kinds_of_decisions_at_once_are_a_defer() -> None:
    everything = grouped(*(DECISIONS[kind][0]() for kind in sorted(DECISIONS, reverse=True)))

    assert Court().turn(message(), everything) == ("requeue", 5.0, 1)


# -- limit and window


@pytest.mark.requirement("B-10")
def test_the_unacceptable_limit_stops_the_pump_at_the_top_of_the_next_turn() -> None:
    court, running = Court(unacceptable_limit=3), []

    for name in "abc":
        running.append(court.judge.running)
        court.turn(message(name), DontAckAction())

    assert running == [True, True, True]
    assert court.judge.stopped is None
    assert not court.judge.running
    assert court.events == ["nack", "nack", "nack", "pump_stopped"]


def test_the_limit_is_why_it_stopped() -> None:
    court = Court(unacceptable_limit=1)

    court.turn(message(), RejectMessageAction())

    assert (court.judge.running, court.judge.stopped) == (False, Stopped.LIMIT_EXCEEDED)


@pytest.mark.requirement("B-11")
@pytest.mark.parametrize("limit", [0, -1])
def test_without_a_limit_the_pump_goes_on(limit: int) -> None:
    court = Court(unacceptable_limit=limit)

    for number in range(100):
        court.turn(message(str(number)), DontAckAction())

    assert court.judge.running
    assert court.judge.unacceptable == 100


@pytest.mark.requirement("B-38")
@pytest.mark.parametrize(("gap", "running"), [(1.1, True), (0.9, False)])
def test_the_count_begins_anew_with_each_window(gap: float, *, running: bool) -> None:
    court = Court(unacceptable_limit=3, unacceptable_window=1.0)

    for moment in (0.0, gap):
        court.clock.advance(moment)
        for _ in range(2):
            court.turn(message(), DontAckAction())

    assert court.judge.running is running


def test_the_first_reason_to_stop_stands(caplog: pytest.LogCaptureFixture) -> None:
    court = Court()

    court.judge.stop()
    court.judge.stop(Stopped.LIMIT_EXCEEDED)

    assert court.judge.stopped is Stopped.REQUESTED
    assert caplog.text == ""


# -- waiting


def test_a_message_that_keeps_failing_waits_twice_as_long_each_time_up_to_the_longest() -> None:
    court = Court(max_attempts=None, requeue_backoff=(1, 10))

    calls = [court.turn(message(attempts=attempts), ValueError("bad")) for attempts in range(6)]

    assert [call[1] for call in calls] == [1, 2, 4, 8, 10, 10]


def test_any_number_of_attempts_has_a_back_off() -> None:
    court = Court(max_attempts=None)

    assert court.turn(message(attempts=100_000), ValueError("bad")) == ("requeue", 300.0, 100_001)


@pytest.mark.parametrize(
    ("options", "delays"),
    [({}, [1, 1, 1, 1]), ({"dont_ack_longest_delay": 5}, [1, 2, 4, 5]), ({"dont_ack_delay": 0}, [0, 0, 0, 0])],
)
def test_the_delay_after_a_dont_ack_may_grow(options: Options, delays: list[float]) -> None:
    court = Court(**options)

    calls = [court.turn(message(deliveries=1 + time), DontAckAction()) for time in range(4)]

    assert calls == [("nack", delay) for delay in delays]


def test_a_message_that_was_left_too_often_is_a_dead_letter_where_that_is_asked_for() -> None:
    court = Court(dont_ack_limit=2)

    calls = [court.turn(message(), DontAckAction("off")) for _ in range(3)]

    assert calls == [NACK, NACK, rejected("not acknowledged too often")]
    assert court.rejection.description == "off"


def test_a_broken_channel_is_tried_again_after_growing_times_until_it_works() -> None:
    court = Court(failure_backoff=(1, 3))

    waits = [court.judge.disconnected(TransportError("down")) for _ in range(6)]
    court.judge.connected()

    assert waits == pytest.approx([1, 1.35, 1.8225, 2.460375, 3, 3])
    assert court.judge.disconnected(TransportError("down")) == 1


@pytest.mark.requirement("P-12")
@given(st.lists(st.floats(0, 1), min_size=20, max_size=20))
def test_ten_seconds_without_a_broker_are_followed_by_a_try_within_five(chances: list[float]) -> None:
    court = Court(chance=chances.pop)

    tried = 0.0
    while tried < 10:
        tried += court.judge.disconnected(TransportError("down"))

    assert tried < 15


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_jitter_shortens_a_wait_by_a_quarter_at_most(chance: float) -> None:
    wait = Court(chance=lambda: chance).judge.disconnected(TransportError("down"))

    assert wait == pytest.approx(1 - chance / 4)
    assert 0.75 < wait <= 1


def test_a_channel_that_receives_but_cannot_settle_waits_longer_each_time() -> None:
    court = Court()
    waits = []

    for _ in range(3):
        court.judge.connected()
        court.turn_that_cannot_be_settled(message(), ValueError("bad"), TransportError("dead letters are down"))
        waits.append(court.judge.disconnected(TransportError("dead letters are down")))
    court.turn(message("other"))
    court.judge.connected()

    assert waits == pytest.approx([1, 1.35, 1.8225])
    assert court.judge.disconnected(TransportError("down")) == 1


def test_a_lost_lease_is_no_trouble_of_the_channel() -> None:
    court = Court()

    for _ in range(3):
        court.turn_that_cannot_be_settled(message(), None, LeaseLost("gone"))

    assert court.judge.disconnected(TransportError("down")) == 1


# -- what may be released


@pytest.mark.parametrize(
    ("broker_limit", "deliveries", "max_attempts", "may"),
    [
        (None, 1_000_000, 3, True),
        (20, 1, 3, True),
        (20, 16, 3, True),  # leaves 4: one more refusal, and three runs
        (20, 17, 3, False),
        (20, 30, 3, False),
        (20, 18, None, True),
        (20, 19, None, False),
        (3, 1, 3, False),
    ],
)
def test_a_release_leaves_the_broker_more_deliveries_than_the_budget_needs(
    broker_limit: int | None, deliveries: int, max_attempts: int | None, *, may: bool
) -> None:
    assert may_release(message(deliveries=deliveries), broker_limit, max_attempts) is may


# -- budgets; more of them in test_budget.py


def test_a_message_is_a_suspect_when_what_is_unexplained_could_have_spent_its_budget() -> None:
    court = Court()

    suspects = [
        (attempts, deliveries)
        for attempts in range(4)
        for deliveries in range(1, 6)
        if court.judge.suspect(message(attempts=attempts, deliveries=deliveries))
    ]

    assert suspects == [
        (0, 4),
        (0, 5),
        (1, 3),
        (1, 4),
        (1, 5),
        (2, 2),
        (2, 3),
        (2, 4),
        (2, 5),
        (3, 2),
        (3, 3),
        (3, 4),
        (3, 5),
    ]


@pytest.mark.requirement("P-04")
def test_a_rejection_that_failed_is_issued_again_and_the_handler_is_not_run() -> None:
    court = Court()

    court.turn_that_cannot_be_settled(message(attempts=2), ValueError("bad"), TransportError("down"))

    assert court.turn(message(attempts=2, deliveries=2)) == rejected("attempts exhausted")
    assert isinstance(court.rejection.error, ValueError)
    assert court.judge.unacceptable == 1
    assert len(court.ledger) == 0


def test_what_was_handed_back_unbegun_has_spent_nothing() -> None:
    court = Court()

    for deliveries in range(1, 30):
        court.judge.handed_back(message(deliveries=deliveries))

    assert court.turn(message(deliveries=30), ValueError("bad")) == AGAIN


@pytest.mark.parametrize(
    ("broker_limit", "deliveries", "max_attempts", "attempts", "may"),
    [
        (None, 1_000_000, 3, 1, True),
        (4, 2, 3, 1, True),  # leaves 2, for the two runs that may come
        (4, 3, 3, 1, False),
        (4, 3, 3, 2, True),
        (4, 3, None, 1, True),
        (4, 4, None, 1, False),
        (4, 4, 3, 9, False),
    ],
)
def test_a_requeue_leaves_the_broker_as_many_deliveries_as_runs_may_come(
    broker_limit: int | None, deliveries: int, max_attempts: int | None, attempts: int, *, may: bool
) -> None:
    assert may_requeue(message(deliveries=deliveries), broker_limit, max_attempts, attempts) is may
