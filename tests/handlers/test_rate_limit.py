import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.attribute import Scope, attributes_of, declared_decisions
from pump.clock import ManualClock, Signal
from pump.errors import ConfigurationError, DontAckAction
from pump.handlers import RateLimit
from pump.handling.pipeline import Pipeline
from support.pipelines import Failing, Harness
from support.pump_fixtures import Pumping
from support.pumps import numbers
from support.waiting import eventually


def timed(harness: Harness, limit: RateLimit) -> tuple[Callable[..., object], list[float]]:
    """A handler beneath the limit, and when it ran, from now on."""
    began, times = harness.clock.monotonic(), list[float]()
    return harness.around(limit, lambda _: times.append(harness.clock.monotonic() - began)), times


def advance(harness: Harness, delay: float) -> None:
    cast("ManualClock", harness.clock).advance(delay)


def test_what_comes_too_early_waits_for_its_turn(harness: Harness) -> None:
    run, times = timed(harness, RateLimit(2))

    for _ in range(5):
        run()
    advance(harness, 60)
    for _ in range(3):
        run()

    assert times == [0, 0, 0.5, 1, 1.5, 61.5, 61.5, 62]


def test_the_rate_may_be_per_any_time_and_the_burst_smaller(harness: Harness) -> None:
    run, times = timed(harness, RateLimit(60, per=timedelta(minutes=1), burst=1))

    for _ in range(3):
        run()

    assert times == [0, 1, 2]


def test_what_would_wait_long_is_left_until_its_turn_is_near(harness: Harness) -> None:
    run, times = timed(harness, RateLimit(0.1))
    run()

    with pytest.raises(DontAckAction, match="rate limit") as left:
        run()

    assert left.value.until is not None
    near = []
    for _ in range(10):
        near.append(left.value.until())
        advance(harness, 1)
    assert near == [False] * 8 + [True] * 2
    run()
    assert times == [0, 10]


def test_a_failing_handler_has_used_its_place(harness: Harness) -> None:
    failing = Failing(ValueError())
    run = harness.around(RateLimit(1), failing)
    began = harness.clock.monotonic()

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        run()
    run()

    assert harness.clock.monotonic() - began == 1


def test_a_wait_that_is_cut_short_leaves_the_message_and_its_place_to_others(harness: Harness) -> None:
    run, times = timed(harness, RateLimit(1))
    run()
    stopping = cast("Signal", harness.context.stopping)

    stopping.set()
    for _ in range(3):
        with pytest.raises(DontAckAction, match="rate limit"):
            run()
    stopping.clear()
    run()

    assert times == [0, 1]


def test_each_pipeline_has_a_limit_of_its_own(harness: Harness) -> None:
    handle = RateLimit(1)(harness.handler(lambda _: None))
    first, second = harness.ready(handle), harness.ready(handle)
    began = harness.clock.monotonic()

    first()
    second()
    assert harness.clock.monotonic() == began
    first()
    assert harness.clock.monotonic() == began + 1


@given(st.lists(st.floats(0, 3), max_size=40))
def test_never_more_than_burst_and_rate_allow_and_never_less(delays: list[float]) -> None:
    clock = ManualClock(automatic=True)
    times: list[float] = []
    handle = RateLimit(2, burst=3)(lambda _: times.append(clock.monotonic()))
    run = partial(Pipeline(attributes_of(handle), "blocking", Scope(clock=clock)).run, handle)

    for delay in delays:
        clock.advance(delay)
        came = clock.monotonic()
        run("tea")
        assert times[-1] - came <= 0.5 + 1e-6

    for first, began in enumerate(times):
        for last, ended in enumerate(times[first:], first):
            assert last - first + 1 <= 3 + 2 * (ended - began) + 1e-6


def test_threads_share_the_limit() -> None:
    clock = ManualClock()
    done: list[float] = []
    handle = RateLimit(10)(lambda _: done.append(clock.monotonic()))
    run = partial(Pipeline(attributes_of(handle), "blocking", Scope(clock=clock)).run, handle)

    threads = [threading.Thread(target=run, args=("tea",), daemon=True) for _ in range(40)]
    for thread in threads:
        thread.start()
    clock.wait_for_sleepers(30)

    eventually(lambda: len(done) == 10)
    clock.advance(1.05)
    eventually(lambda: len(done) == 20)
    clock.advance(2)
    for thread in threads:
        thread.join(5)
    assert len(done) == 40


@pytest.mark.parametrize(
    ("limit", "seconds", "expected"),
    [
        (RateLimit(50, burst=5), 20, 1000),
        (RateLimit(10, burst=1), 60, 600),
        (RateLimit(2, burst=1), 300, 600),
        (RateLimit(10, per=60, burst=1), 3600, 600),
        (RateLimit(1, per=60), 3600, 60),
    ],
    ids=repr,
)
def test_a_pump_handles_as_many_as_were_asked_for(
    pumping: Pumping, limit: RateLimit, seconds: float, expected: int
) -> None:
    bench = pumping(lambda _: None, limit)
    bench.post_orders(*range(1, 1200))

    bench.run(seconds=seconds)

    handled = numbers(bench.acknowledged)
    assert abs(len(handled) - expected) <= 0.05 * expected
    assert handled == sorted(handled)
    assert bench.unacceptable == 0
    assert [record.getMessage() for record in bench.logs if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 1, "per": 0}, {"rate": 1, "burst": 0.5}])
def test_options_that_make_no_sense_show_at_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RateLimit"):
        RateLimit(**options)


def test_it_declares_its_decision() -> None:
    assert declared_decisions(RateLimit(1)(lambda _: None)) == {DontAckAction}
