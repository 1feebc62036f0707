"""A server that does not answer is protected: one try at a time finds out whether it answers again."""

import pytest

from pump.clock import ManualClock
from pump.queue.client.circuit import FAILURES, OPEN_SECONDS, CircuitOpen, ServerCircuit
from pump.queue.errors import QueueUnavailable


def fail(circuit: ServerCircuit) -> None:
    with pytest.raises(QueueUnavailable, match="gone"), circuit.one_try():
        raise QueueUnavailable("gone")


def opened(clock: ManualClock) -> ServerCircuit:
    circuit = ServerCircuit(clock)
    for _ in range(FAILURES):
        fail(circuit)
    return circuit


def test_nothing_is_asked_until_the_time_is_over() -> None:
    clock = ManualClock()
    circuit = opened(clock)

    clock.advance(OPEN_SECONDS - 1)
    with pytest.raises(CircuitOpen, match=r"after 5 failures in a row; next try in 1 s"), circuit.one_try():
        pass


def test_one_try_at_a_time_goes_through_then() -> None:
    clock = ManualClock()
    circuit = opened(clock)
    clock.advance(OPEN_SECONDS)

    with circuit.one_try():
        for _ in range(3):
            with pytest.raises(CircuitOpen), circuit.one_try():
                pass


def test_a_try_that_succeeds_lets_everybody_through() -> None:
    clock = ManualClock()
    circuit = opened(clock)
    clock.advance(OPEN_SECONDS)
    with circuit.one_try():
        pass

    for _ in range(FAILURES - 1):
        with circuit.one_try(), circuit.one_try():
            pass
        fail(circuit)
        with circuit.one_try():
            pass


def test_a_try_that_fails_keeps_it_open_as_long_again() -> None:
    clock = ManualClock()
    circuit = opened(clock)
    clock.advance(OPEN_SECONDS)
    fail(circuit)

    with pytest.raises(CircuitOpen), circuit.one_try():
        pass
    clock.advance(OPEN_SECONDS)
    with circuit.one_try():
        pass


def test_a_try_that_ends_in_another_way_says_nothing_and_the_next_one_may_begin() -> None:
    clock = ManualClock()
    circuit = opened(clock)
    clock.advance(OPEN_SECONDS)
    with pytest.raises(KeyError), circuit.one_try():
        raise KeyError("of the caller")

    with circuit.one_try(), pytest.raises(CircuitOpen), circuit.one_try():
        pass
