"""One of many who wait is woken for a message, and no ring is lost between them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pump.clock import Signal
from pump.queue.batching.wake_one import Turns


def entered(turns: Turns, number: int) -> Sequence[Signal]:
    signals = [Signal() for _ in range(number)]
    for signal in signals:
        turns.enter(signal)
    return signals


def rung(signals: Sequence[Signal]) -> list[bool]:
    return [signal.is_set() for signal in signals]


def test_whoever_came_first_is_woken_and_nobody_else() -> None:
    turns = Turns()
    signals = entered(turns, 3)

    turns.ring()

    assert rung(signals) == [True, False, False]


def test_whoever_finds_something_wakes_the_next() -> None:
    turns = Turns()
    signals = entered(turns, 3)
    turns.ring()

    turns.leave(signals[0], found=True)

    assert rung(signals) == [True, True, False]


def test_whoever_is_woken_and_goes_passes_it_on() -> None:
    turns = Turns()
    signals = entered(turns, 2)
    turns.ring()

    turns.leave(signals[0], found=False)

    assert rung(signals) == [True, True]


def test_whoever_goes_unwoken_with_nothing_wakes_nobody() -> None:
    turns = Turns()
    signals = entered(turns, 2)

    turns.leave(signals[0], found=False)

    assert rung(signals) == [False, False]


def test_entering_twice_is_standing_there_once() -> None:
    turns = Turns()
    (signal,) = entered(turns, 1)
    turns.enter(signal)
    turns.ring()
    signal.clear()

    turns.ring()

    assert not signal.is_set()


@given(st.lists(st.sampled_from(["enter", "message", "look", "go"]), max_size=60), st.randoms(use_true_random=False))
def test_nobody_sleeps_while_there_is_a_message(acts: list[str], chance: object) -> None:
    """Whatever happens in between, of those in line one is awake as long as a message is there."""
    turns, messages = Turns(), 0
    waiting: list[Signal] = []
    for act in acts:
        if act == "enter":
            signal = Signal()
            turns.enter(signal)
            waiting.append(signal)
            if messages:  # whoever enters looks at once
                messages -= 1
                waiting.remove(signal)
                turns.leave(signal, found=True)
        elif act == "message":
            messages += 1
            turns.ring()
        elif act == "look":
            for signal in [each for each in waiting if each.is_set()][:1]:
                if messages:
                    messages -= 1
                    waiting.remove(signal)
                    turns.leave(signal, found=True)
                else:
                    signal.clear()
                    turns.enter(signal)
        elif waiting:
            turns.leave(waiting.pop(chance.randrange(len(waiting))), found=False)  # type: ignore[attr-defined]
        assert not (messages and waiting) or any(each.is_set() for each in waiting)
