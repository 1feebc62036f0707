"""What becomes of a message whose verdict cannot be carried out for long: it comes later, and those behind it go on."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pump.errors import LeaseLost, TransportError
from pump.pumps.channel_base import RETRY_FIRST, RETRY_LONGEST, RETRY_SECONDS
from pump.transport_kit.parking import PARKED_SECONDS
from pump.transport_kit.protocol import new_generation
from support.channel_fixtures import MakeLine
from support.channels import Line

pytest_plugins = ["support.channel_fixtures"]

AWAY = TransportError("away")


def given_up(line: Line, name: str = "1") -> None:
    """A message that cannot be acknowledged: it is tried for as long as may be."""
    line.script.put(name)
    received = line.receive_one()
    line.script.broken["acknowledge"] = AWAY
    with pytest.raises(TransportError, match="away"):
        line.acknowledge(received)
    del line.script.broken["acknowledge"]


def instead_of_acknowledging(line: Line, act: Callable[[], Any]) -> None:
    consumer: Any = line.script.consumers[-1]
    consumer.acknowledge = lambda _: act()


def test_it_is_requeued_and_the_channel_goes_on(line: Line) -> None:
    given_up(line)

    assert line.script.done("requeue") == [f"requeue 1 {PARKED_SECONDS} 0"]
    line.script.put("2")
    line.acknowledge(line.receive_one())
    assert len(line.script.consumers) == 1


@pytest.mark.parametrize("options", [{"ordered": True}, {"requeue": "hold"}], ids=["ordered", "not requeued here"])
def test_it_is_held_where_it_is_not_requeued_and_comes_again_later(make_line: MakeLine, options: Any) -> None:
    line = make_line(**options)
    given_up(line)
    parked_at = line.clock.monotonic()

    again = line.receive_one(within=2 * PARKED_SECONDS)

    assert (again.id, line.script.done("requeue")) == ("1", [])
    assert line.clock.monotonic() - parked_at == pytest.approx(PARKED_SECONDS, abs=0.5)
    line.acknowledge(again)
    assert len(line.script.consumers) == 1


@pytest.mark.parametrize(
    ("error", "said"), [(OSError("no room"), "giving back failed: no room"), (LeaseLost("it went back"), "")]
)
def test_if_it_cannot_be_requeued_either_the_channel_is_opened_again(
    line: Line, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    line.script.broken["requeue"] = error

    given_up(line)

    assert ("giving back failed" in caplog.text) == bool(said)
    assert said in caplog.text
    with pytest.raises(TransportError, match="the channel is opened again: away"):
        line.receive()
    line.receive()
    assert len(line.script.consumers) == 2


@pytest.mark.parametrize("change", ["another connection", "no consumer"])
def test_what_has_gone_back_meanwhile_is_not_requeued(line: Line, change: str) -> None:
    tries: list[object] = []

    def fail_for_the_last_time_at_the_second_try() -> None:
        tries.append(change)
        if len(tries) > 1:
            line.clock.advance(RETRY_SECONDS)
            if change == "no consumer":
                line.channel._consumer = None
            else:
                line.script.consumers[-1].generation = new_generation()
        raise AWAY

    line.script.put("1")
    received = line.receive_one()
    instead_of_acknowledging(line, fail_for_the_last_time_at_the_second_try)

    with pytest.raises(TransportError, match="away"):
        line.acknowledge(received)

    assert (len(tries), line.script.done("requeue")) == (2, [])
    with pytest.raises(TransportError, match="the channel is opened again: away"):
        line.receive()


def test_it_is_tried_after_growing_times(line: Line) -> None:
    tried: list[float] = []

    def fail() -> None:
        tried.append(line.clock.monotonic())
        raise AWAY

    line.script.put("1")
    received = line.receive_one()
    instead_of_acknowledging(line, fail)
    with pytest.raises(TransportError, match="away"):
        line.acknowledge(received)

    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert waits[:5] == pytest.approx([RETRY_FIRST * 2**n for n in range(5)])
    assert max(waits) == pytest.approx(RETRY_LONGEST)


def test_after_the_longest_time_it_is_not_tried_again(line: Line) -> None:
    tried: list[float] = []

    def fail_until_the_time_is_over() -> None:
        tried.append(line.clock.monotonic())
        line.clock.advance(RETRY_SECONDS - line.clock.monotonic() + tried[0] if len(tried) > 1 else 0.0)
        raise AWAY

    line.script.put("1")
    received = line.receive_one()
    instead_of_acknowledging(line, fail_until_the_time_is_over)

    with pytest.raises(TransportError, match="away"):
        line.acknowledge(received)

    assert len(tried) == 2


def test_once_it_is_another_consumers_it_is_not_tried_again(line: Line) -> None:
    errors = [AWAY, LeaseLost("another consumer has it")]

    def fail() -> None:
        raise errors.pop(0)

    line.script.put("1")
    received = line.receive_one()
    instead_of_acknowledging(line, fail)

    with pytest.raises(LeaseLost, match="another consumer has it"):
        line.acknowledge(received)

    assert (errors, received.lost) == ([], True)
