"""A broker that fails: the pump lives, backs off, loses nothing, and never makes one verdict into another."""

import logging

import pytest

from pump.errors import DeferMessageAction, DontAckAction, LeaseLost, PublishError, RejectMessageAction, TransportError
from pump.program.performer import Activity
from support.pump_fixtures import Pumping
from support.pumps import Bench, Broker, Kind, Order, Outcomes, consuming, numbers
from support.waiting import eventually

NO_LEASES = {"leases": False}


def back_offs(bench: Bench) -> list[float]:
    return [float(str(fields["delay"])) for event, fields in bench.events if event == "disconnected"]


# -- receiving


@pytest.mark.parametrize("call", ["receive", "open"])
@pytest.mark.parametrize("error", [TransportError("away"), OSError("reset"), ValueError("nobody expected that")])
def test_a_failed_receive_is_tried_again_later_and_the_pump_lives(
    pumping: Pumping, call: str, error: Exception
) -> None:
    bench = pumping(Outcomes(None))
    bench.broker.fail(call, *[error] * 3)
    bench.post_orders(1)

    bench.run()

    assert numbers(bench.acknowledged) == [1]
    assert len(back_offs(bench)) == 3
    assert bench.stopped is None
    assert sum(each.levelno == logging.WARNING for each in bench.logs) == 3


def test_the_back_off_grows_to_its_limit_and_is_jittered(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None), failure_backoff=(1, 30))
    bench.broker.fail("receive", *[TransportError("away")] * 40)
    bench.post_orders(1)

    bench.run()

    delays = back_offs(bench)
    assert 0.75 <= delays[0] <= 1
    assert all(0.75 * min(30, 1.35**n) - 1e-6 <= delay <= min(30, 1.35**n) + 1e-6 for n, delay in enumerate(delays))
    assert len({round(delay, 6) for delay in delays[-10:]}) > 1
    assert numbers(bench.acknowledged) == [1]


