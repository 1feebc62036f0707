"""Who waits for a channel is woken by what he waits for, and nothing that went back is overtaken."""

from typing import Any

import pytest

from pump.errors import LeaseLost, TransportError
from pump.transport_kit.protocol import ignore_uncounted, new_generation
from support.channel_fixtures import MakeLine
from support.channels import AsyncScriptedConsumer, Line, ScriptedConsumer

pytest_plugins = ["support.channel_fixtures"]


def waits_for_room(line: Line) -> None:
    """Somebody waits, until there is room or a time is over."""
    assert line.run(line.channel.fill(0.1)) is True
    assert line.channel._waiting
    assert not line.channel._changed.is_set()


def test_a_handler_that_settled_its_message_before_it_returned_makes_room(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    waits_for_room(line)
    received.explicit = received.settled = True

    line.leave_unsettled(received)

    assert line.channel._changed.is_set()
    line.script.put("2")
    assert line.receive_one(within=0.3).id == "2"


def test_a_batch_that_has_gone_back_makes_room(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.warm_up()
    line.script.put("1", "2", "3")
    line.receive_one()
    line.receive_one()
    assert line.waiting == "3"
    assert [each.id for each in line.channel._may_go_back()] == ["3"]
    waits_for_room(line)

    line.channel._has_gone_back()

    assert line.channel._changed.is_set()


def test_where_only_everything_can_go_back_nothing_does_beside_what_is_in_hand(make_line: MakeLine) -> None:
    line = make_line(in_flight=2, hands_back="all")
    line.warm_up()
    line.script.put("1", "2", "3")
    line.receive_one()
    line.receive_one()

    assert line.channel._may_go_back() == ()
    assert line.waiting == "3"


@pytest.mark.parametrize("began", ["before", "meanwhile"])
def test_what_is_received_while_others_go_back_goes_back_behind_them(
    make_line: MakeLine, monkeypatch: pytest.MonkeyPatch, began: str
) -> None:
    line = make_line(ordered=True)
    line.warm_up()
    line.script.put("1", "2")
    line.acknowledge(line.receive_one())
    assert line.waiting == "2"
    channel, consumer = line.channel, line.script.consumers[-1]
    before, receive = channel._next_receive, consumer.receive

    def next_receive(timeout: float) -> Any:
        found = before(timeout)
        channel._may_go_back()
        return found

    def receive_and_then(limit: int, timeout: float) -> Any:
        messages = receive(limit, timeout)
        if began == "before":
            channel._has_gone_back()
        else:
            channel._may_go_back()
        return messages

    if began == "before":
        monkeypatch.setattr(channel, "_next_receive", next_receive)
    monkeypatch.setattr(consumer, "receive", receive_and_then)
    line.script.put("3")

    assert line.run(channel.fill(0.3)) is True

    assert line.script.done("hand_back") == ["hand_back 3"]
    assert line.waiting == ""


def test_a_finish_is_woken_by_the_last_settlement(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)
    line.channel.interrupt()  # it must not end, or look again and again, because of what was before
    woken: list[bool] = []

    def settle() -> None:
        line.channel._free_slot(received)
        woken.append(line.channel._changed.is_set())

    line.clock.alarm(2.0, settle)
    line.finish(10.0)

    assert woken == [True]


@pytest.mark.parametrize("timeout", [0.5, 3.0])
def test_a_finish_waits_for_as_long_as_it_may(line: Line, timeout: float) -> None:
    line.script.put("1")
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)
    began = line.clock.monotonic()

    line.finish(timeout)

    assert line.clock.monotonic() - began == pytest.approx(timeout)


# -- consumers that come and go


def test_a_consumer_that_receives_ahead_tells_what_it_gives_back(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (ScriptedConsumer, AsyncScriptedConsumer):
        monkeypatch.setattr(each, "on_uncounted", staticmethod(ignore_uncounted), raising=False)

    line.receive()

    consumer: Any = line.channel._consumer
    assert consumer.on_uncounted == line.judge.handed_back


def test_one_that_does_not_is_left_alone(line: Line) -> None:
    line.receive()

    assert not hasattr(line.channel._consumer, "on_uncounted")


def test_a_message_of_another_connection_is_not_handed_out(line: Line) -> None:
    line.script.put("void", generation=new_generation())

    assert line.receive() is None
    assert (line.waiting, line.in_hand) == ("", "")


def test_a_new_consumer_is_asked_for_as_much_as_if_nothing_were_here(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2", "3", "4")
    line.receive_one()
    assert line.waiting == "2 3 4"
    line.run(line.channel._close_consumer())
    line.script.calls.clear()

    line.run(line.channel.fill(0.3))

    assert line.script.done("receive") == ["receive 7"]  # one is still being handled


def test_a_close_without_a_consumer_gives_nothing_back(line: Line) -> None:
    line.warm_up()
    line.script.put("1", "2")
    line.receive_one()
    line.run(line.channel._close_consumer())

    line.close()

    assert line.script.done() == []


def test_a_lease_has_ended_at_its_last_moment(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1", lease=30.0)
    received = line.receive_one()

    line.clock._now = received.lease_expires or 0.0
    with pytest.raises(LeaseLost, match="has expired"):
        line.acknowledge(received)


def test_a_receive_that_failed_is_no_sign_that_the_channel_works(line: Line) -> None:
    line.script.fail("receive", TransportError("away"), TransportError("away"))
    waits = []
    for _ in range(2):
        with pytest.raises(TransportError) as failed:
            line.run(line.channel.fill(0.3))
        waits.append(line.judge.disconnected(failed.value))

    assert waits == pytest.approx([1.0, 1.35])
