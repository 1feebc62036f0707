import asyncio
import logging
from typing import Any, cast

import pytest

from pump.clock import ManualClock, Signal, SystemClock
from pump.context import Context
from pump.errors import ConfigurationError, DontAckAction, RejectMessageAction
from pump.handlers import Retry
from support.pipelines import Failing, Harness, NoProcessor


def waits(harness: Harness) -> list[float | None]:
    return list(cast("ManualClock", harness.clock).waits)


def test_it_runs_the_handler_until_it_succeeds(harness: Harness) -> None:
    failing = Failing(ValueError(), KeyError())

    assert harness.around(Retry(attempts=3), failing)() == "done"
    assert failing.runs == 3


def test_the_last_error_stands(harness: Harness) -> None:
    errors = [ValueError("first"), ValueError("second"), ValueError("third"), ValueError("never")]
    failing = Failing(*errors)

    with pytest.raises(ValueError, match="third") as raised:
        harness.around(Retry(attempts=3), failing)()

    assert raised.value is errors[2]
    assert failing.runs == 3


def test_each_wait_is_twice_as_long_up_to_the_longest(harness: Harness) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its own
        harness.around(Retry(6, first=0.1, longest=1, jitter=0), Failing(*[ValueError()] * 6))()

    assert waits(harness) == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_jitter_shortens_a_wait(harness: Harness) -> None:
    attribute = Retry(2, first=1, jitter=0.5, chance=lambda: 0.5)

    harness.around(attribute, Failing(ValueError()))()

    assert waits(harness) == [0.75]


def test_very_many_attempts_do_not_overflow(harness: Harness) -> None:
    failing = Failing(*[ValueError()] * 1999)

    assert harness.around(Retry(2000, longest=3), failing)() == "done"


@pytest.mark.parametrize(
    "error",
    [
        DontAckAction(),
        RejectMessageAction(),
        ExceptionGroup("several", [ValueError(), RejectMessageAction()]),
        asyncio.CancelledError(),
        SystemExit(1),
    ],
)
def test_decisions_and_cancellation_are_never_retried(harness: Harness, error: BaseException) -> None:
    failing = Failing(error)

    with pytest.raises(type(error)):
        harness.around(Retry(), failing)()

    assert failing.runs == 1


@pytest.mark.parametrize(
    ("error", "runs"),
    [
        (ConnectionError(), 2),
        (ValueError(), 1),
        (ExceptionGroup("all", [ConnectionError()]), 2),
        (ExceptionGroup("some", [ConnectionError(), ValueError()]), 1),
    ],
)
def test_only_the_named_errors_are_retried(harness: Harness, error: Exception, runs: int) -> None:
    failing = Failing(error, error)

    with pytest.raises(type(error)):
        harness.around(Retry(2, on=OSError), failing)()

    assert failing.runs == runs


def test_a_stop_ends_the_wait_and_the_error_stands(harness: Harness) -> None:
    clock, stopping, failing = SystemClock(), Signal(), Failing(ValueError("stands"), ValueError())
    harness.context = Context(NoProcessor(), "Handler", clock=clock, stopping=stopping)
    clock.alarm(0.02, stopping.set)

    with pytest.raises(ValueError, match="stands"):
        harness.around(Retry(first=600, longest=600), failing, clock=clock)()

    assert failing.runs == 1


def test_a_cancellation_ends_the_wait() -> None:
    harness = Harness("awaiting", SystemClock())
    failing = Failing(ValueError())
    run = harness.bound(Retry(first=600, longest=600)(harness.handler(failing)))

    async def main() -> None:
        task = asyncio.ensure_future(run("tea"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert failing.runs == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_single_attempt_is_no_retry(harness: Harness) -> None:
    failing = Failing(ValueError())

    with pytest.raises(ValueError):  # noqa: PT011 - its own
        harness.around(Retry(1), failing)()

    assert failing.runs == 1


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"first": -1}, {"first": 5, "longest": 1}, {"jitter": 2}, {"jitter": -0.1}]
)
def test_options_that_make_no_sense_show_at_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Retry"):
        Retry(**options)


def test_a_failed_attempt_is_told(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    harness.around(Retry(jitter=0), Failing(ValueError("no")))()

    assert "attempt 1 of 3 failed, next in 0.1 s: ValueError: no (" in caplog.text
    assert "(message m-1, " in caplog.text
    assert caplog.records[0].exc_info is None, "its traceback comes with the last attempt"
