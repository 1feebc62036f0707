"""A channel and a consumer that can fail: what is received, and what becomes of a verdict that cannot be sent."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pump.errors import LeaseLost, PublishError, RejectMessageAction, SetupError, TransportError
from pump.message import Message
from support.channel_fixtures import MakeLine
from support.channels import Line

VERDICTS = ["acknowledge", "nack", "requeue", "reject", "hand_back"]

pytest_plugins = ["support.channel_fixtures"]


# -- receiving


def test_messages_come_one_at_a_time_and_know_their_channel(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")

    first = line.receive_one()

    assert (first.id, first.origin, line.in_hand, line.waiting) == ("1", "samples", "1", "2")
    line.acknowledge(first)
    assert line.receive_one().id == "2"
    assert line.script.calls == ["receive 8", "acknowledge 1"]


def test_an_empty_broker_gives_nothing(line: Line) -> None:
    assert line.receive() is None


def test_the_consumer_is_opened_with_the_first_receive_and_once(line: Line) -> None:
    assert line.script.calls == []

    line.receive()
    line.receive()

    assert line.script.calls == ["open", "receive 1", "receive 1"]


def test_taking_opens_nothing(line: Line) -> None:
    assert line.channel.take() is None
    assert line.script.calls == []


@pytest.mark.parametrize(
    "error", [TransportError("down"), OSError("down"), RuntimeError("odd"), SetupError("gone"), KeyError()]
)
def test_a_receive_that_fails_in_any_way_is_a_transport_error_and_the_consumer_is_made_anew(
    line: Line, error: Exception
) -> None:
    line.script.fail("receive", error)
    line.script.put("1")

    with pytest.raises(TransportError) as raised:
        line.receive()

    assert (raised.value is error) is isinstance(error, TransportError)
    assert raised.value.__cause__ is not raised.value
    assert line.receive_one().id == "1"
    assert line.script.calls == ["open", "receive! 1", "close", "open", "receive 1"]


def test_an_empty_receive_of_a_channel_that_broke_meanwhile_does_not_prove_that_it_works(line: Line) -> None:
    line.judge.disconnected(TransportError("down"))
    line.receive()
    line.judge.disconnected(TransportError("down"))
    receive = line.script.consumers[-1].receive

    def receive_and_break(limit: int, timeout: float) -> Sequence[Message]:
        line.channel._broken = True
        return receive(limit, timeout)

    line.script.consumers[-1].receive = receive_and_break  # type: ignore[method-assign] # as another thread's settling would
    line.receive()

    assert line.judge.disconnected(TransportError("down")) == pytest.approx(1.35)


def test_opening_is_tried_again_whatever_it_raises(line: Line) -> None:
    line.script.fail("open", SetupError("no such queue"), ValueError("odd"))

    for _ in range(2):
        with pytest.raises(TransportError, match="opening failed"):
            line.receive()

    assert line.receive() is None
    assert line.script.calls == ["open!", "open!", "open", "receive 1"]


def test_a_consumer_that_cannot_be_closed_is_let_go_all_the_same(line: Line) -> None:
    line.script.fail("receive", TransportError("down"))
    line.script.fail("close", OSError("down"))

    with pytest.raises(TransportError):
        line.receive()
    line.receive()

    assert len(line.script.consumers) == 2


def test_what_was_received_before_the_connection_broke_is_not_handed_out(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", lease=None)
    line.script.fail("acknowledge", OSError("down"))

    with pytest.raises(TransportError):
        line.acknowledge(line.receive_one())
    with pytest.raises(TransportError, match="opened again"):
        line.receive()

    assert line.receive() is None
    assert line.waiting == ""


def test_what_was_lost_with_the_connection_before_anybody_began_it_has_spent_nothing(line: Line) -> None:
    line.warm_up()

    for delivery in range(1, 20):
        line.script.put("1", lease=None)
        line.script.put("2", lease=None, deliveries=delivery)
        line.acknowledge(line.receive_one())
        line.script.consumers[-1].generation += 1_000_000
        assert line.receive() is None
        line.warm_up(2)

    line.script.put("2", deliveries=20)
    assert line.judge.arrived(line.receive_one()) is None


def test_a_consumer_that_connects_by_itself_voids_what_it_received_before(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", "3")
    first = line.receive_one()

    line.script.consumers[-1].generation += 1_000_000

    assert line.receive() is None
    assert (first.lost, line.waiting) == (True, "")
    with pytest.raises(LeaseLost):
        line.acknowledge(first)
    line.script.put("4")
    assert line.receive_one().id == "4"
    assert line.script.done() == []


# -- settling


@pytest.mark.requirement("B-20", "B-22")
@pytest.mark.parametrize(
    ("verdict", "call"),
    [
        ("acknowledge", "acknowledge 1"),
        ("nack", "nack 1"),
        ("requeue", "requeue 1 1.0 1"),
        ("reject", "reject 1 failed"),
        ("hand_back", "hand_back 1"),
    ],
)
def test_a_verdict_is_one_call_of_the_consumer_and_frees_the_slot(line: Line, verdict: str, call: str) -> None:
    line.script.put("1")

    line.settle(verdict, line.receive_one())

    assert line.script.done() == [call]
    assert line.in_hand == ""


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("error", [TransportError("down"), PublishError("full"), OSError("cut"), KeyError("odd")])
def test_a_settlement_that_failed_is_tried_again_as_the_same_verdict(
    line: Line, verdict: str, error: Exception
) -> None:
    line.script.put("1")
    line.script.fail(verdict, error, error, error)

    line.settle(verdict, line.receive_one())

    assert [call.split()[0] for call in line.script.done(verdict)] == [f"{verdict}!"] * 3 + [verdict]
    assert {call.split(maxsplit=1)[1] for call in line.script.done(verdict)} == {
        line.script.done(verdict)[0].split(maxsplit=1)[1]
    }
    assert line.in_hand == ""
    assert len(line.script.consumers) == 1


@pytest.mark.requirement("B-23")
@pytest.mark.parametrize("verdict", VERDICTS)
def test_it_is_tried_no_longer_than_the_lease_lasts_and_then_raises(make_line: MakeLine, verdict: str) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1", lease=5.0)
    line.script.broken[verdict] = TransportError("down")
    received = line.receive_one()
    began = line.clock.monotonic()

    with pytest.raises(LeaseLost):
        line.settle(verdict, received)

    assert 5.0 <= line.clock.monotonic() - began < 8.0
    assert 5 < len(line.script.done(verdict)) < 20
    assert (received.lost, line.in_hand) == (True, "")


@pytest.mark.parametrize("verdict", VERDICTS)
def test_where_there_is_no_lease_it_raises_and_the_consumer_is_made_anew(line: Line, verdict: str) -> None:
    line.script.put("1", lease=None)
    line.script.fail(verdict, OSError("cut"))

    with pytest.raises(TransportError, match="settling failed: OSError: cut"):
        line.settle(verdict, line.receive_one())
    with pytest.raises(TransportError, match="opened again"):
        line.receive()
    line.script.put("1", lease=None, deliveries=2)

    assert line.receive_one().deliveries == 2
    assert len(line.script.done(verdict)) == 1
    assert [consumer.closed for consumer in line.script.consumers] == [True, False]


@pytest.mark.parametrize("options", [{}, {"ordered": True}])
def test_where_there_is_no_lease_and_the_set_up_is_wrong_the_message_comes_later_unless_order_is_kept(
    make_line: MakeLine, options: dict[str, Any]
) -> None:
    line = make_line(**options)
    line.script.put("1", lease=None)
    line.script.fail("reject", SetupError("a key is in use for something else"))

    with pytest.raises(TransportError, match="in use"):
        line.reject(line.receive_one())

    if options:
        with pytest.raises(TransportError, match="opened again"):
            line.receive()
    else:
        line.receive()
    assert [call.split()[0] for call in line.script.done()] == ["reject!", *([] if options else ["requeue"])]


def test_while_a_dead_letter_cannot_be_stored_the_waits_grow_though_receiving_works(line: Line) -> None:
    line.script.broken["reject"] = PublishError("full")
    waits = []

    for delivery in range(1, 6):
        line.script.put("1", lease=None, deliveries=delivery)
        received = line.receive_one()
        verdict = line.judge.arrived(received) or line.judge.failed(received, ValueError("bad"))
        if delivery >= 3:
            with pytest.raises(TransportError) as raised:
                line.carry_out(verdict, received)
            line.judge.unsettled(received, verdict, raised.value)
            with pytest.raises(TransportError) as again:
                line.receive()
            waits.append(line.judge.disconnected(again.value))
        else:
            line.carry_out(verdict, received)

    assert waits == pytest.approx([1, 1.35, 1.8225])


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_consumer_that_says_the_delivery_is_not_ours_is_believed_at_once(line: Line, verdict: str) -> None:
    line.script.put("1")
    line.script.fail(verdict, LeaseLost("somebody else has it"))
    received = line.receive_one()

    with pytest.raises(LeaseLost, match="somebody else"):
        line.settle(verdict, received)

    assert len(line.script.done(verdict)) == 1
    assert (received.lost, line.in_hand) == (True, "")


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_retry_that_finds_the_delivery_gone_ends_there(line: Line, verdict: str) -> None:
    line.script.put("1")
    line.script.fail(verdict, OSError("cut"), LeaseLost("gone"))

    with pytest.raises(LeaseLost, match="gone"):
        line.settle(verdict, line.receive_one())

    assert len(line.script.done(verdict)) == 2
    assert line.in_hand == ""


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_stop_ends_the_retries_after_one_more(line: Line, verdict: str) -> None:
    line.script.put("1")
    line.script.broken[verdict] = TransportError("down")
    received = line.receive_one()
    line.judge.stop()

    with pytest.raises(TransportError, match="down"):
        line.settle(verdict, received)

    assert len(line.script.done(verdict)) == 2


def _lose(line: Line) -> None:
    for each in line.channel.in_hand:
        each.lost = True


VOID: dict[str, Callable[[Line], None]] = {
    "its lease has lapsed": lambda line: line.clock.advance(31.0),
    "it is known to be lost": _lose,
    "the connection is another": lambda line: setattr(line.script.consumers[-1], "generation", 1_000_000),
    "the connection is gone": lambda line: line.run(line.channel._close_consumer()),
}


@pytest.mark.parametrize("verdict", [*VERDICTS, "extend"])
@pytest.mark.parametrize("void", VOID)
def test_nothing_is_ever_sent_on_a_receipt_that_is_void(make_line: MakeLine, verdict: str, void: str) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1")
    received = line.receive_one()
    VOID[void](line)

    with pytest.raises(LeaseLost):
        line.settle(verdict, received)

    assert line.script.done() == []
    assert received.lost
    assert line.in_hand == ("1" if verdict == "extend" else "")


@pytest.mark.parametrize("options", [{"nack": "holds"}, {"requeue": "hold", "ordered": True}])
@pytest.mark.parametrize("void", VOID)
def test_what_is_not_ours_any_more_is_not_held_either(make_line: MakeLine, options: Any, void: str) -> None:
    line = make_line(renew_lease=False, **options)
    line.script.put("1")
    received = line.receive_one()
    VOID[void](line)

    with pytest.raises(LeaseLost):
        line.settle("nack" if "nack" in options else "requeue", received)

    assert (line.in_hand, line.waiting) == ("", "")


def test_a_lease_that_lapses_between_two_tries_ends_them(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1", lease=0.1)
    line.script.broken["nack"] = TransportError("down")

    with pytest.raises(LeaseLost):
        line.nack(line.receive_one())

    assert line.script.done("nack") == ["nack! 1", "nack! 1"]


def test_while_a_settlement_fails_nothing_more_is_asked_for(make_line: MakeLine) -> None:
    line = make_line()
    line.warm_up()
    line.script.put("1", "2")
    line.script.fail("reject", *[PublishError("full")] * 3)
    received = line.receive_one()
    asked: list[object] = []
    trouble = line.log.failed

    def look(doing: str, error: BaseException) -> None:
        trouble(doing, error)
        assert line.channel._retrying == 1
        with line.channel._lock:
            asked.append(0 if line.channel._retrying else line.channel._intake.room())

    line.log.failed = look  # type: ignore[method-assign] # told while the settlement is being tried again
    line.reject(received)

    assert asked == [0, 0, 0]
    assert line.channel._retrying == 0


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (PublishError("the dead letter is too large", sent=False, retriable=False), "ERROR"),
        (PublishError("no confirmation came"), "WARNING"),
    ],
)
def test_a_dead_letter_that_can_never_be_stored_is_told_of_as_an_error(
    make_line: MakeLine, caplog: pytest.LogCaptureFixture, error: PublishError, level: str
) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1", lease=5.0)
    received = line.receive_one()
    line.script.fail("reject", error)

    line.carry_out(line.judge.failed(received, RejectMessageAction("no")), received)

    told = [record.levelname for record in caplog.records if str(error) in record.getMessage()]
    assert told == [level]
