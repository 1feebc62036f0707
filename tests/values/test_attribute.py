import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from pump import handlers
from pump.attribute import attributes_of, declared_decisions
from pump.colour import Colour
from pump.errors import ConfigurationError, DontAckAction, RejectMessageAction
from pump.handlers import FeatureSwitch, RejectMessageOnError, Retry
from pump.handling.registry import RequestHandler
from support.pipelines import Harness, Noting, Shout
from support.tree import ROOT


def test_decorating_returns_the_same_function() -> None:
    def handle(request: object) -> object:
        return request

    marked = Shout()(handle)

    assert marked is handle
    assert marked("bare") == "bare"


def test_a_marked_method_called_in_a_unit_test_is_the_bare_handler() -> None:
    class Handler(RequestHandler[str]):
        @Shout()
        def handle(self, request: str) -> str:
            return request

    assert Handler().handle("bare") == "bare"


def test_an_inherited_handle_keeps_its_attributes_and_an_overridden_one_has_its_own() -> None:
    class Parent(RequestHandler[str]):
        @Shout()
        @Retry()
        def handle(self, request: str) -> str:
            return request

    class Inheriting(Parent):
        pass

    class Overriding(Parent):
        @Retry()
        def handle(self, request: str) -> str:
            return super().handle(request)

    assert [type(each) for each in attributes_of(Inheriting().handle)] == [Shout, Retry]
    assert [type(each) for each in attributes_of(Overriding().handle)] == [Retry]
    assert [type(each) for each in attributes_of(Parent.handle)] == [Shout, Retry]


def test_attributes_are_found_on_partials_and_on_objects_that_are_called() -> None:
    class Called:
        @Shout()
        def __call__(self, request: object) -> object:
            return request

    @Shout()
    def handle(option: object, request: object) -> object:
        return request

    for each in (Called(), functools.partial(functools.partial(handle), "option")):
        assert [type(attribute) for attribute in attributes_of(each)] == [Shout]
    assert attributes_of(len) == ()


def test_marks_survive_a_decorator_that_wraps() -> None:
    def wrapping(function: Callable[[object], object]) -> Callable[[object], object]:
        @functools.wraps(function)
        def wrapper(request: object) -> object:
            return function(request)

        return wrapper

    @Retry()
    @wrapping
    @Shout()
    def handle(request: object) -> object:
        return request

    assert [type(each) for each in attributes_of(handle)] == [Retry, Shout]


@pytest.mark.parametrize("wrong", [staticmethod(len), Shout, functools.partial(len), 3])
def test_an_attribute_goes_on_functions_only(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"@Shout\(\) goes directly on a function"):
        Shout()(wrong)


def test_an_attribute_shows_its_options() -> None:
    assert repr(Noting("a", [])) == "Noting(name='a', notes=[])"
    assert repr(FeatureSwitch("a", dont_ack=True)) == (
        "FeatureSwitch(name='a', dont_ack=True, default=True, provider=None)"
    )


def test_the_declared_decisions_are_those_of_all_attributes() -> None:
    @FeatureSwitch("orders", dont_ack=True)
    @RejectMessageOnError()
    @Retry()
    def handle(request: object) -> None:
        """Nothing."""

    @FeatureSwitch("orders")
    def silent(request: object) -> None:
        """Nothing."""

    assert declared_decisions(handle) == {DontAckAction, RejectMessageAction}
    assert declared_decisions(silent) == frozenset()


@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_the_attributes_that_the_docs_show_work(colour: Colour) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/attributes.md").read_text(), re.DOTALL)
    shown: dict[str, Any] = {}
    for block in blocks:
        exec(block, shown)  # noqa: S102 - our own page
    harness = Harness(colour)
    handle = shown["Audit"]()(shown["OneAtATime"]()(harness.handler(str.upper)))

    run = harness.ready(handle)

    assert [run("tea"), run("milk")] == ["TEA", "MILK"]
    assert [type(each).__name__ for each in attributes_of(shown["PlaceOrderHandler"].handle)] == [
        "FeatureSwitch",
        "DontAckOnError",
        "Retry",
    ]
    assert len(blocks) == 3


def test_the_docs_name_every_attribute() -> None:
    page = (ROOT / "docs/attributes.md").read_text()

    assert [name for name in handlers.__all__ if f"`{name}(" not in page] == []
