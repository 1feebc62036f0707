import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pump.attribute import Attribute, Rest, Steps
from pump.errors import ConfigurationError, DontAckAction, RejectMessageAction
from pump.handlers import Fallback
from pump.handling.pipeline import PipelineError
from support.pipelines import Failing, Harness


def test_a_function_answers_when_the_handler_fails(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    alternative = harness.handler(lambda request: f"instead of {request}")

    assert harness.around(Fallback(alternative), Failing(ValueError("no")))("tea") == "instead of tea"
    assert "Handler failed, falling back (message m-1" in caplog.text
    assert caplog.records[0].exc_info is not None


def test_it_does_nothing_when_the_handler_succeeds(harness: Harness) -> None:
    alternative = Failing(ValueError("not asked"))

    assert harness.around(Fallback(alternative), Failing())() == "done"
    assert alternative.runs == 0


def test_a_method_of_the_same_handler_answers_in_its_colour() -> None:
    class Handler:
        @Fallback("handle_late")
        def handle(self, request: str) -> str:
            raise ValueError

        def handle_late(self, request: str) -> str:
            return f"late {request}"

    class AsyncHandler:
        @Fallback("handle_late")
        async def handle(self, request: str) -> str:
            raise ValueError

        async def handle_late(self, request: str) -> str:
            await asyncio.sleep(0)
            return f"late {request}"

    assert Harness("blocking").ready(Handler().handle, owner=Handler)("tea") == "late tea"
    assert Harness("awaiting").ready(AsyncHandler().handle, owner=AsyncHandler)("tea") == "late tea"


@pytest.mark.parametrize(
    "decision",
    [
        DontAckAction(),
        RejectMessageAction(),
        ExceptionGroup("several", [ValueError(), DontAckAction()]),
        asyncio.CancelledError(),
    ],
)
def test_decisions_and_cancellation_pass(harness: Harness, decision: BaseException) -> None:
    alternative = Failing()

    with pytest.raises(type(decision)):
        harness.around(Fallback(alternative), Failing(decision))()

    assert alternative.runs == 0


def test_only_the_named_errors_fall_back(harness: Harness) -> None:
    with pytest.raises(ValueError, match="passes"):
        harness.around(Fallback(Failing(), on=OSError), Failing(ValueError("passes")))()


@pytest.mark.parametrize("error", [KeyError("also"), RejectMessageAction("give up")])
def test_the_outcome_of_the_alternative_counts(harness: Harness, error: Exception) -> None:
    first = ValueError("first")

    with pytest.raises(type(error)) as raised:
        harness.around(Fallback(harness.handler(Failing(error))), Failing(first))()

    assert raised.value.__context__ is first


def test_it_answers_also_where_the_handler_was_never_reached(harness: Harness) -> None:
    class Broken(Attribute):
        def around(self, request: object, rest: Rest) -> Steps:
            yield from rest.sleep(0)
            raise ConnectionError

    handle = Fallback(lambda _: "instead")(Broken()(harness.handler(Failing())))

    assert harness.ready(handle)() == "instead"


def test_an_async_alternative_of_a_blocking_handler_is_an_error() -> None:
    async def alternative(request: object) -> None:
        """Would never be awaited."""

    with pytest.raises(PipelineError, match="returned a coroutine"):
        Harness("blocking").around(Fallback(alternative), Failing(ValueError()))()


def test_a_method_that_is_not_there_shows_at_start() -> None:
    class Handler:
        @Fallback("handle_latr")
        def handle(self, request: object) -> None:
            """Nothing."""

    harness = Harness("blocking")
    with pytest.raises(ConfigurationError, match="Handler has no method handle_latr"):
        harness.ready(Handler().handle, owner=Handler)
    with pytest.raises(ConfigurationError, match="has no method"):
        harness.ready(Fallback("handle_late")(lambda _: None), handler="")


@pytest.mark.parametrize("wrong", [3, None])
def test_an_alternative_that_makes_no_sense_shows_at_start(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="Fallback takes"):
        Fallback(wrong)


def test_an_alternative_with_a_yield_shows_at_start(harness: Harness) -> None:
    def later(request: object) -> Iterator[object]:
        yield request

    async def later_async(request: object) -> AsyncIterator[object]:
        yield request

    for alternative in (later, later_async):
        with pytest.raises(ConfigurationError, match="the alternative of Handler has a `yield`"):
            harness.around(Fallback(alternative), Failing())


def test_an_alternative_that_returns_its_error_has_failed(harness: Harness) -> None:
    with pytest.raises(PipelineError, match="returned KeyError instead of raising it"):
        harness.around(Fallback(harness.handler(lambda _: KeyError("no tea"))), Failing(ValueError()))()