def test_success_makes_the_next_back_off_short_again(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.broker.fail("receive", *[TransportError("away")] * 5)
    bench.post_orders(1)
    bench.run()
    bench.broker.fail("receive", TransportError("away"))
    bench.post_orders(2)

    bench.run()

    assert back_offs(bench)[-1] <= 1 < back_offs(bench)[-2]


def test_after_a_failed_receive_the_channel_is_made_anew(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.post_orders(1)
    bench.run()
    bench.broker.fail("receive", TransportError("away"))
    bench.post_orders(2)

    bench.run()

    assert bench.broker.named("open", "close") == ["open", "close", "open"]
    assert numbers(bench.acknowledged) == [1, 2]


def test_what_waited_in_a_broken_channel_comes_again_uncounted(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body, max_attempts=1)
    bench.post_orders(1, 2, 3, 4, 5, 6, 7)
    bench.run(turns=3)
    bench.broker.fail("receive", *[TransportError("away")] * 4)

    bench.run()

    assert sorted(numbers(bench.acknowledged)) == [1, 2, 3, 4, 5, 6, 7]
    assert bench.dead_letters == []


def test_a_failing_close_is_only_logged(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.broker.fail("receive", TransportError("away"))
    bench.broker.fail("close", OSError("already closed"))
    bench.post_orders(1)

    bench.run()

    assert numbers(bench.acknowledged) == [1]
    assert any("closing failed: already closed" in each for each in bench.said)


# -- settling


SETTLED = {
    "acknowledge": None,
    "nack": DontAckAction(),
    "requeue": DeferMessageAction(5),
    "reject": RejectMessageAction("no"),
}


@pytest.mark.requirement("B-22", "B-23")
@pytest.mark.parametrize("call", SETTLED)
def test_a_settlement_that_fails_is_tried_again_as_the_same_while_the_lease_lasts(pumping: Pumping, call: str) -> None:
    body = Outcomes(SETTLED[call])
    bench = pumping(body, may_block=True)
    bench.broker.fail(call, *[TransportError("away")] * 7)
    bench.post_orders(1)

    bench.run(turns=1)

    assert body.runs == 1
    assert bench.calls == [call]
    assert bench.calls[0].error is None
    assert bench.broker.named(*SETTLED) == [call] * 8


@pytest.mark.parametrize("call", SETTLED)
def test_one_that_fails_to_the_end_of_the_lease_is_given_up_and_nothing_is_lost(pumping: Pumping, call: str) -> None:
    body = Outcomes(SETTLED[call], None)
    bench = pumping(body, may_block=True, lease=5.0)
    bench.broker.break_down(call, TransportError("away"))
    bench.broker.break_down("extend", TransportError("away"))
    bench.post_orders(1, 2)
    bench.run(turns=1)
    bench.broker.mend()

    bench.run()

    assert isinstance(bench.calls[0].error, LeaseLost)
    assert bench.pending == []
    assert numbers(bench.acknowledged) == ([2] if call == "reject" else [1, 2])


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize("call", SETTLED)
def test_one_that_can_never_be_carried_out_does_not_hold_up_the_others(
    pumping: Pumping, call: str, *, leases: bool
) -> None:
    def body(order: Order) -> None:
        error = SETTLED[call]
        if order.number == 1 and error is not None and not mended:
            raise error

    mended: list[bool] = []
    bench = pumping(body, may_block=True, capabilities={} if leases else NO_LEASES)
    bench.broker.fail_for(call, "order-1", TransportError("no such thing"))
    bench.post_orders(1, 2, 3)
    began = bench.clock.monotonic()

    bench.run(seconds=60)

    assert [each for each in numbers(bench.acknowledged) if each != 1] == [2, 3]
    assert bench.stopped is None
    assert bench.clock.monotonic() - began <= 60
    bench.broker.mend()
    mended.append(True)
    bench.run()
    assert bench.pending == []
    assert numbers(bench.acknowledged).count(1) + len(bench.dead_letters) == 1


@pytest.mark.requirement("P-04")
def test_what_cannot_become_a_dead_letter_now_waits_with_its_attempts_and_is_not_run_again(pumping: Pumping) -> None:
    body = Outcomes(ValueError("any"))
    bench = pumping(body, max_attempts=1)
    bench.broker.break_down("reject", PublishError("the dead-letter channel is down"))
    bench.post_orders(1)

    bench.run(seconds=100)

    assert body.runs == 1
    assert [each.attempts for each in bench.broker.bus.messages("Order")] in ([1], [])
    bench.broker.mend()
    bench.run()
    (letter,) = bench.dead_letters
    assert (body.runs, letter.attempts) == (1, 1)


@pytest.mark.parametrize("call", SETTLED)
def test_without_a_lease_the_channel_is_made_anew_and_nothing_is_lost(pumping: Pumping, call: str) -> None:
    body = Outcomes(SETTLED[call], None)
    bench = pumping(body, may_block=True, capabilities=NO_LEASES)
    bench.broker.fail(call, TransportError("away"))
    bench.post_orders(1, 2)

    bench.run()

    assert isinstance(bench.calls[0].error, TransportError)
    assert bench.pending == []
    assert bench.broker.named("open") == ["open"] * 2
    assert bench.stopped is None


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize("error", [PublishError("not confirmed"), OSError("reset")])
def test_a_rejection_that_failed_is_retried_as_a_rejection_and_the_handler_is_not_run_again(
    pumping: Pumping, error: Exception, *, leases: bool
) -> None:
    body = Outcomes(RejectMessageAction("no"))
    bench = pumping(body, capabilities={"leases": leases})
    bench.broker.break_down("reject", error)
    bench.broker.break_down("extend", TransportError("away"))
    bench.post_orders(1)
    bench.run(seconds=300)
    before = bench.dead_letters
    bench.broker.mend()

    bench.run()

    assert before == []
    assert body.runs == 1
    assert [letter.reason for letter in bench.dead_letters] == ["no"]
    assert bench.acknowledged == []
    assert set(bench.calls) == {"reject"}


def test_an_exhausted_message_whose_dead_letter_failed_is_not_run_again(pumping: Pumping) -> None:
    body = Outcomes(ValueError("any"))
    bench = pumping(body, capabilities=NO_LEASES)
    bench.broker.fail("reject", *[PublishError("the dead letter channel is down")] * 6)
    bench.post_orders(1)

    bench.run()

    (letter,) = bench.dead_letters
    assert body.runs == 3
    assert (letter.reason, letter.attempts) == ("attempts exhausted", 3)


def test_a_requeue_that_failed_is_never_followed_by_an_acknowledgement(pumping: Pumping) -> None:
    bench = pumping(Outcomes(ValueError("any")), capabilities=NO_LEASES)
    bench.broker.fail("requeue", PublishError("not confirmed"))
    bench.post_orders(1)

    bench.run()

    assert "acknowledge" not in bench.broker.named(*SETTLED)
    assert len(bench.dead_letters) == 1


def test_while_settling_fails_nothing_more_is_asked_of_the_broker(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.post_orders(1)
    bench.run()
    bench.broker.fail("acknowledge", *[TransportError("away")] * 5)
    bench.post_orders(*range(2, 30))
    asked: list[str] = []

    bench.broker.on_call = asked.append
    bench.run(turns=1)

    trouble = asked[asked.index("acknowledge") :]
    assert trouble[:6] == ["acknowledge"] * 6


def test_a_channel_that_receives_and_never_settles_is_no_hot_loop(pumping: Pumping) -> None:
    body = Outcomes(None)
    bench = pumping(body, capabilities=NO_LEASES)
    bench.broker.break_down("acknowledge", TransportError("away"))
    bench.post_orders(1)

    bench.run(seconds=60)

    assert body.runs < 20
    assert bench.acknowledged == []


@pytest.mark.parametrize("call", SETTLED)
def test_no_verdict_is_sent_for_a_message_that_is_not_ours_any_more(pumping: Pumping, call: str) -> None:
    def body(_: object) -> None:
        bench.advance(31)
        outcome = SETTLED[call]
        if outcome is not None:
            raise outcome

    bench = pumping(body, renew_lease=False)
    bench.post_orders(1)

    bench.run(turns=1)

    assert bench.broker.named(*SETTLED) == []
    bus = bench.broker.bus
    assert bus.pending("Order") + bus.locked("Order") == 1  # a pump with a free slot may have it again already


def test_what_was_rejected_keeps_when_it_failed_first(pumping: Pumping) -> None:
    bench = pumping(Outcomes(ValueError("any")))
    began = bench.clock.wall()
    bench.post_orders(1)

    bench.run()

    rejection = bench.dead_letters[0].rejection
    assert rejection.first_failure == pytest.approx(began, abs=0.1)
    assert rejection.last_failure == pytest.approx(began + 3, abs=0.1)


def test_an_interrupt_that_fails_stops_nothing(kind: Kind) -> None:
    body = Outcomes(None)
    broker = Broker()
    broker.break_down("interrupt", OSError("closed by the peer"))
    with consuming(kind, body, broker, receive_timeout=0.05) as dispatcher:
        dispatcher.pause("orders")
        dispatcher.resume("orders")
        dispatcher.post(Order())
        eventually(lambda: body.runs == 1)
        dispatcher.stop()

    assert [state.state for state in dispatcher.states] == [Activity.STOPPED]
    assert broker.named("close") == ["close"]
