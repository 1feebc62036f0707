"""What a channel holds, releases and hands back, and in which order."""

from typing import Any

import pytest

from pump.errors import DeferMessageAction, DontAckAction, TransportError
from pump.message import Message
from support.channel_fixtures import MakeLine
from support.channels import Line

pytest_plugins = ["support.channel_fixtures"]


# -- holding or releasing


@pytest.mark.requirement("B-24", "B-25")
def test_a_nack_releases_the_message_where_the_transport_can(line: Line) -> None:
    line.script.put("1")

    line.nack(line.receive_one(), 5.0)

    assert line.script.done() == ["nack 1"]
    assert (line.in_hand, line.waiting) == ("", "")


@pytest.mark.requirement("B-29", "B-30")
def test_where_it_holds_nothing_is_sent_and_the_message_is_shown_again_when_due(make_line: MakeLine) -> None:
    line = make_line(nack="holds")
    line.script.put("1", lease=None)
    received = line.receive_one()

    line.nack(received, 5.0)
    began = line.clock.monotonic()

    assert (line.receive(1.0), line.script.done()) == (None, [])
    assert line.receive_one().receipt == received.receipt
    assert line.clock.monotonic() - began == pytest.approx(5.0, abs=0.01)  # a moment later: others come first
    line.acknowledge(line.channel.in_hand[0])
    assert line.script.done() == ["acknowledge 1"]


@pytest.mark.requirement("B-33")
def test_a_held_message_comes_before_its_successors_and_none_of_them_before_it(make_line: MakeLine) -> None:
    line = make_line(nack="holds", blocks="partition")
    line.warm_up()
    line.script.put("1", "2", "3", lease=None, partition=0)
    line.script.put("other", lease=None, partition=1)
    line.nack(line.receive_one(), 5.0)

    line.acknowledge(line.receive_one())
    assert line.script.done() == ["acknowledge other"]

    handled = []
    for _ in range(3):
        handled.append(line.receive_one())
        line.acknowledge(handled[-1])
    assert [each.id for each in handled] == ["1", "2", "3"]


