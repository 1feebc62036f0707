"""When a channel renews leases, and what it notes of those that ended because a loop was blocked."""

from typing import Any

import pytest

from pump.errors import LeaseLost
from pump.message import Message
from pump.transport_kit.protocol import new_generation
from support.channel_fixtures import MakeLine
from support.channels import AsyncScriptedConsumer, Line

pytest_plugins = ["support.channel_fixtures"]


def test_a_lease_is_renewed_when_a_third_of_it_is_left(line: Line) -> None:
    line.script.put("1", lease=30.0)
    line.receive_one()

    for _ in range(19):
        line.advance(1.0)
    assert line.script.done("extend") == []
    line.advance(1.0)
    assert line.script.done("extend") == ["extend 1"]


def test_a_very_short_lease_is_renewed_in_time(line: Line) -> None:
    line.script.lease = 0.3
    line.script.put("1")
    line.receive_one()

    for _ in range(4):
        line.advance(0.07)

    assert line.script.done("extend") != []


def test_after_the_close_nothing_is_renewed(line: Line) -> None:
    line.script.put("1")
    line.receive_one()
    consumer = line.script.consumers[-1]
    line.close()
    line.script.calls.clear()

    assert len(line.clock._agenda) == 0
    line.advance(100.0)

    assert consumer.closed
    assert line.script.done("extend") == []


@pytest.fixture
def without_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Awaiting consumers renew leases without their loop."""

    def extend_from_thread(consumer: AsyncScriptedConsumer, message: Message) -> None:
        consumer._consumer.extend(message)

    monkeypatch.setattr(AsyncScriptedConsumer, "extend_from_thread", extend_from_thread, raising=False)


@pytest.mark.usefixtures("without_the_loop")
@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_where_it_can_be_done_without_the_loop_a_blocked_loop_loses_nothing(make_line: MakeLine) -> None:
    line = make_line()
    line.script.put("1")
    received = line.receive_one()

    for _ in range(12):
        line.clock.advance(10.0)  # the loop does not run

    assert line.script.done("extend") == ["extend 1"] * len(line.script.done("extend"))
    assert len(line.script.done("extend")) > 3
    line.acknowledge(received)


@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
@pytest.mark.parametrize(
    ("before", "after", "blocked"),
    [
        (0.0, 45.0, 45.0),
        (10.0, 35.0, 35.0),  # ten seconds after it came, the loop still ran
    ],
)
def test_a_loop_was_blocked_since_it_last_renewed(
    make_line: MakeLine, before: float, after: float, blocked: float
) -> None:
    line = make_line()
    line.script.put("1")
    received = line.receive_one()
    if before:
        line.advance(before)

    line.clock._now += after
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert received.blocked_seconds == pytest.approx(blocked)


@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_no_message_was_blocked_for_longer_than_it_was_here(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.script.put("1")
    line.receive_one()
    line.clock._now += 5.0
    line.script.put("2")
    received = line.receive_one()

    line.clock._now += 45.0
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert received.blocked_seconds == pytest.approx(45.0)


@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_a_loop_that_was_late_by_less_than_two_renewals_was_not_blocked(make_line: MakeLine) -> None:
    line = make_line()
    line.script.broken["extend"] = OSError("away")
    line.script.put("1")
    received = line.receive_one()
    line.advance(10.0)
    line.advance(10.0)

    line.clock._now += 11.0  # the lease has ended; it could not be renewed a second ago either
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert received.blocked_seconds == 0.0


@pytest.mark.usefixtures("without_the_loop")
def test_without_the_loop_too_a_lease_is_renewed_when_a_third_of_it_is_left(line: Line) -> None:
    test_a_lease_is_renewed_when_a_third_of_it_is_left(line)


@pytest.mark.usefixtures("without_the_loop")
def test_without_the_loop_too_nothing_of_another_connection_is_renewed(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.warm_up()
    line.script.put("void", "ours")
    line.receive_one()
    line.receive_one().generation = line.script.consumers[-1].generation = new_generation()

    line.advance(25.0)

    assert set(line.script.done()) == {"extend ours"}


@pytest.mark.parametrize(("late", "blocked"), [(20.0, 0.0), (20.5, 20.5), (25.0, 25.0)])
@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_a_loop_was_blocked_if_it_was_late_by_two_renewals(make_line: MakeLine, late: float, blocked: float) -> None:
    line = make_line()
    line.script.put("1", lease=30.0)
    received = line.receive_one()
    received.lease_expires = line.clock.monotonic() + late

    line.clock._now += late
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert received.blocked_seconds == pytest.approx(blocked)


def test_a_pump_that_blocks_has_no_loop_that_could_be_blocked(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()

    line.clock._now += 45.0
    with pytest.raises(LeaseLost):
        line.acknowledge(received)

    assert (received.blocked_seconds > 0.0) == (line.colour == "awaiting")


@pytest.mark.parametrize("late", [0.0, 45.0])
def test_a_handler_whose_lease_ends_is_ended_at_the_next_renewal(line: Line, late: float) -> None:
    line.script.broken["extend"] = OSError("away")
    line.script.put("1", lease=30.0)
    received = line.receive_one()
    ended: list[str] = []
    received.interrupt = lambda: ended.append(received.id)
    if not late:
        line.advance(29.0)
        assert ended == []

    line.clock._now += late
    line.advance(1.5)

    assert ended == ["1"]
    assert received.lost
    assert (received.blocked_seconds > 0.0) == (line.colour == "awaiting" and late > 0.0)


def test_what_is_lost_while_it_waits_is_not_here_any_more_at_the_next_renewal(line: Line) -> None:
    def extend(message: Message) -> None:
        asked.append(message.id)
        if message.id == "2":
            raise LeaseLost("it went back")
        renew(message)

    line.warm_up()
    line.script.put("1", lease=30.0)
    line.script.put("2", lease=45.0)
    line.receive_one()
    asked: list[str] = []
    consumer: Any = line.script.consumers[-1]
    renew, consumer.extend = consumer.extend, extend

    for _ in range(31):
        line.advance(1.0)
    assert ("2" in asked, line.waiting) == (True, "2")
    for _ in range(10):
        line.advance(1.0)

    assert (line.waiting, line.in_hand) == ("", "1")
