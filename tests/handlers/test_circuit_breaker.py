import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from pump.attribute import Scope, attributes_of, declared_decisions
from pump.clock import ManualClock
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
)
from pump.handlers import CircuitBreaker, DontAckOnError
from pump.handling.pipeline import Pipeline
from support.pipelines import Failing, Harness

FIVE = [ValueError() for _ in range(5)]


def outcome(run: Callable[[], object]) -> str:
    try:
        return str(run())
    except DontAckAction as action:
        return "open" if action.reason == "circuit breaker is open" else "left"
    except BaseException as error:
        return type(error).__name__


def advance(harness: Harness, delay: float) -> None:
    cast("ManualClock", harness.clock).advance(delay)


def opened(harness: Harness, *after: BaseException, **options: Any) -> tuple[Callable[..., Any], Failing]:
    """A breaker that two failures have opened, around a body that goes on as told."""
    failing = Failing(ValueError(), ValueError(), *after)
    run = harness.around(CircuitBreaker(2, **options), failing)
    assert [outcome(run), outcome(run)] == ["ValueError", "ValueError"]
    return run, failing


def test_it_opens_after_so_many_failures_in_a_row(harness: Harness) -> None:
    failing = Failing(*FIVE)
    run = harness.around(CircuitBreaker(), failing)

    assert [outcome(run) for _ in range(7)] == ["ValueError"] * 5 + ["open"] * 2
    assert failing.runs == 5


def test_a_success_starts_the_count_anew(harness: Harness) -> None:
    bodies = iter([ValueError(), None, ValueError(), None])

    def body(request: object) -> str:
        error = next(bodies)
        if error is not None:
            raise error
        return "done"

    run = harness.around(CircuitBreaker(2), body)

    assert [outcome(run) for _ in range(4)] == ["ValueError", "done", "ValueError", "done"]


def test_old_failures_do_not_count(harness: Harness) -> None:
    run = harness.around(CircuitBreaker(2, window=10), Failing(ValueError(), ValueError(), ValueError()))

    assert outcome(run) == "ValueError"
    advance(harness, 11)
    assert outcome(run) == "ValueError"
    advance(harness, 9)
    assert outcome(run) == "ValueError"
    assert outcome(run) == "open"


def test_a_trial_that_succeeds_closes_it(harness: Harness) -> None:
    run, _ = opened(harness, reset_after=30)

    advance(harness, 29)
    assert outcome(run) == "open"
    advance(harness, 1)
    assert [outcome(run), outcome(run)] == ["done", "done"]


def test_a_closed_one_counts_from_the_beginning(harness: Harness) -> None:
    failing = Failing(ValueError(), ValueError())
    run = harness.around(CircuitBreaker(2), failing)
    outcome(run)
    outcome(run)
    advance(harness, 30)
    assert outcome(run) == "done"

    failing._errors = [ValueError()]

    assert [outcome(run), outcome(run)] == ["ValueError", "done"]


def test_a_trial_that_fails_opens_it_again_for_the_whole_time(harness: Harness) -> None:
    run, failing = opened(harness, ValueError(), reset_after=30)

    advance(harness, 30)
    assert outcome(run) == "ValueError"
    advance(harness, 29)
    assert outcome(run) == "open"
    advance(harness, 1)
    assert outcome(run) == "done"
    assert failing.runs == 4


@pytest.mark.parametrize(
    "decision",
    [
        DontAckAction(),
        DeferMessageAction(),
        RejectMessageAction(),
        InvalidMessageAction(),
        ExceptionGroup("several", [ValueError(), RejectMessageAction()]),
        asyncio.CancelledError(),
        SystemExit(1),
    ],
)
def test_decisions_and_cancellation_are_neither_success_nor_failure(harness: Harness, decision: BaseException) -> None:
    run = harness.around(CircuitBreaker(2), Failing(ValueError(), decision, ValueError(), decision))

    assert outcome(run) == "ValueError"
    assert outcome(run) not in ("open", "ValueError")
    assert outcome(run) == "ValueError"
    assert outcome(run) == "open"


