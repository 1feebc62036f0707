"""Whatever a handler raises, its message gets a verdict, the pump goes on, and a dead letter says what can be said."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pump.attribute import Attribute
from pump.errors import InvalidMessageAction, RejectMessageAction
from pump.handlers import CircuitBreaker, DontAckOnError, Fallback, RejectMessageOnError, Retry
from support.hostile import ANYTHING, UnprintableError
from support.pump_fixtures import Pumping
from support.pumps import Outcomes, numbers


@pytest.fixture(autouse=True)
def _written() -> Iterator[None]:
    """What is logged is written to a file, as in a program."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8", write_through=True)
    handler, log = logging.StreamHandler(stream), logging.getLogger("pump")
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.handleError = _fails  # type: ignore[assignment]
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


def _fails(_: logging.LogRecord) -> None:
    """Logging itself would only print that it failed."""
    raise  # noqa: PLE0704 - it is called while the error is handled


class Odd(RejectMessageAction):
    """A decision of the user's, which does not call `super().__init__`."""

    def __init__(self, reason: Any) -> None:
        self.reason = reason


class Unreadable(InvalidMessageAction):
    def __init__(self) -> None:
        """Its reason cannot be set, nor read."""

    @property
    def reason(self) -> str:  # type: ignore[override]
        raise ZeroDivisionError


def caused(action: Exception, cause: BaseException) -> Exception:
    action.__cause__ = cause
    return action


def deep(error: Exception, depth: int = 2000) -> Exception:
    for _ in range(depth):
        error = ExceptionGroup("several", [error])
    return error


ODD = [Odd(value) for value in ANYTHING]


@pytest.mark.parametrize(
    "error",
    [
        *ODD,
        Unreadable(),
        caused(Odd(None), UnprintableError()),
        ExceptionGroup("several", [ODD[1], UnprintableError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_decision_with_anything_for_its_reason_is_carried_out(pumping: Pumping, error: Exception) -> None:
    bench = pumping(Outcomes(error, None))
    bench.post_orders(1, 2)

    bench.run()

    assert list(bench.calls) == ["reject", "acknowledge"]
    (dead,) = [*bench.dead_letters, *bench.invalid]
    assert type(dead.reason) is str
    assert dead.reason
    assert dead.headers["pump-reason"] == dead.reason
    assert bench.stopped is None


@pytest.mark.parametrize("policy", ["retry", "reject", "dont_ack", "acknowledge"])
def test_an_error_without_a_text_is_an_error_like_any_other(pumping: Pumping, policy: str) -> None:
    bench = pumping(Outcomes(UnprintableError(), None), on_unhandled=policy)
    bench.post_orders(1, 2)

    bench.run(seconds=10)

    assert bench.pending == []
    assert bench.stopped is None
    for dead in bench.dead_letters:
        assert dead.headers["pump-exception"].endswith("UnprintableError")


def test_the_decision_in_a_very_deep_group_counts(pumping: Pumping) -> None:
    bench = pumping(Outcomes(deep(RejectMessageAction("sold out")), None))
    bench.post_orders(1, 2)

    bench.run()

    assert [each.reason for each in bench.dead_letters] == ["sold out"]
    assert numbers(bench.acknowledged) == [2]


@pytest.mark.parametrize(
    ("attribute", "calls"),
    [
        (None, ["requeue", "acknowledge", "acknowledge"]),
        (DontAckOnError(), ["nack", "acknowledge", "acknowledge"]),
        (RejectMessageOnError(only=ValueError), ["reject", "acknowledge"]),
        (RejectMessageOnError(but=ValueError), ["requeue", "acknowledge", "acknowledge"]),
        (Retry(on=ValueError), ["acknowledge", "acknowledge"]),
        (CircuitBreaker(on=KeyError), ["requeue", "acknowledge", "acknowledge"]),
        (Fallback(len, on=KeyError), ["requeue", "acknowledge", "acknowledge"]),
    ],
    ids=repr,
)
def test_a_very_deep_group_is_an_error_like_any_other(
    pumping: Pumping, attribute: Attribute | None, calls: list[str]
) -> None:
    attributes = () if attribute is None else (attribute,)
    bench = pumping(Outcomes(deep(ValueError("no tea")), None), *attributes)
    bench.post_orders(1, 2)

    bench.run(seconds=10)

    assert sorted(bench.calls) == sorted(calls)
    assert bench.pending == []
    assert bench.stopped is None
