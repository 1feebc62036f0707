"""Single promises of a channel: when it is shut, what it lets pass or holds, whom it tells, what it says at the end."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Message
from pump.pumps.channel_base import FAILING_FOR, GATE_SECONDS, RETRY_SECONDS, as_transport_error, refuse_larger
from support.channel_fixtures import MakeLine
from support.channels import Line
from support.court import message

pytest_plugins = ["support.channel_fixtures"]


# -- shut


def test_a_shut_channel_gives_back_what_waits_and_receives_nothing_until_that_is_over(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")
    first, over = line.receive_one(), list[bool]()
    line.channel.shut_until(lambda: bool(over))
    line.acknowledge(first)

    assert (line.receive(0.1), line.script.done("hand_back")) == (None, ["hand_back 2"])
    line.script.put("3")
    line.script.calls.clear()
    assert (line.receive(0.1), line.channel.take(), line.script.calls) == (None, None, [])
    assert line.channel.is_shut
    over.append(True)

    assert line.receive_one().id == "3"
    assert not line.channel.is_shut


def test_nothing_that_waits_is_handed_out_once_the_channel_is_shut(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.acknowledge(line.receive_one())

    line.channel.shut_until(lambda: False)

    assert line.channel.take() is None


def test_a_channel_is_open_again_if_nobody_can_say_whether_it_is(line: Line) -> None:
    line.channel.shut_until(lambda: 1 / 0 > 0)
    line.script.put("1")

    assert line.receive_one().id == "1"


def test_a_channel_that_was_never_shut_is_open(line: Line) -> None:
    assert not line.channel.is_shut


# -- a verdict that fails again and again, where there is no lease


def reject_fails(line: Line, delivery: int) -> str:
    """What becomes of a message whose rejection fails: the channel is opened again, or the message is requeued."""
    line.script.calls.clear()
    line.script.put("1", lease=None, deliveries=delivery)
    line.script.fail("reject", PublishError("full"))
    with pytest.raises(TransportError, match="full"):
        line.reject(line.receive_one())
    if line.script.done("requeue"):
        return "requeued"
    with pytest.raises(TransportError, match="opened again"):
        line.receive()
    return "opened again"


@pytest.mark.parametrize(("seconds", "then"), [(RETRY_SECONDS - 0.1, "opened again"), (RETRY_SECONDS, "requeued")])
def test_a_message_whose_verdict_fails_for_long_lets_others_pass(line: Line, seconds: float, then: str) -> None:
    assert reject_fails(line, 1) == "opened again"

    line.clock.advance(seconds)

    assert reject_fails(line, 2) == then


@pytest.mark.parametrize(("seconds", "then"), [(FAILING_FOR, "requeued"), (FAILING_FOR + 1, "opened again")])
def test_a_failure_a_long_time_after_the_last_one_is_a_new_one(line: Line, seconds: float, then: str) -> None:
    assert reject_fails(line, 1) == "opened again"

    line.clock.advance(seconds)

    assert reject_fails(line, 2) == then


def test_the_time_is_counted_from_the_first_failure(line: Line) -> None:
    outcomes = []
    for delivery in range(1, 5):
        outcomes.append(reject_fails(line, delivery))
        line.clock.advance(RETRY_SECONDS / 2)

    assert outcomes == ["opened again", "opened again", "requeued", "requeued"]


@pytest.mark.parametrize("options", [{"ordered": True}, {"requeue": "hold"}])
def test_where_it_would_have_to_be_held_here_the_channel_is_opened_again_however_long_it_fails(
    make_line: MakeLine, options: dict[str, Any]
) -> None:
    line = make_line(**options)
    assert reject_fails(line, 1) == "opened again"

    line.clock.advance(RETRY_SECONDS)

    assert reject_fails(line, 2) == "opened again"


# -- released or held


@pytest.mark.parametrize(
    ("options", "key", "released"),
    [
        ({}, "k", True),
        ({"in_flight": 2}, None, True),
        ({"in_flight": 2}, "k", False),
        ({"ordered": True}, None, False),
        ({"ordered": True, "nack_keeps_place": True}, None, True),
        ({"in_flight": 2, "nack_keeps_place": True}, "k", False),
        ({"in_flight": 2, "nack_keeps_place": True, "blocks": "partition"}, "k", False),
        ({"in_flight": 2, "blocks": "partition"}, "k", False),
    ],
)
def test_a_message_that_others_would_pass_at_the_broker_is_held(
    make_line: MakeLine, options: dict[str, Any], key: str | None, *, released: bool
) -> None:
    line = make_line(**{"nack_keeps_place": False, **options})
    line.script.put("1", key=key)

    line.nack(line.receive_one())

    assert line.script.done() == (["nack 1"] if released else [])
    assert line.waiting == ("" if released else "1")


@pytest.mark.parametrize(("hands_back", "back"), [("one", ["hand_back 2"]), ("all", [])])
def test_while_a_handler_runs_nothing_goes_back_where_everything_would(
    make_line: MakeLine, hands_back: str, back: list[str]
) -> None:
    line = make_line(hands_back=hands_back)
    line.warm_up()
    line.script.put("1", "2")
    line.receive_one()

    line.run(line.channel.hand_back_waiting())

    assert line.script.done() == back


def test_a_failure_to_hand_back_while_handlers_run_is_only_logged(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.receive_one()
    line.script.fail("hand_back", OSError("cut"))

    line.run(line.channel.hand_back_waiting())

    assert "handing back failed: OSError: cut" in caplog.text


# -- told


class Receives:
    """A listener whose recorder notes what is received."""

    def __init__(self) -> None:
        self.received_ids: list[str] = []

    def __call__(self, event: str, fields: Mapping[str, object], /) -> None:
        """Events are told to all listeners."""

    def recorder(self, channel: str, clock: Clock) -> "Receives":
        return self

    def finish(self) -> Signal:
        raise NotImplementedError

    def received(self, messages: Sequence[Message]) -> None:
        self.received_ids += [each.id for each in messages]

    decided = None

    def acknowledged(self, row: object) -> None:
        """Not looked at."""


def test_a_recorder_is_told_what_was_received(make_line: MakeLine) -> None:
    recorder = Receives()
    line = make_line(listeners=[recorder])
    line.script.put("1")

    line.acknowledge(line.receive_one())

    assert recorder.received_ids == ["1"]


def test_a_message_that_is_too_large_has_a_fault_and_no_other(make_line: MakeLine) -> None:
    fits, too_large, unreadable = message("1"), message("2"), message("3", fault="no header")
    fits.body, too_large.body, unreadable.body = b"1234", b"12345", b"123456"

    refuse_larger((fits, too_large, unreadable), 4)

    assert (fits.fault, unreadable.fault) == ("", "no header")
    assert too_large.fault == "its body has 5 bytes, and at most 4 are allowed"


def test_a_channel_whose_transport_has_a_largest_body_looks_at_what_comes(make_line: MakeLine) -> None:
    line = make_line(largest_body=0)
    take = line.script.take

    def take_large(limit: int, generation: int) -> list[Message]:
        messages = take(limit, generation)
        for each in messages:
            each.body = b"1"
        return messages

    line.script.take = take_large  # type: ignore[method-assign] # its messages have no bodies
    line.script.put("1")

    assert line.receive_one().fault


# -- the end


def test_what_is_not_settled_at_the_end_is_told_with_when_it_comes_again(make_line: MakeLine) -> None:
    line = make_line()
    line.warm_up()
    assert line.channel.comes_again.startswith("messages that are not settled (0 in hand) come again when")
    line.script.put("1", lease=10.0)
    line.script.put("2", lease=20.0)
    line.receive_one()
    line.clock.advance(5.0)

    assert "(1 in hand, 1 waiting)" in line.channel.comes_again
    assert "or at most 15 s later" in line.channel.comes_again


def test_a_finish_that_is_given_up_waits_no_longer(line: Line) -> None:
    line.script.put("1")
    line.receive_one().explicit = True
    line.channel.give_up()
    line.clock.waits.clear()

    line.finish(7.0)

    assert not line.clock.waits


def test_an_error_of_ours_is_raised_as_it_is_and_any_other_becomes_its_cause() -> None:
    ours, foreign = TransportError("down"), KeyError("odd")

    assert as_transport_error(ours, "settling") is ours
    assert str(as_transport_error(foreign, "settling")) == "settling failed: KeyError: 'odd'"
    assert as_transport_error(foreign, "settling").__cause__ is foreign


# -- what else comes and goes


def test_a_redelivery_whose_outcome_the_ledger_does_not_know_shrinks_the_buffer(line: Line) -> None:
    line.warm_up()
    line.script.put("1", deliveries=2)

    line.receive_one()

    assert line.channel._intake.size == 1


def test_one_whose_outcome_is_known_does_not(line: Line) -> None:
    line.warm_up()
    line.ledger.forgive(message("1"))
    line.script.put("1", deliveries=2)

    line.receive_one()

    assert line.channel._intake.size == 8


def test_a_lease_that_nobody_renews_does_not_end_because_a_loop_was_blocked(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1")
    received = line.receive_one()

    line.clock.advance(31.0)
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert received.blocked_seconds == 0.0


def test_the_unacceptable_limit_interrupts_a_receive(line: Line) -> None:
    line.receive()
    line.script.calls.clear()

    line.judge.limit_reached.set()

    assert line.script.calls == ["interrupt"]


# -- between being taken and being begun


LOSSES: dict[str, Callable[[Line], object]] = {
    "it is lost": lambda line: setattr(line.channel.in_hand[0], "lost", True),
    "the connection is another": lambda line: setattr(line.script.consumers[-1], "generation", 1_000_000),
    "the connection is gone": lambda line: line.run(line.channel._close_consumer()),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_message_that_was_lost_since_it_was_taken_is_not_begun_and_frees_its_slot(line: Line, loss: str) -> None:
    line.script.put("1", deliveries=2)
    received = line.receive_one()
    assert line.channel.may_begin(received)

    LOSSES[loss](line)

    assert not line.channel.may_begin(received)
    assert (received.lost, line.in_hand) == (True, "")
    assert line.ledger.past_runs(message("1", deliveries=3)) == (0, 1), "this delivery costs nothing"


# -- while another channel handles a suspect


class ClosedGate:
    """A gate that another channel has closed, or this one."""

    closed = True

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours

    def keeps_out(self, _: object) -> bool:
        return not self._is_ours

    def admit(self, _: object) -> bool:
        return self._is_ours


@pytest.mark.parametrize(("timeout", "waits"), [(0.3, GATE_SECONDS), (0.01, 0.01)])
def test_while_another_channel_has_to_be_alone_nothing_is_received_or_handed_out(
    line: Line, timeout: float, waits: float
) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.acknowledge(line.receive_one())
    line.script.calls.clear()
    line.clock.waits.clear()

    line.channel._gate = ClosedGate(is_ours=False)  # type: ignore[misc, assignment] # a process has one gate

    assert (line.receive(timeout), line.script.calls, list(line.clock.waits)) == (None, [], [waits])


def test_the_channel_that_has_to_be_alone_hands_out_what_is_here_and_receives_nothing(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.acknowledge(line.receive_one())
    line.script.calls.clear()
    line.channel._gate = ClosedGate(is_ours=True)  # type: ignore[misc, assignment] # a process has one gate

    line.acknowledge(line.receive_one())

    assert (line.receive(0.1), line.script.calls) == (None, ["acknowledge 2"])


@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_a_receive_that_finds_a_lease_ended_notes_how_long_the_loop_was_blocked(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.script.put("1")
    received = line.receive_one()

    line.clock._now += 45.0  # nobody was woken meanwhile
    line.receive(0.0)

    assert (received.lost, received.blocked_seconds) == (True, 45.0)


def test_a_pause_tells_how_much_goes_back_and_nothing_of_nothing(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    line.warm_up()
    line.channel.pause()
    line.receive(0.1)
    assert caplog.text == ""
    line.channel.resume()
    line.script.put("1", "2")
    line.receive_one()

    line.channel.pause()
    line.receive(0.1)

    assert "1 messages that no handler has begun go back to the broker" in caplog.text


def test_what_goes_back_before_a_suspect_is_not_told_of(make_line: MakeLine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    line = make_line(max_attempts=1)
    line.warm_up()
    line.script.put("1", deliveries=2)
    line.script.put("2")

    line.receive_one()

    assert line.script.done() == ["hand_back 2"]
    assert caplog.text == ""


# -- generations


def test_what_is_of_another_connection_is_never_handed_out_though_it_came_by_this_one(line: Line) -> None:
    line.warm_up()
    line.script.put("void", generation=1_000_000)
    line.script.put("ours")

    assert line.receive_one().id == "ours"
    assert line.waiting == ""


def test_what_came_while_the_consumer_connected_again_is_void(line: Line) -> None:
    line.warm_up()
    take, consumer = line.script.take, line.script.consumers[-1]

    def take_and_connect_again(limit: int, generation: int) -> list[Message]:
        messages = take(limit, generation)
        consumer.generation = 1_000_000
        return messages

    line.script.take = take_and_connect_again  # type: ignore[method-assign] # as a consumer does by itself
    line.script.put("1")

    assert line.receive() is None
    assert line.waiting == ""


# -- what wakes a wait, and what a receive says


def test_whatever_changes_what_may_begin_wakes_who_waits_for_it(make_line: MakeLine) -> None:
    line = make_line(nack="holds", requeue="hold", in_flight=3, buffer_size=3)
    line.warm_up(2)
    line.script.put("1", "2", "3")
    first, second, third = (line.receive_one() for _ in range(3))
    line.channel._next_receive(0.0)  # there is no room: whoever asked waits
    changed = line.channel._changed
    acts: list[Callable[[], object]] = [
        lambda: line.acknowledge(first),
        lambda: line.nack(second),
        lambda: line.requeue(third),
        line.channel.give_up,
        line.channel.pause,
        line.channel.resume,
        line.channel.stop,
    ]

    for act in acts:
        changed.clear()
        act()
        assert changed.is_set()


@pytest.mark.parametrize("act", ["pause", "resume", "stop"])
def test_a_pause_a_resume_and_a_stop_interrupt_the_receive(line: Line, act: str) -> None:
    line.receive()
    line.script.calls.clear()

    getattr(line.channel, act)()

    assert line.script.calls == ["interrupt"]


def test_a_fill_says_whether_something_came_or_changed(line: Line) -> None:
    def fill() -> bool:
        return line.run(line.channel.fill(0.1))

    assert not fill()
    line.warm_up()
    line.script.put("1", "2")
    assert fill(), "messages came"
    line.receive_one()
    line.channel.pause()
    assert fill(), "one went back"
    assert fill(), "it waited for room"


# -- the limits of the broker, and of the message


def test_a_copy_does_not_count_against_the_limit_of_the_broker(make_line: MakeLine) -> None:
    line = make_line(requeue="copy")
    line.script.broker_limit = 4
    line.script.put("1", deliveries=3)

    line.requeue(line.receive_one(), 5.0, 1)

    assert line.script.done() == ["requeue 1 5.0 1"]


def test_a_held_message_that_is_overdue_is_not_waited_for(make_line: MakeLine) -> None:
    line = make_line(requeue="hold", in_flight=2)
    line.script.put("1", lease=None)
    line.requeue(line.receive_one(), 1.0)
    line.clock._now += 5.0  # nobody has looked meanwhile

    assert line.channel._next_receive(3.0)[2] == 0.0


def test_what_a_factory_opened_for_an_unsettled_message_is_closed_with_the_channel(line: Line) -> None:
    line.script.put("1")
    released: list[str] = []

    async def release_async() -> None:
        released.append("1")

    line.receive_one().release = release_async if line.loop is not None else lambda: released.append("1")

    line.close()

    assert released == ["1"]


@pytest.mark.parametrize(("carried", "kept"), [(0, 3), (7, 7)])
def test_a_message_whose_rejection_failed_keeps_the_higher_number_of_attempts(
    line: Line, carried: int, kept: int
) -> None:
    line.script.put("1", lease=None)
    received = line.receive_one()
    received.attempts = carried
    line.script.fail("reject", PublishError("full"))

    with pytest.raises(TransportError):
        line.run(line.channel.reject(received, Rejection("delivery error", "failed", attempts=3)))

    assert received.attempts == kept


def test_a_message_whose_requeue_failed_knows_its_attempts(line: Line) -> None:
    line.script.put("1", lease=None)
    received = line.receive_one()
    line.script.fail("requeue", OSError("cut"))

    with pytest.raises(TransportError):
        line.requeue(received, 1.0, 2)

    assert received.attempts == 2
