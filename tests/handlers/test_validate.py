import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pump.attribute import declared_decisions
from pump.errors import ConfigurationError, DeferMessageAction, InvalidMessageAction
from pump.handlers import Validate
from support.pipelines import Failing, Harness


@dataclass
class Order:
    quantity: int

    def validate(self) -> None:
        if self.quantity < 1:
            raise ValueError("nothing was ordered")


class Plain:
    """Cannot validate itself."""


class Wanting:
    def validate(self, schema: object) -> None:
        """Wants an argument."""


class Inherited:
    @classmethod
    def validate(cls, value: object) -> None:
        """As pydantic's models have it: it makes one, and checks none."""


class OfTheClass:
    @classmethod
    def validate(cls) -> None:
        """Wants nothing."""


def test_a_request_that_validates_is_handled(harness: Harness) -> None:
    runs = Failing()

    assert harness.around(Validate(), runs, request=Order)(Order(1)) == "done"
    assert runs.runs == 1


def test_a_request_that_does_not_is_invalid_and_not_handled(harness: Harness) -> None:
    runs = Failing()

    with pytest.raises(InvalidMessageAction) as raised:
        harness.around(Validate(), runs)(Order(0))

    assert raised.value.reason == "ValueError"
    assert str(raised.value.__cause__) == "nothing was ordered"
    assert runs.runs == 0


@pytest.mark.parametrize("error", [ValueError(), TypeError(), AssertionError(), UnicodeError()])
def test_a_check_that_raises_makes_the_message_invalid(harness: Harness, error: Exception) -> None:
    with pytest.raises(InvalidMessageAction) as raised:
        harness.around(Validate(harness.handler(Failing(error))), Failing())()

    assert raised.value.__cause__ is error


def test_a_check_that_returns_false_makes_the_message_invalid(harness: Harness) -> None:
    with pytest.raises(InvalidMessageAction, match="validation failed"):
        harness.around(Validate(harness.handler(lambda _: False)), Failing())()


@pytest.mark.parametrize("verdict", [None, True, 0, ""])
def test_any_other_result_of_a_check_lets_the_request_through(harness: Harness, verdict: object) -> None:
    assert harness.around(Validate(lambda _: verdict), Failing())() == "done"


@pytest.mark.parametrize("error", [KeyError("schema store"), ConnectionError(), DeferMessageAction(), SystemExit(1)])
def test_other_errors_and_decisions_of_a_check_pass(harness: Harness, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        harness.around(Validate(Failing(error)), Failing())()

    assert raised.value is error


def test_the_handlers_own_errors_are_not_invalid_messages(harness: Harness) -> None:
    with pytest.raises(ValueError, match="own"):
        harness.around(Validate(lambda _: True), Failing(ValueError("own")))()


def test_errors_of_other_types_can_mean_invalid(harness: Harness) -> None:
    with pytest.raises(InvalidMessageAction):
        harness.around(Validate(Failing(KeyError("sku")), on=KeyError), Failing())()


@pytest.mark.parametrize("kind", [Plain, Wanting, Inherited])
def test_a_type_that_cannot_validate_itself_shows_at_start_or_else_at_the_first_message(
    harness: Harness, kind: type
) -> None:
    with pytest.raises(ConfigurationError, match="has no validate"):
        harness.around(Validate(), Failing(), request=kind)
    with pytest.raises(ConfigurationError, match="has no validate"):
        harness.around(Validate(), Failing())(kind())


def test_a_class_method_without_arguments_will_do(harness: Harness) -> None:
    run = harness.around(Validate(), Failing(), request=OfTheClass)

    assert [run(OfTheClass()), run(OfTheClass())] == ["done", "done"]


def test_an_async_validate_is_awaited() -> None:
    class Checked:
        async def validate(self) -> bool:
            await asyncio.sleep(0)
            return False

    with pytest.raises(InvalidMessageAction):
        Harness("awaiting").around(Validate(), Failing())(Checked())


@pytest.mark.parametrize("check", [lambda: True, lambda _, __: True])
def test_a_check_with_the_wrong_parameters_shows_at_start(check: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes the request and nothing else"):
        Validate(check)


def test_a_built_in_will_do_as_a_check(harness: Harness) -> None:
    assert harness.around(Validate(int), Failing())("12") == "done"
    with pytest.raises(InvalidMessageAction):
        harness.around(Validate(int), Failing())("twelve")


def test_it_declares_its_decision() -> None:
    assert declared_decisions(Validate()(lambda _: None)) == {InvalidMessageAction}


def test_a_check_with_a_yield_shows_at_start() -> None:
    def check(request: object) -> Iterator[object]:
        yield request

    with pytest.raises(ConfigurationError, match="has a `yield`: a call of it checks nothing"):
        Validate(check)
