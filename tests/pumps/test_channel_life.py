"""A channel's leases, and its way from the first receive to the end."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pump.clock import Signal, SystemClock
from pump.errors import LeaseLost, TransportError
from pump.ledger import Ledger
from pump.message import Message
from pump.pump_log import PumpLog
from pump.pumps.async_channel import AsyncChannel
from pump.pumps.channel import Channel
from pump.settling import UNSETTLED, Reject
from pump.telemetry import Telemetry
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import new_generation
from pump.transports.memory import MemoryTransport
from pump.verdict import Judge
from support.channel_fixtures import MakeLine
from support.channels import Line, capabilities
from support.court import message, rules
from support.waiting import eventually

pytest_plugins = ["support.channel_fixtures"]


# -- leases


def test_the_leases_of_all_that_is_here_are_renewed_for_as_long_as_it_is_here(make_line: MakeLine) -> None:
    line = make_line(in_flight=2, ordered=True)
    line.warm_up()
    for name, key in (("hand", "a"), ("held", "b"), ("buffered", "a")):
        line.script.put(name, key=key)
    received = line.receive_one()
    line.requeue(line.receive_one(), 500.0)
    line.script.calls.clear()

    for _ in range(12):
        line.advance(10.0)

    assert {call.split()[1] for call in line.script.calls} == {"hand", "held", "buffered"}
    assert not received.lost
    line.acknowledge(received)
    assert line.receive_one().id == "buffered"


def test_what_is_settled_is_not_renewed(line: Line) -> None:
    line.script.put("1")
    line.acknowledge(line.receive_one())

    line.advance(100.0)

    assert line.script.done("extend") == []


def test_what_its_handler_left_is_not_renewed_and_frees_its_slot_when_its_lease_ends(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)
    line.script.put("2")

    line.advance(29.0)
    assert (line.receive(0.1), line.script.done("extend")) == (None, [])
    line.advance(1.0)
    assert line.receive_one().id == "2"
    assert received.lost


def test_without_renewal_a_lease_just_ends(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)
    line.script.put("1")
    received = line.receive_one()

    line.advance(31.0)

    assert line.script.done("extend") == []
    with pytest.raises(LeaseLost):
        line.acknowledge(received)


def test_a_renewal_that_fails_is_tried_again_and_disturbs_nothing(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.script.put("1", lease=90.0)
    line.script.lease = 90.0
    received = line.receive_one()
    line.script.fail("extend", OSError("cut"))

    line.advance(61.0)
    assert "renewing failed: cut" in caplog.text
    line.acknowledge(received)


def test_what_came_by_another_connection_is_not_renewed_and_keeps_no_other_from_it(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.warm_up()
    line.script.put("void", "ours")
    line.receive_one()
    line.receive_one().generation = line.script.consumers[-1].generation = new_generation()

    line.advance(25.0)

    assert set(line.script.done()) == {"extend ours"}


def test_between_two_connections_nothing_is_renewed(line: Line) -> None:
    line.script.put("1")
    line.receive_one()
    line.run(line.channel._close_consumer())

    line.advance(25.0)

    assert line.script.done() == []


def test_a_handler_whose_message_is_lost_is_told(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    told: list[str] = []
    received.interrupt = lambda: told.append("ended")
    line.script.fail("extend", LeaseLost("somebody else has it"))

    line.advance(25.0)

    assert (told, received.lost) == (["ended"], True)
    assert line.in_hand == "1"


@pytest.mark.parametrize("cause", ["lease", "generation"])
def test_a_handler_is_told_when_a_receive_finds_its_message_lost(make_line: MakeLine, cause: str) -> None:
    line = make_line(in_flight=2, renew_lease=False)
    line.script.put("1")
    received = line.receive_one()
    told: list[str] = []
    received.interrupt = lambda: told.append("ended")

    if cause == "lease":
        line.advance(31.0)
    else:
        line.script.consumers[-1].generation = new_generation()
    line.receive()

    assert told[:1] == ["ended"]


def test_telling_a_handler_may_use_the_channel_and_may_fail(
    make_line: MakeLine, caplog: pytest.LogCaptureFixture
) -> None:
    line = make_line(in_flight=3)
    line.warm_up()
    for name in "12":
        line.script.put(name)
        received = line.receive_one()
        received.interrupt = lambda: (line.channel.resume(), line.channel.in_hand, 1 / 0)  # type: ignore[assignment]
    line.script.consumers[-1].generation = new_generation()

    line.receive()

    assert caplog.text.count("interrupting failed: division by zero") >= 2


def test_a_handler_may_extend_its_lease(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    line.clock.advance(20.0)

    line.extend(received)

    assert received.lease_expires == line.clock.monotonic() + 30.0


def test_what_lapsed_in_the_buffer_has_spent_nothing(make_line: MakeLine) -> None:
    line = make_line(renew_lease=False)

    for delivery in range(1, 20):
        line.warm_up(2)
        line.script.put("1")
        line.script.put("2", deliveries=delivery)
        received = line.receive_one()
        line.clock.advance(31.0)
        with pytest.raises(LeaseLost):
            line.acknowledge(received)
        assert line.receive() is None

    line.script.put("2", deliveries=20)
    assert line.judge.arrived(line.receive_one()) is None


@pytest.mark.parametrize("line_colour", ["awaiting"], indirect=True)
def test_what_its_loop_could_not_renew_counts_an_attempt_each_time_and_ends_at_the_budget(
    make_line: MakeLine, caplog: pytest.LogCaptureFixture
) -> None:
    line = make_line(max_attempts=3)
    for delivery in range(1, 4):
        line.script.put("1", deliveries=delivery)
        received = line.receive_one()
        assert line.judge.arrived(received) is None
        received.handler = "Slow"
        line.clock._now += 45.0  # nobody was woken meanwhile
        verdict = line.judge.handled(received)
        with pytest.raises(LeaseLost) as lost:
            line.carry_out(verdict, received)
        line.judge.unsettled(received, verdict, lost.value)
        line.advance(1.0)

    line.script.put("1", deliveries=4)
    verdict_at_last = line.judge.arrived(line.receive_one())

    assert isinstance(verdict_at_last, Reject)
    assert verdict_at_last.rejection.attempts == 3
    assert caplog.text.count("event loop was blocked for 45.0 s") == 3
    assert "handler Slow" in caplog.text


def test_a_lease_that_an_outage_let_lapse_counts_no_attempt(line: Line) -> None:
    line.script.broken["extend"] = OSError("away")
    for delivery in range(1, 6):
        line.script.put("1", deliveries=delivery)
        received = line.receive_one()
        for _ in range(4):
            line.advance(10.0)
        verdict = line.judge.handled(received)
        assert line.judge.arrived(received) is None
        line.settle("leave_unsettled", received)
        assert verdict is UNSETTLED


# -- left


def test_a_message_without_a_lease_that_nobody_settles_is_told_of_after_half_a_minute(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.script.put("1", lease=None)
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)

    line.advance(29.9)
    assert caplog.text == ""
    line.advance(0.2)

    assert caplog.text.count("the message is not settled yet") == 1
    assert line.in_hand == "1"


def test_one_that_was_settled_meanwhile_is_not_told_of(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.script.put("1", lease=None)
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)
    received.claim()
    line.acknowledge(received)

    line.advance(31.0)

    assert caplog.text == ""
    assert line.in_hand == ""


@pytest.mark.parametrize("state", ["settled", "lost", "nobody's"])
def test_leaving_what_nobody_will_settle_any_more_frees_its_slot(line: Line, state: str) -> None:
    line.script.put("1", lease=None)
    received = line.receive_one()
    received.settled, received.lost = state == "settled", state == "lost"

    line.leave_unsettled(received)

    assert line.in_hand == ""


@pytest.mark.parametrize("lease", [None, 30.0])
def test_a_message_whose_turn_died_gives_its_slot_back_and_comes_again(line: Line, lease: float | None) -> None:
    line.script.put("1", lease=lease)
    received = line.receive_one()

    line.channel.abandon(received)
    line.script.put("2")

    assert (received.lost, line.in_hand) == (True, "")
    if lease is None:
        with pytest.raises(TransportError, match="opened again: the task of message 1 ended unexpectedly"):
            line.receive()
    assert line.receive_one().id == "2"
    assert len(line.script.consumers) == (2 if lease is None else 1)


# -- the end


def test_finishing_waits_until_what_was_left_is_settled(line: Line) -> None:
    line.script.put("1")
    received = line.receive_one()
    received.explicit = True
    line.leave_unsettled(received)
    waits = line.clock.waits

    line.finish(7.0)
    assert waits[-1] == 7.0

    line.acknowledge(received)
    waits.clear()
    line.finish(7.0)
    assert not waits


def test_finishing_waits_for_nothing_that_is_lost_or_that_the_pump_settles(make_line: MakeLine) -> None:
    line = make_line(in_flight=2)
    line.warm_up()
    line.script.put("1", "2")
    lost, _ = line.receive_one(), line.receive_one()
    lost.explicit = lost.lost = True
    line.clock.waits.clear()

    line.finish(7.0)

    assert not line.clock.waits


def test_after_a_stop_nothing_is_asked_for_but_what_is_in_hand_can_be_settled(line: Line) -> None:
    line.warm_up()
    line.script.put("1")
    received = line.receive_one()
    line.channel.stop()
    line.script.put("2")
    line.script.calls.clear()

    assert line.receive() is None
    line.acknowledge(received)
    assert line.script.calls == ["acknowledge 1"]


def test_a_stop_succeeds_though_the_consumer_cannot_be_interrupted(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.receive()
    line.script.fail("interrupt", OSError("cut"))

    line.channel.stop()

    assert "interrupting failed: cut" in caplog.text
    assert line.channel._changed.is_set()


# -- in real time


class Running:
    """A channel in real time over the memory bus, which may be slow to open, with receives in a thread."""

    def __init__(self, line: Line) -> None:
        self.clock = SystemClock()
        self.loop = LoopThread("line") if line.loop is not None else None
        self.bus = MemoryTransport(clock=self.clock)
        self.opened = Signal()
        self.may_open = Signal()
        self.may_open.set()
        self.judge = Judge(rules(), Ledger(self.clock), self.clock, PumpLog("samples", Telemetry()))
        parts = (capabilities(), self.judge)
        self.channel: Channel | AsyncChannel = (
            Channel(self._open, *parts) if self.loop is None else AsyncChannel(self._open_async, *parts)
        )
        self.took = -1.0
        self.received: Message | None = None

    def _open(self) -> Any:
        self.opened.set()
        self.clock.wait(self.may_open, 10)
        return self.bus.consumer(rules())

    async def _open_async(self) -> Any:
        self.opened.set()
        await self.clock.wait_async(self.may_open, 10)
        return await self.bus.async_consumer(rules())

    def run(self, result: Any) -> Any:
        return result if self.loop is None else self.loop.run(result)

    def receiving(self, timeout: float) -> threading.Thread:
        """A receive that is under way when this returns."""

        def receive() -> None:
            self.received = self.run(self.channel.receive(timeout))

        thread = threading.Thread(target=receive)
        thread.start()
        self.clock.wait(self.opened, 10)
        return thread

    def close(self) -> None:
        self.run(self.channel.close())
        if self.loop is not None:
            self.loop.close()


@pytest.fixture
def running(line: Line) -> Iterator[Running]:
    made = Running(line)
    yield made
    made.close()


def quickest(act: Callable[[], float], times: int = 5) -> float:
    """The shortest of several measured times: a busy machine may make any single one longer."""
    return min(act() for _ in range(times))


@pytest.mark.parametrize("way", ["stop", "pause"])
def test_a_waiting_receive_ends_within_50_ms_of_a_stop_or_a_pause(running: Running, way: str) -> None:
    def once() -> float:
        running.channel._closed = running.channel._paused = False
        thread = running.receiving(10.0)
        eventually(lambda: running.channel._consumer is not None and _is_waiting(running))
        began = time.monotonic()
        getattr(running.channel, way)()
        thread.join()
        return time.monotonic() - began

    assert quickest(once) < 0.05
    assert running.received is None


def _is_waiting(running: Running) -> bool:
    channel = running.bus.bus.find("samples")
    return channel is not None and len(channel.waiting) > 0


def test_a_stop_while_the_consumer_is_being_opened_ends_the_receive_at_once(running: Running) -> None:
    running.may_open.clear()
    thread = running.receiving(10.0)

    running.channel.stop()
    began = time.monotonic()
    running.may_open.set()
    thread.join()

    assert time.monotonic() - began < 5.0
    assert running.received is None


def test_two_who_need_a_consumer_at_once_open_one(running: Running) -> None:
    running.may_open.clear()
    purged: list[object] = []
    first = running.receiving(0.0)
    running.opened.clear()
    second = threading.Thread(target=lambda: purged.append(running.run(running.channel.purge())))
    second.start()

    again = running.clock.wait(running.opened, 0.05)
    running.may_open.set()
    first.join()
    second.join()

    assert not again
    assert purged == [0]


def test_a_message_wakes_a_receive_that_waits_for_room(running: Running) -> None:
    running.run(running.channel.receive(0.0))
    running.bus.bus.publish([_sample("1"), _sample("2")])
    first = running.run(running.channel.receive(1.0))
    thread = running.receiving(10.0)
    eventually(lambda: running.channel._waiting)

    running.run(running.channel.acknowledge(first))
    thread.join()

    assert running.run(running.channel.receive(1.0)).id == "2"


def _sample(name: str) -> Message:
    made = message(name)
    made.header = made.header._replace(topic="samples")
    return made


def test_a_cancelled_receive_of_the_awaiting_channel_loses_nothing() -> None:
    async def scenario() -> list[str]:
        clock = SystemClock()
        bus = MemoryTransport(clock=clock)
        judge = Judge(rules(), Ledger(clock), clock, PumpLog("samples", Telemetry()))
        channel = AsyncChannel(lambda: bus.async_consumer(rules()), capabilities(), judge)
        await channel.receive(0.0)
        receiving = asyncio.create_task(channel.receive(10.0))
        await asyncio.sleep(0)
        receiving.cancel()
        bus.bus.publish([_sample("1")])
        with pytest.raises(asyncio.CancelledError):
            await receiving
        received = await channel.receive(1.0)
        await channel.close()
        return [] if received is None else [received.id]

    assert asyncio.run(scenario()) == ["1"]