@pytest.mark.parametrize("decision", [RejectMessageAction(), asyncio.CancelledError()])
def test_a_trial_that_tells_nothing_is_followed_by_another(harness: Harness, decision: BaseException) -> None:
    run, _ = opened(harness, decision)

    advance(harness, 30)

    assert outcome(run) == type(decision).__name__
    assert outcome(run) == "done"


def test_only_the_named_errors_are_failures(harness: Harness) -> None:
    run = harness.around(CircuitBreaker(1, on=OSError), Failing(ValueError(), ConnectionError()))

    assert [outcome(run), outcome(run), outcome(run)] == ["ValueError", "ConnectionError", "open"]


def test_beneath_an_attribute_that_decides_it_sees_the_errors(harness: Harness) -> None:
    handle = DontAckOnError()(CircuitBreaker(2)(harness.handler(Failing(*FIVE))))
    run = harness.ready(handle)

    assert [outcome(run) for _ in range(3)] == ["left", "left", "open"]


def test_one_trial_runs_at_a_time_in_threads() -> None:
    clock, inside, go_on = ManualClock(), threading.Event(), threading.Event()
    bodies = iter([ValueError()])

    @CircuitBreaker(1)
    def handle(request: object) -> str:
        for error in bodies:
            raise error
        inside.set()
        go_on.wait()
        return "done"

    run = partial(Pipeline(attributes_of(handle), "blocking", Scope(clock=clock)).run, handle)
    outcomes = [outcome(lambda: run("tea"))]
    clock.advance(30)
    trial = threading.Thread(target=lambda: outcomes.append(outcome(lambda: run("trial"))))

    trial.start()
    inside.wait()
    outcomes.append(outcome(lambda: run("meanwhile")))
    go_on.set()
    trial.join()
    outcomes.append(outcome(lambda: run("after")))

    assert outcomes == ["ValueError", "open", "done", "done"]


def test_late_outcomes_of_earlier_calls_do_not_move_an_open_one() -> None:
    clock = ManualClock()
    gates: dict[str, asyncio.Event] = {}

    @CircuitBreaker(1, reset_after=30)
    async def handle(request: str) -> str:
        if request in gates:
            await gates[request].wait()
        if request.endswith("fails"):
            raise ValueError
        return "done"

    run = partial(Pipeline(attributes_of(handle), "awaiting", Scope(clock=clock)).run, handle)

    async def end(call: Any) -> str:
        try:
            return str(await call)
        except Exception as error:
            return type(error).__name__

    async def main() -> None:
        gates.update({"late": asyncio.Event(), "late fails": asyncio.Event()})
        late, late_fails = (asyncio.ensure_future(end(run(name))) for name in gates)
        await asyncio.sleep(0)
        assert await end(run("fails")) == "ValueError"

        gates["late"].set()
        assert await late == "done"
        assert await end(run("tea")) == "DontAckAction"

        clock.advance(29)
        gates["late fails"].set()
        assert await late_fails == "ValueError"
        clock.advance(1)
        assert await end(run("tea")) == "done"

    asyncio.run(main())


def test_each_pipeline_has_a_breaker_of_its_own(harness: Harness) -> None:
    handle = CircuitBreaker(1)(harness.handler(Failing(ValueError())))
    first, second = harness.ready(handle), harness.ready(handle)

    assert [outcome(first), outcome(first), outcome(second)] == ["ValueError", "open", "done"]


def test_opening_and_closing_are_told(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run, _ = opened(harness)
    outcome(run)
    advance(harness, 30)
    outcome(run)

    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "Circuit breaker is open",
        "Circuit breaker is closed",
    ]
    assert [(event, fields["state"]) for event, fields in harness.told] == [
        ("circuit_breaker", "open"),
        ("circuit_breaker", "closed"),
    ]


@pytest.mark.parametrize("options", [{"failures": 0}, {"window": 0}, {"reset_after": 0}])
def test_options_that_make_no_sense_show_at_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="CircuitBreaker"):
        CircuitBreaker(**options)


def test_it_declares_its_decision() -> None:
    assert declared_decisions(CircuitBreaker()(lambda _: None)) == {DontAckAction}
