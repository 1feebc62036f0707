"""Being alone in the process: the others are kept out, and not for ever."""

import pytest

from pump.clock import ManualClock
from pump.in_hand.gate import CLAIM_SECONDS, OPEN_GATE, PATIENCE_SECONDS, Gate


class Process:
    """A gate, what is in hand, and a clock that the test moves."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.in_hand = 0
        self.gate = Gate(lambda: self.in_hand, clock)


@pytest.fixture
def process() -> Process:
    return Process(ManualClock())


def test_where_nothing_is_in_hand_one_is_admitted_and_keeps_the_others_out(process: Process) -> None:
    assert process.gate.admit("me")

    process.in_hand = 1
    process.clock.advance(100 * CLAIM_SECONDS)
    assert process.gate.closed
    assert process.gate.keeps_out("another")
    assert not process.gate.keeps_out("me")
    assert not process.gate.admit("another")


def test_when_it_has_ended_the_others_go_on(process: Process) -> None:
    process.gate.admit("me")
    process.in_hand = 1

    process.in_hand = 0
    process.gate.ended()

    assert not process.gate.closed
    assert process.gate.admit("another")


def test_it_waits_for_what_is_in_hand_and_nothing_more_begins_meanwhile(process: Process) -> None:
    process.in_hand = 2
    assert not process.gate.admit("me")
    assert process.gate.keeps_out("another")

    process.in_hand = 1
    process.gate.ended()
    assert process.gate.keeps_out("another")
    process.in_hand = 0
    process.gate.ended()
    assert process.gate.admit("me")


def test_who_does_not_ask_again_keeps_nobody_out(process: Process) -> None:
    process.in_hand = 1
    process.gate.admit("me")

    process.clock.advance(CLAIM_SECONDS)

    assert not process.gate.keeps_out("another")
    assert not process.gate.closed


def test_in_vain_for_long_the_others_go_on_for_as_long(process: Process) -> None:
    process.in_hand = 1
    waited = 0.0
    while not (waited and not process.gate.closed):
        assert not process.gate.admit("me")
        process.clock.advance(CLAIM_SECONDS / 2)
        waited += CLAIM_SECONDS / 2
    assert PATIENCE_SECONDS <= waited <= PATIENCE_SECONDS + 2

    process.in_hand = 0
    assert not process.gate.admit("me")
    process.clock.advance(PATIENCE_SECONDS)
    assert process.gate.admit("me")


def test_without_notes_everybody_is_alone_enough() -> None:
    assert OPEN_GATE.admit("me")
    assert not OPEN_GATE.closed
