"""What becomes of a message, by what its handler raised or returned: the settlement table, in every kind of pump."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations

import pytest

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    MessageAction,
    RejectMessageAction,
)
from pump.verdict import Stopped
from support.pump_fixtures import Pumping
from support.pumps import Bench, Kind, Outcomes, Placed, numbers, shown

RETRIED = ("requeue", 1.0)

SINGLE: dict[str, tuple[Callable[[], BaseException], str]] = {
    "configuration": (lambda: ConfigurationError("a handler's own"), "requeue"),
    "defer": (lambda: DeferMessageAction(5), "requeue"),
    "dont ack": (DontAckAction, "nack"),
    "reject": (lambda: RejectMessageAction("no"), "reject"),
    "invalid": (lambda: InvalidMessageAction("wrong"), "reject"),
    "unhandled": (lambda: ValueError("any"), "requeue"),
    "group": (lambda: ExceptionGroup("g", [ValueError("any")]), "requeue"),
    "exit": (SystemExit, "requeue"),
    "generator": (GeneratorExit, "requeue"),
    "stop iteration": (StopIteration, "requeue"),
    "cancelled by others": (asyncio.CancelledError, "requeue"),
}


@pytest.mark.requirement("B-19")
@pytest.mark.parametrize("name", SINGLE)
def test_each_exception_has_its_outcome(pumping: Pumping, name: str) -> None:
    make, call = SINGLE[name]
    bench = pumping(Outcomes(make()))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [call]
    assert bench.stopped is None


@pytest.mark.requirement("B-19")
@pytest.mark.parametrize(
    ("base", "call"),
    [(DeferMessageAction, "requeue"), (DontAckAction, "nack"), (RejectMessageAction, "reject")],
)
def test_a_decision_of_ones_own_kind_is_the_decision_it_inherits(
    pumping: Pumping, base: type[MessageAction], call: str
) -> None:
    class Own(base):  # type: ignore[misc,valid-type]
        pass

    bench = pumping(Outcomes(Own()))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [call]


def test_a_returned_value_is_no_decision(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DontAckAction))
    bench.post_orders(1)

    bench.run()

    assert numbers(bench.acknowledged) == [1]


@pytest.mark.parametrize(
    ("action", "group", "reason"),
    [
        (RejectMessageAction("no such tea"), "delivery error", "no such tea"),
        (RejectMessageAction(), "delivery error", "rejected"),
        (InvalidMessageAction("no sku"), "unacceptable", "no sku"),
        (InvalidMessageAction(), "unacceptable", "invalid"),
    ],
)
def test_a_rejection_says_why(pumping: Pumping, action: MessageAction, group: str, reason: str) -> None:
    bench = pumping(Outcomes(action))
    bench.post_orders(1)

    bench.run()

    (letter,) = bench.dead_letters + bench.invalid
    assert (letter.rejection.kind, letter.reason) == (group, reason)
    assert letter.headers["pump-reason"] == reason


def test_invalid_messages_have_a_channel_of_their_own_where_there_is_one(pumping: Pumping) -> None:
    bench = pumping(Outcomes(InvalidMessageAction("wrong"), RejectMessageAction("no")), invalid="Order.invalid")
    bench.post_orders(1, 2)

    bench.run()

    bus = bench.broker.bus
    assert [message.id for message in bus.messages("Order.invalid")] == ["order-1"]
    assert [message.id for message in bus.messages("Order.dead")] == ["order-2"]


# -- unhandled errors


@pytest.mark.requirement("B-35", "P-07", "B-03")
def test_an_unhandled_error_is_tried_again_with_back_off_and_then_a_dead_letter(pumping: Pumping) -> None:
    body = Outcomes(ValueError("any"))
    bench = pumping(body)
    bench.post_orders(1)

    bench.run()

    (letter,) = bench.dead_letters
    assert body.runs == 3
    assert [(str(call), call.delay, call.attempts) for call in bench.calls[:-1]] == [
        ("requeue", 1.0, 1),
        ("requeue", 2.0, 2),
    ]
    assert (letter.reason, letter.attempts, str(letter.error)) == ("attempts exhausted", 3, "any")
    assert bench.acknowledged == []


@pytest.mark.requirement("B-35", "B-03")
def test_brighters_rule_is_one_setting_away(pumping: Pumping) -> None:
    body = Outcomes(ValueError("any"))
    bench = pumping(body, on_unhandled="acknowledge")
    bench.post_orders(1)

    bench.run()

    assert body.runs == 1
    assert bench.calls == ["acknowledge"]
    assert bench.unacceptable == 1
    assert "Handler failed" in " ".join(bench.said)


@pytest.mark.requirement("P-07")
def test_the_default_never_acknowledges_a_message_that_failed(pumping: Pumping) -> None:
    bench = pumping(Outcomes(ValueError("any")))
    bench.post_orders(1, 2, 3)

    bench.run()

    assert bench.acknowledged == []
    assert numbers([letter.request for letter in bench.dead_letters]) == [1, 2, 3]
    assert bench.broker.bus.pending("Order.dead") == 3


@pytest.mark.parametrize(
    ("setting", "call"), [("retry", "requeue"), ("dont_ack", "nack"), ("reject", "reject"), ("nak", "requeue")]
)
def test_each_setting_for_unhandled_errors(pumping: Pumping, setting: str, call: str) -> None:
    bench = pumping(Outcomes(ValueError("any")), on_unhandled=setting)
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == [call]


def test_a_nak_has_no_delay_of_ours_and_is_counted(pumping: Pumping) -> None:
    bench = pumping(Outcomes(ValueError("any")), on_unhandled="nak")
    bench.post_orders(1)

    bench.run()

    assert [call.delay for call in bench.calls] == [0.0, 0.0, None]
    assert [letter.reason for letter in bench.dead_letters] == ["attempts exhausted"]


def test_a_rejection_of_unhandled_errors_names_the_error(pumping: Pumping) -> None:
    bench = pumping(Outcomes(KeyError("sku")), on_unhandled="reject")
    bench.post_orders(1)

    bench.run()

    (letter,) = bench.dead_letters
    assert letter.reason == "KeyError"
    assert letter.headers["pump-exception"] == "builtins.KeyError"


def test_an_unhandled_error_is_logged_with_its_trace_once_a_run(pumping: Pumping) -> None:
    error = ValueError("any")
    bench = pumping(Outcomes(error, None))
    bench.post_orders(1)

    bench.run()

    (record,) = [each for each in bench.logs if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert "order-1" in record.getMessage()


def test_the_back_off_of_retries_is_the_subscriptions(pumping: Pumping) -> None:
    bench = pumping(Outcomes(ValueError("any")), max_attempts=6, requeue_backoff=(10, 60))
    bench.post_orders(1)

    bench.run()

    assert [call.delay for call in bench.calls] == [10, 20, 40, 60, 60, None]


def test_a_deferral_without_a_delay_uses_the_same_back_off(pumping: Pumping) -> None:
    bench = pumping(Outcomes(DeferMessageAction(), DeferMessageAction(), None))
    bench.post_orders(1)

    bench.run()

    assert [call.delay for call in bench.calls] == [1.0, 2.0, None]
    assert numbers(bench.acknowledged) == [1]


def test_without_a_budget_a_message_is_tried_for_ever(pumping: Pumping) -> None:
    bench = pumping(Outcomes(*[ValueError("any")] * 20, None), max_attempts=None)
    bench.post_orders(1)

    bench.run()

    assert numbers(bench.acknowledged) == [1]
    assert len(bench.deferred) == 20


# -- groups


@pytest.mark.requirement("B-16")
@pytest.mark.parametrize("nested", [False, True])
def test_a_dont_ack_in_a_group_is_a_dont_ack_and_the_rest_is_logged(pumping: Pumping, *, nested: bool) -> None:
    error = ValueError("beside")
    group = ExceptionGroup("g", [error, ExceptionGroup("h", [DontAckAction()]) if nested else DontAckAction()])
    bench = pumping(Outcomes(group))
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.calls == ["nack"]
    assert [each.exc_info[1] for each in bench.logs if each.levelno == logging.ERROR and each.exc_info] == [error]


DECISIONS: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: DeferMessageAction(5, "defer"), "requeue 5"),
    (lambda: DontAckAction("dont ack"), "nack"),
    (lambda: RejectMessageAction("reject"), "reject reject"),
    (lambda: InvalidMessageAction("invalid"), "reject invalid"),
    (lambda: ValueError("any"), "requeue 1"),
]


@pytest.mark.requirement("B-17")
@pytest.mark.parametrize("reversed_", [False, True])
@pytest.mark.parametrize(("strong", "weak"), list(combinations(range(5), 2)))
def test_the_strongest_decision_in_a_group_wins(pumping: Pumping, strong: int, weak: int, *, reversed_: bool) -> None:
    errors = [DECISIONS[strong][0](), DECISIONS[weak][0]()]
    bench = pumping(Outcomes(BaseExceptionGroup("g", errors[::-1] if reversed_ else errors)))
    bench.post_orders(1)

    bench.run(turns=1)

    assert shown(bench) == [DECISIONS[strong][1]]


@pytest.mark.requirement("B-17")
@pytest.mark.parametrize(
    ("raised", "call", "stops"),
    [
        (DeferMessageAction(5), "requeue 5", False),
        (DontAckAction(), "nack", False),
        (RejectMessageAction("no"), "reject no", False),
        (InvalidMessageAction("bad"), "reject bad", False),
        (ValueError("any"), "nack", True),
    ],
    ids=["defer", "dont ack", "reject", "invalid", "none"],
)
def test_a_broken_set_up_is_the_weakest_of_all(
    benches: ExitStack, kind: Kind, raised: BaseException, call: str, *, stops: bool
) -> None:
    """Of two handlers of one event, one cannot be made, and the other raises."""
    unmakeable, other = kind.handler_class(Outcomes(None), Placed), kind.handler(Outcomes(raised), takes=Placed)

    def factory(_: type) -> object:
        raise ConfigurationError("there is no database")

    bench = benches.enter_context(Bench(unmakeable, other, **kind.options, factory=factory))
    bench.post(Placed())

    bench.run(turns=1)

    assert shown(bench) == [call]
    assert (bench.stopped is Stopped.CONFIGURATION_ERROR) == stops


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_every_handler_of_an_event_runs_and_all_their_errors_count(
    benches: ExitStack, kind: Kind, failing: int
) -> None:
    bodies = [Outcomes(ValueError(f"handler {each}") if each != failing else None) for each in range(3)]
    handlers = [kind.handler(body, takes=Placed) for body in bodies]
    bench = benches.enter_context(Bench(*handlers, **kind.options, max_attempts=1))
    bench.post(Placed())

    bench.run()

    (letter,) = bench.dead_letters
    assert [body.runs for body in bodies] == [1, 1, 1]
    assert isinstance(letter.error, ExceptionGroup)
    assert [str(each) for each in letter.error.exceptions] == [f"handler {n}" for n in range(3) if n != failing]


def test_an_event_is_acknowledged_when_all_its_handlers_have_returned(benches: ExitStack, kind: Kind) -> None:
    bodies = [Outcomes(None), Outcomes(None)]
    bench = benches.enter_context(Bench(*(kind.handler(each, takes=Placed) for each in bodies), **kind.options))
    bench.post(Placed())

    bench.run()

    assert bench.calls == ["acknowledge"]
    assert [body.runs for body in bodies] == [1, 1]


def test_two_decisions_about_an_event_become_the_stronger_one(benches: ExitStack, kind: Kind) -> None:
    bodies = [Outcomes(RejectMessageAction("no")), Outcomes(DeferMessageAction(5), None)]
    bench = benches.enter_context(Bench(*(kind.handler(each, takes=Placed) for each in bodies), **kind.options))
    bench.post(Placed())

    bench.run(turns=1)

    assert shown(bench) == ["requeue 5"]


# -- what is not an error of the message


@pytest.mark.requirement("E-21")
def test_a_keyboard_interrupt_of_a_handler_stops_the_pump_and_hands_the_message_back(pumping: Pumping) -> None:
    bench = pumping(Outcomes(KeyboardInterrupt()))
    bench.post_orders(1, 2, key="k")

    bench.run(seconds=60)

    bus = bench.broker.bus
    assert bench.stopped is Stopped.INTERRUPTED
    assert bench.calls == ["hand_back"]
    assert bench.unacceptable == 0
    assert [(each.id, each.unexplained) for each in bus.messages("Order")] == [("order-1", 0), ("order-2", 0)]


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError("somebody else's")])
def test_what_would_end_a_thread_or_task_is_an_unhandled_error(pumping: Pumping, error: BaseException) -> None:
    body = Outcomes(error)
    bench = pumping(body)
    bench.post_orders(1, 2)

    bench.run()

    assert body.runs == 6
    assert bench.stopped is None
    assert len(bench.dead_letters) == 2


def test_a_group_of_base_exceptions_is_an_unhandled_error(pumping: Pumping) -> None:
    bench = pumping(Outcomes(BaseExceptionGroup("g", [SystemExit(), ValueError("any")])))
    bench.post_orders(1)

    bench.run(turns=1)

    assert shown(bench) == ["requeue 1"]


def test_an_interrupt_in_a_group_stops_the_pump_all_the_same(pumping: Pumping) -> None:
    bench = pumping(Outcomes(BaseExceptionGroup("g", [ValueError("any"), KeyboardInterrupt()])))
    bench.post_orders(1)

    bench.run(seconds=60)

    assert bench.stopped is Stopped.INTERRUPTED
    assert bench.calls == ["hand_back"]


def test_a_stop_iteration_of_a_handler_does_not_pass_for_its_end(pumping: Pumping) -> None:
    bench = pumping(Outcomes(StopIteration("next() found nothing")))
    bench.post_orders(1)

    bench.run(turns=1)

    assert shown(bench) == ["requeue 1"]