def test_a_message_that_the_broker_would_soon_give_up_is_held_instead_and_that_is_said_once(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.script.broker_limit = 20
    line.script.put("1", deliveries=16)
    line.nack(line.receive_one())
    line.script.put("1", deliveries=17)

    for _ in range(3):
        line.nack(line.receive_one(), 1.0)

    assert line.script.done() == ["nack 1"]
    assert caplog.text.count("Holding message: the broker gives it up after 20 deliveries, and this is number 17") == 1


def test_a_message_that_would_be_given_up_before_its_last_run_is_held_until_that(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.script.broker_limit = 4
    line.script.put("1", deliveries=2)
    line.requeue(line.receive_one(), 5.0, 1)
    line.script.put("1", deliveries=3)
    line.requeue(line.receive_one(), 5.0, 1)

    assert line.receive_one().attempts == 1
    assert line.script.done() == ["requeue 1 5.0 1"]
    assert "Holding message" in caplog.text


@pytest.mark.parametrize("options", [{"ordered": True}, {"requeue": "hold"}])
def test_a_defer_is_a_hold_where_order_is_kept_or_the_transport_has_no_delay(
    make_line: MakeLine, options: dict[str, Any]
) -> None:
    line = make_line(**options)
    line.script.put("1")
    line.requeue(line.receive_one(), 5.0, 2)

    began = line.clock.monotonic()
    again = line.receive_one()

    assert line.clock.monotonic() - began == pytest.approx(5.0)
    assert again.attempts == 2
    assert line.script.done() == []


def test_the_attempts_of_a_held_message_outlast_what_is_remembered_of_it(make_line: MakeLine) -> None:
    line = make_line(requeue="hold", max_attempts=3, renew_lease=False)
    line.script.put("1", lease=None)

    for _ in range(3):
        received = line.receive_one(within=10_000.0, timeout=1000.0)
        line.carry_out(line.judge.failed(received, DeferMessageAction(7200)), received)

    assert line.script.done() == ["reject 1 attempts exhausted"]


def test_what_was_nacked_by_another_performer_is_held_until_its_time(make_line: MakeLine) -> None:
    line = make_line(may_block=True, dont_ack_delay=5.0)
    line.script.put("1")
    received = line.receive_one()
    line.carry_out(line.judge.failed(received, DontAckAction()), received)
    began = line.clock.monotonic()
    line.script.put("1", deliveries=2)
    line.script.put("2")

    line.acknowledge(line.receive_one())
    line.acknowledge(line.receive_one())

    assert line.script.done("acknowledge") == ["acknowledge 2", "acknowledge 1"]
    assert line.clock.monotonic() - began == pytest.approx(5.0)


# -- going back before


@pytest.mark.parametrize("options", [{"ordered": True}, {"blocks": "channel"}])
def test_the_successors_go_back_in_order_before_the_nack(make_line: MakeLine, options: dict[str, Any]) -> None:
    line = make_line(**options)
    line.warm_up()
    line.script.put("1", "2", "3", "4")

    line.nack(line.receive_one(), 1.0)

    assert line.script.done() == ["hand_back 2 3 4", "nack 1"]
    assert (line.in_hand, line.waiting) == ("", "")


def test_only_those_of_its_key_go_back(line: Line) -> None:
    line.warm_up()
    for name, key in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        line.script.put(name, key=key)

    line.nack(line.receive_one())

    assert line.script.done() == ["hand_back a2", "nack a1"]
    assert line.waiting == "b1"


def test_successors_that_go_back_have_spent_nothing(make_line: MakeLine) -> None:
    line = make_line(ordered=True)

    for delivery in range(1, 15):
        line.warm_up(2)
        line.script.put("1")
        line.script.put("2", deliveries=delivery)
        line.nack(line.receive_one())
        line.script.put("1")
        line.acknowledge(line.receive_one())

    line.script.put("2", deliveries=15)
    received = line.receive_one()
    assert line.judge.arrived(received) is None
    assert not line.judge.suspect(received)


@pytest.mark.requirement("B-33")
def test_after_a_nack_one_message_is_asked_for_at_a_time_until_it_is_settled(make_line: MakeLine) -> None:
    line = make_line(ordered=True)
    line.warm_up()
    line.script.put("1")
    line.nack(line.receive_one())
    line.script.calls.clear()

    for _ in range(3):
        line.script.put("1")
        line.nack(line.receive_one())
    line.script.put("1")
    line.acknowledge(line.receive_one())
    for _ in range(2):
        line.script.put("2")
        line.acknowledge(line.receive_one())
    line.receive()

    assert line.script.done("receive") == ["receive 1"] * 5 + ["receive 2", "receive 4"]


def test_where_only_everything_can_go_back_the_nacked_message_went_with_it(make_line: MakeLine) -> None:
    line = make_line(ordered=True)
    line.script.hands_back_all = True
    line.warm_up()
    line.script.put("1", "2")
    received = line.receive_one()

    line.nack(received)

    assert line.script.done() == ["hand_back 2"]
    assert line.in_hand == ""
    line.script.put("1", deliveries=2)
    assert line.receive_one().deliveries == 2


def test_where_only_everything_can_go_back_and_nothing_waits_the_message_is_nacked(make_line: MakeLine) -> None:
    line = make_line(ordered=True)
    line.script.hands_back_all = True
    line.script.put("1")

    line.nack(line.receive_one())

    assert line.script.done() == ["nack 1"]


@pytest.mark.parametrize("lease", [None, 30.0])
@pytest.mark.parametrize("error", [TransportError("down"), OSError("cut")])
def test_a_pump_goes_on_after_the_successors_could_not_go_back(
    make_line: MakeLine, lease: float | None, error: Exception
) -> None:
    line = make_line(ordered=True)
    line.warm_up()
    line.script.put("1", "2", lease=lease)
    line.script.fail("hand_back", error)

    with pytest.raises(TransportError):
        line.nack(line.receive_one(), 1.0)
    assert line.in_hand == ""
    with pytest.raises(TransportError, match="opened again"):
        line.receive()
    line.script.put("1", "2", lease=lease, deliveries=2)

    handled = []
    for _ in range(2):
        handled.append(line.receive_one().id)
        line.acknowledge(line.channel.in_hand[0])
    assert handled == ["1", "2"]
    assert line.script.done("nack") == []


# -- suspects


def test_before_a_suspect_is_handled_the_others_go_back(make_line: MakeLine) -> None:
    line = make_line(in_flight=3)
    line.warm_up()
    line.script.put("1")
    line.script.put("killer", deliveries=5)
    line.script.put("2")

    first = line.receive_one()
    assert line.receive() is None
    line.acknowledge(first)
    assert line.receive_one().id == "killer"

    assert line.script.done() == ["acknowledge 1", "hand_back 2"]
    assert (line.in_hand, line.waiting) == ("killer", "")
    line.script.calls.clear()
    assert line.receive() is None
    assert line.script.calls == []


def test_suspects_that_had_to_go_back_are_not_given_up_for_that(line: Line) -> None:
    line.warm_up()
    for name in "abc":
        line.script.put(name, deliveries=4)
    assert line.receive_one().id == "a"
    line.acknowledge(line.channel.in_hand[0])

    for name in "bc":
        line.script.put(name, deliveries=5)
        received = line.receive_one()
        assert line.judge.arrived(received) is None
        line.acknowledge(received)

    assert line.script.done() == ["hand_back b c", "acknowledge a", "acknowledge b", "acknowledge c"]


# -- pausing


def test_a_pause_hands_back_what_waits_and_asks_for_nothing(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", "3")
    first = line.receive_one()
    line.channel.pause()

    assert line.receive() is None
    line.acknowledge(first)
    assert line.receive() is None
    assert line.script.done() == ["hand_back 2 3", "acknowledge 1"]
    assert line.script.done("receive") == ["receive 8"]


def test_a_pause_hands_back_what_is_held_first(make_line: MakeLine) -> None:
    line = make_line(nack="holds")
    line.warm_up()
    line.script.put("1", "2", lease=None)
    line.nack(line.receive_one(), 100.0)
    line.channel.pause()

    line.receive()

    assert line.script.done() == ["hand_back 1 2"]


def test_what_is_lost_is_not_handed_back(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", generation=0)
    line.script.put("3")
    line.channel.pause()
    line.channel._intake.offer(line.script.take(2, 0), line.clock.monotonic())

    line.receive()

    assert line.script.done() == []
    assert line.waiting == ""


def test_after_a_resume_it_goes_on(line: Line) -> None:
    line.channel.pause()
    line.receive()
    line.script.put("1")

    line.channel.resume()

    assert line.receive_one().id == "1"


def test_a_hand_back_that_fails_is_a_transport_error_and_the_messages_come_again(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.acknowledge(line.receive_one())
    line.script.fail("hand_back", OSError("cut"))
    line.channel.pause()

    with pytest.raises(TransportError, match="handing back failed"):
        line.receive()
    line.channel.resume()
    line.script.put("2", deliveries=2)

    assert line.receive_one().deliveries == 2
    assert [consumer.closed for consumer in line.script.consumers] == [True, False]


# -- closing


def test_closing_hands_back_in_order_what_nobody_has_begun_and_lets_go(make_line: MakeLine) -> None:
    line = make_line(nack="holds")
    line.warm_up()
    line.script.put("1", "2", "3", "4", lease=None)
    line.nack(line.receive_one(), 100.0)
    line.receive_one()

    line.close()

    assert line.script.calls[-3:] == ["interrupt", "hand_back 1 3 4", "close"]


def test_closing_hands_back_nothing_whose_lease_has_lapsed(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)
    line.warm_up()
    line.script.put("1", lease=None)
    line.script.put("2", lease=5.0)
    line.script.put("3", lease=50.0)
    line.receive_one()
    line.clock.advance(6.0)

    line.close()

    assert line.script.done() == ["hand_back 3"]


def test_closing_without_anything_here_hands_nothing_back(line: Line) -> None:
    line.receive()

    line.close()

    assert line.script.done() == []
    assert line.script.calls[-1] == "close"


def test_closing_succeeds_though_nothing_works_any_more(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.receive_one()
    line.script.fail("hand_back", OSError("cut"))
    line.script.fail("close", OSError("cut"))

    line.close()

    assert "handing back failed" in caplog.text
    assert "closing failed" in caplog.text


def test_closing_what_never_opened_does_nothing(line: Line) -> None:
    line.close()

    assert line.script.calls == []


# -- purging


def test_a_purge_empties_the_broker_and_what_waits_here_and_keeps_what_is_in_hand(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", "3")
    received = line.receive_one()

    assert line.purge() == 7

    assert line.script.done() == ["hand_back 2 3", "purge"]
    line.acknowledge(received)
    assert line.script.done()[-1] == "acknowledge 1"


def test_a_purge_connects_if_need_be(line: Line) -> None:
    assert line.purge() == 7
    assert line.script.calls == ["open", "purge"]


# -- going back while a handler runs


def driven(result: Any) -> None:
    """Run a call of either colour to its end, here, in the midst of another call."""
    while result is not None:
        try:
            result.send(None)
        except StopIteration:
            return


def standing(make_line: MakeLine) -> Line:
    """An ordered channel with a message of partition 0 in hand, and two of partition 1 behind it."""
    line = make_line(ordered=True, blocks="partition", in_flight=2)
    line.warm_up()
    line.script.put("a1", partition=0)
    line.script.put("b1", "b2", partition=1)
    assert line.receive_one().id == "a1"
    line.channel.pause()
    return line


@pytest.mark.requirement("B-33")
def test_nothing_is_received_while_earlier_messages_go_back(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = standing(make_line)
    rooms: list[int] = []

    def note(call: str, *_: object) -> None:
        if call == "hand_back":
            line.channel.resume()
            rooms.append(line.channel._next_receive(0.1)[1])

    monkeypatch.setattr(line.script, "note", note)
    driven(line.channel.hand_back_waiting())
    rooms.append(line.channel._next_receive(0.1)[1])

    assert rooms[0] == 0
    assert rooms[1] > 0


@pytest.mark.requirement("B-33")
@pytest.mark.parametrize("ordered", [True, False])
def test_what_was_received_while_earlier_messages_went_back_goes_back_too_where_order_is_kept(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    line = make_line(ordered=ordered, blocks="partition", in_flight=2)
    line.warm_up()
    line.script.put("a1", partition=0)
    line.script.put("b1", "b2", partition=1)
    assert line.receive_one().id == "a1"
    take = line.script.take

    def take_late(limit: int, generation: int) -> list[Message]:
        """The broker gives b3; before the channel has it, b1 and b2 go back."""
        monkeypatch.setattr(line.script, "take", take)
        line.channel.pause()
        driven(line.channel.hand_back_waiting())
        line.channel.resume()
        return take(limit, generation)

    monkeypatch.setattr(line.script, "take", take_late)
    line.script.put("b3", partition=1)
    line.run(line.channel.fill(0.1))

    assert line.script.done() == ["hand_back b1 b2", *(["hand_back b3"] if ordered else [])]
    assert line.waiting == ("" if ordered else "b3")
