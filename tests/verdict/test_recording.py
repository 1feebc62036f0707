"""What the judge tells a recorder of each delivery, and the log line of each message at DEBUG."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pump.clock import Clock, Signal
from pump.errors import TransportError
from pump.message import Message
from pump.settling import Verdict
from pump.telemetry import Acknowledged
from support.court import Court, message


class Recorder:
    """A listener that notes what its recorder is told; it is the recorder too."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __call__(self, event: str, fields: Mapping[str, object], /) -> None:
        """Events are told to all listeners."""

    def recorder(self, channel: str, clock: Clock) -> "Recorder":
        self.told.append(("opened", channel))
        return self

    def finish(self) -> Signal:
        raise NotImplementedError

    def received(self, messages: Sequence[Message]) -> None:
        raise NotImplementedError

    def acknowledged(self, row: Acknowledged) -> None:
        header, *rest = row
        self.told.append(("acknowledged", header.id, *rest))

    def decided(self, decided: Message, verdict: Verdict) -> None:
        self.told.append(("decided", decided.id, type(verdict).__name__, decided.handled_at))

    def settled(self, settled: Message, verdict: Verdict, now: float) -> None:
        times = settled.begun_at, settled.handled_at, now
        self.told.append(("settled", settled.id, type(verdict).__name__, *times))

    def unsettled(self, unsettled: Message, verdict: Verdict, error: BaseException) -> None:
        self.told.append(("unsettled", unsettled.id, type(verdict).__name__, str(error)))


class Undecided(Recorder):
    """One that need not know a verdict before it is carried out."""

    decided = None  # type: ignore[assignment] # as the protocol allows


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def handle(court: Court, delivered: Message, raised: BaseException | None = None) -> Verdict:
    """A run of two seconds, and a settling that takes three."""
    place = court.judge.begins(delivered)
    court.clock.advance(2)
    verdict = court.judge.handled(delivered) if raised is None else court.judge.failed(delivered, raised)
    court.judge.ends(place, delivered, verdict)
    court.clock.advance(3)
    return verdict


def test_of_an_acknowledged_message_it_is_told_the_verdict_and_then_the_times(recorder: Recorder) -> None:
    court, delivered = Court(listeners=[recorder]), message("m-1", deliveries=3, attempts=1)
    delivered.handler = "Sampler"
    began = court.clock.monotonic()

    court.judge.settled(delivered, handle(court, delivered))

    assert recorder.told == [
        ("opened", "samples"),
        ("decided", "m-1", "Acknowledge", began + 2),
        ("acknowledged", "m-1", "Sampler", 3, 1, began, began + 2, began + 5),
    ]


def test_of_any_other_message_too(recorder: Recorder) -> None:
    court, delivered = Court(listeners=[recorder]), message("m-1")
    began = court.clock.monotonic()

    court.judge.settled(delivered, handle(court, delivered, ValueError("bad")))

    assert recorder.told[1:] == [
        ("decided", "m-1", "Requeue", began + 2),
        ("settled", "m-1", "Requeue", began, began + 2, began + 5),
    ]


def test_a_verdict_without_a_run_is_told_before_it_is_carried_out_too(recorder: Recorder) -> None:
    court = Court(listeners=[recorder], refuses=lambda refused: "a stranger" * (refused.id == "stranger"))

    court.turn(message("torn", fault="no header"))
    court.turn(message("stranger"))

    assert [each[:3] for each in recorder.told[1:]] == [
        ("decided", "torn", "Reject"),
        ("settled", "torn", "Reject"),
        ("decided", "stranger", "Requeue"),
        ("settled", "stranger", "Requeue"),
    ]


def test_of_a_verdict_that_could_not_be_carried_out_it_is_told_why(recorder: Recorder) -> None:
    court = Court(listeners=[recorder])

    court.turn_that_cannot_be_settled(message("m-1"), None, TransportError("cut off"))

    assert recorder.told[-1] == ("unsettled", "m-1", "Acknowledge", "cut off")


def test_one_that_need_not_know_the_verdict_beforehand_is_told_once_it_is_carried_out() -> None:
    recorder = Undecided()
    court, delivered = Court(listeners=[recorder]), message("m-1")

    court.judge.settled(delivered, handle(court, delivered))
    court.turn(message("torn", fault="no header"))

    assert [each[:2] for each in recorder.told[1:]] == [("acknowledged", "m-1"), ("settled", "torn")]


def test_without_a_recorder_and_such_a_log_no_time_is_taken() -> None:
    court, delivered = Court(), message()

    handle(court, delivered)

    assert (delivered.begun_at, delivered.handled_at) == (0.0, 0.0)


def test_at_debug_each_message_has_a_line_that_says_how_long_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pump")
    court, delivered = Court(), message("m-1")

    court.judge.settled(delivered, handle(court, delivered))
    court.turn(message("torn", fault="no header"))

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert len(lines) == 2
    assert "Message acknowledged after 5000.0 ms" in lines[0]
    assert "Message given up, not handled" in lines[1]


def test_without_debug_no_message_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pump")
    court, delivered = Court(), message()

    court.judge.settled(delivered, handle(court, delivered))

    assert caplog.records == []


def test_every_verdict_that_was_carried_out_is_in_the_tally() -> None:
    court = Court()
    assert court.judge.tally() == {}

    for name in "abc":
        court.turn(message(name))
    for name in "de":
        court.turn(message(name), ValueError("bad"))

    assert court.judge.tally() == court.judge.log.totals == {"acknowledged": 3, "to come again": 2}
