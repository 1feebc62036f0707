import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.attribute import Scope, attributes_of, declared_decisions
from pump.clock import ManualClock
from pump.errors import ConfigurationError, DontAckAction
from pump.handlers import RateLimit
from pump.handling.pipeline import Pipeline
from support.pipelines import Failing, Harness


def passes(run: Callable[[], object]) -> bool:
    try:
        run()
    except DontAckAction as action:
        return action.reason != "rate limit"
    return True


def advance(harness: Harness, delay: float) -> None:
    cast("ManualClock", harness.clock).advance(delay)


def test_what_comes_too_early_is_left_and_comes_again(harness: Harness) -> None:
    failing = Failing()
    run = harness.around(RateLimit(2), failing)

    assert [passes(run) for _ in range(3)] == [True, True, False]
    assert failing.runs == 2
    advance(harness, 0.5)
    assert [passes(run) for _ in range(2)] == [True, False]
    advance(harness, 60)
    assert [passes(run) for _ in range(3)] == [True, True, False]


def test_the_rate_may_be_per_any_time_and_the_burst_smaller(harness: Harness) -> None:
    run = harness.around(RateLimit(60, per=timedelta(minutes=1), burst=1), Failing())

    assert [passes(run), passes(run)] == [True, False]
    advance(harness, 1)
    assert [passes(run), passes(run)] == [True, False]


def test_a_rate_below_one_lets_one_through_at_a_time(harness: Harness) -> None:
    run = harness.around(RateLimit(0.1), Failing())

    assert [passes(run), passes(run)] == [True, False]
    advance(harness, 10)
    assert passes(run)


def test_a_failing_handler_has_used_its_place(harness: Harness) -> None:
    run = harness.around(RateLimit(1), Failing(ValueError()))

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        run()

    assert not passes(run)


def test_each_pipeline_has_a_limit_of_its_own(harness: Harness) -> None:
    handle = RateLimit(1)(harness.handler(lambda _: None))
    first, second = harness.ready(handle), harness.ready(handle)

    assert [passes(first), passes(first), passes(second)] == [True, False, True]


@given(st.lists(st.floats(0, 3), max_size=60))
def test_never_more_than_burst_and_rate_allow(delays: list[float]) -> None:
    clock = ManualClock()
    began = clock.monotonic()
    handle = RateLimit(2, burst=3)(lambda _: None)
    run = partial(Pipeline(attributes_of(handle), "blocking", Scope(clock=clock)).run, handle)
    passed = 0

    for delay in delays:
        clock.advance(delay)
        passed += passes(lambda: run("tea"))
        assert passed <= 3 + 2 * (clock.monotonic() - began) + 1e-6


def test_threads_share_the_limit() -> None:
    handle = RateLimit(10)(lambda _: None)
    run = partial(Pipeline(attributes_of(handle), "blocking", Scope(clock=ManualClock())).run, handle)
    results: list[bool] = []

    threads = [threading.Thread(target=lambda: results.append(passes(lambda: run("tea")))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(results) == 10


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 1, "per": 0}, {"rate": 1, "burst": 0.5}])
def test_options_that_make_no_sense_show_at_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RateLimit"):
        RateLimit(**options)


def test_it_declares_its_decision() -> None:
    assert declared_decisions(RateLimit(1)(lambda _: None)) == {DontAckAction}
