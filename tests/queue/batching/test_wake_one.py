"""A message wakes one of many waiting consumers, and no wake-up is lost between them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pump.clock import Signal
from pump.queue.batching.wake_one import WakeOne


def entered(wake_one: WakeOne, number: int) -> Sequence[Signal]:
    signals = [Signal() for _ in range(number)]
    for signal in signals:
        wake_one.enter(signal)
    return signals


def woken(signals: Sequence[Signal]) -> list[bool]:
    return [signal.is_set() for signal in signals]


def test_whoever_came_first_is_woken_and_nobody_else() -> None:
    wake_one = WakeOne()
    signals = entered(wake_one, 3)

    wake_one.wake()

    assert woken(signals) == [True, False, False]


def test_whoever_finds_something_wakes_the_next() -> None:
    wake_one = WakeOne()
    signals = entered(wake_one, 3)
    wake_one.wake()

    wake_one.leave(signals[0], found=True)

    assert woken(signals) == [True, True, False]


def test_whoever_is_woken_and_goes_passes_it_on() -> None:
    wake_one = WakeOne()
    signals = entered(wake_one, 2)
    wake_one.wake()

    wake_one.leave(signals[0], found=False)

    assert woken(signals) == [True, True]


def test_whoever_goes_unwoken_with_nothing_wakes_nobody() -> None:
    wake_one = WakeOne()
    signals = entered(wake_one, 2)

    wake_one.leave(signals[0], found=False)

    assert woken(signals) == [False, False]


def test_entering_twice_is_standing_there_once() -> None:
    wake_one = WakeOne()
    (signal,) = entered(wake_one, 1)
    wake_one.enter(signal)
    wake_one.wake()
    signal.clear()

    wake_one.wake()

    assert not signal.is_set()


@given(st.lists(st.sampled_from(["enter", "message", "look", "go"]), max_size=60), st.randoms(use_true_random=False))
def test_nobody_sleeps_while_there_is_a_message(acts: list[str], chance: object) -> None:
    """As long as there is a message, one consumer in the line is awake, whatever happens."""
    wake_one, messages = WakeOne(), 0
    waiting: list[Signal] = []
    for act in acts:
        if act == "enter":
            signal = Signal()
            wake_one.enter(signal)
            waiting.append(signal)
            if messages:  # a consumer that enters looks at once
                messages -= 1
                waiting.remove(signal)
                wake_one.leave(signal, found=True)
        elif act == "message":
            messages += 1
            wake_one.wake()
        elif act == "look":
            for signal in [each for each in waiting if each.is_set()][:1]:
                if messages:
                    messages -= 1
                    waiting.remove(signal)
                    wake_one.leave(signal, found=True)
                else:
                    signal.clear()
                    wake_one.enter(signal)
        elif waiting:
            wake_one.leave(waiting.pop(chance.randrange(len(waiting))), found=False)  # type: ignore[attr-defined]
        assert not (messages and waiting) or any(each.is_set() for each in waiting)
