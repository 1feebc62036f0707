import asyncio

import pytest

from pump.attribute import Attribute, OnError, declared_decisions
from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    HandlerTimeout,
    InvalidMessageAction,
    MessageAction,
    RejectMessageAction,
)
from pump.handlers import DeferMessageOnError, DontAckOnError, RejectMessageOnError
from support.pipelines import Failing, Harness

KINDS: dict[type[OnError], type[MessageAction]] = {
    DontAckOnError: DontAckAction,
    RejectMessageOnError: RejectMessageAction,
    DeferMessageOnError: DeferMessageAction,
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[OnError]:
    attribute: type[OnError] = request.param
    return attribute


@pytest.mark.requirement("B-14")
@pytest.mark.parametrize(
    "error", [ValueError("no"), ConfigurationError("no"), HandlerTimeout("late"), ExceptionGroup("two", [KeyError()])]
)
def test_any_error_becomes_the_decision_with_the_error_as_its_cause(
    harness: Harness, kind: type[OnError], error: Exception
) -> None:
    with pytest.raises(KINDS[kind]) as raised:
        harness.around(kind(), Failing(error))()

    assert raised.value.__cause__ is error


def test_what_succeeds_passes(harness: Harness, kind: type[OnError]) -> None:
    assert harness.around(kind(), Failing())() == "done"


@pytest.mark.requirement("B-15")
@pytest.mark.parametrize(
    "decided",
    [
        DontAckAction("mine"),
        DeferMessageAction(5, "mine"),
        RejectMessageAction("mine"),
        InvalidMessageAction("mine"),
        ExceptionGroup("several", [ValueError(), RejectMessageAction("mine")]),
        ExceptionGroup("nested", [ExceptionGroup("inner", [DontAckAction("mine")]), ValueError()]),
    ],
)
def test_a_decision_already_made_passes_as_it_is(harness: Harness, kind: type[OnError], decided: Exception) -> None:
    with pytest.raises(type(decided)) as raised:
        harness.around(kind(), Failing(decided))()

    assert raised.value is decided
    assert decided.__cause__ is None


@pytest.mark.requirement("B-15")
@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        SystemExit(1),
        KeyboardInterrupt(),
        BaseExceptionGroup("cancelled", [asyncio.CancelledError(), ValueError()]),
    ],
)
def test_cancellation_and_exits_pass(harness: Harness, kind: type[OnError], error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        harness.around(kind(), Failing(error))()

    assert not isinstance(raised.value, MessageAction)


@pytest.mark.parametrize(
    ("error", "is_taken"),
    [
        (ValueError(), True),
        (UnicodeError(), True),
        (KeyError(), False),
        (ExceptionGroup("all", [ValueError(), UnicodeError()]), True),
        (ExceptionGroup("some", [ValueError(), KeyError()]), False),
    ],
)
def test_only_narrows_it_to_some_errors(
    harness: Harness, kind: type[OnError], error: Exception, *, is_taken: bool
) -> None:
    expected = KINDS[kind] if is_taken else type(error)

    with pytest.raises(expected):
        harness.around(kind(only=ValueError), Failing(error))()


@pytest.mark.parametrize(
    ("error", "is_taken"),
    [
        (ValueError(), True),
        (KeyError(), False),
        (ExceptionGroup("some", [ValueError(), KeyError()]), False),
        (ExceptionGroup("none", [ValueError()]), True),
    ],
)
def test_but_leaves_some_errors_alone(
    harness: Harness, kind: type[OnError], error: Exception, *, is_taken: bool
) -> None:
    expected = KINDS[kind] if is_taken else type(error)

    with pytest.raises(expected):
        harness.around(kind(but=(KeyError, OSError)), Failing(error))()


def test_each_declares_its_decision(kind: type[OnError]) -> None:
    assert declared_decisions(kind()(lambda _: None)) == {KINDS[kind]}


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (DontAckOnError(), "ValueError"),
        (RejectMessageOnError(), "ValueError"),
        (RejectMessageOnError("out of stock"), "out of stock"),
        (DeferMessageOnError(), "ValueError"),
    ],
)
def test_the_reason_is_fit_for_grouping(harness: Harness, attribute: Attribute, reason: str) -> None:
    with pytest.raises(MessageAction) as raised:
        harness.around(attribute, Failing(ValueError("order 4711 of Jane Doe")))()

    assert raised.value.reason == reason


@pytest.mark.parametrize(("delay", "expected"), [(None, None), (30, 30.0), (0, 0.0)])
def test_a_deferral_has_the_delay_that_was_asked_for(
    harness: Harness, delay: float | None, expected: float | None
) -> None:
    with pytest.raises(DeferMessageAction) as raised:
        harness.around(DeferMessageOnError(delay), Failing(ValueError()))()

    assert raised.value.delay == expected


def test_a_negative_delay_shows_at_start() -> None:
    with pytest.raises(ConfigurationError, match="delay must be at least 0, not -1"):
        DeferMessageOnError(-1)


def test_a_real_cancellation_is_not_wrapped(kind: type[OnError]) -> None:
    harness = Harness("awaiting")

    @kind()
    async def handle(request: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(harness.bound(handle)("tea"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
