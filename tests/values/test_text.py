"""Whatever a program gives as a reason or an error: it becomes text, and that never fails."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump.dead_letter import PROVENANCE, TOTAL_LIMIT, Rejection, provenance
from pump.errors import RejectMessageAction
from pump.message import Header, Message
from pump.text import TEXT_LIMIT, bounded_text, text_of
from support.hostile import ANYTHING, BadlyNotedError, Unprintable, UnprintableError, Why


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("", ""), ("tea", "tea"), (0, "0"), (Why.SOLD_OUT, "Why.SOLD_OUT")]
)
def test_a_value_is_shown_as_it_shows_itself_and_nothing_as_nothing(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_value_whose_text_fails_is_named_by_its_type_and_that_failure() -> None:
    assert text_of(Unprintable()) == "<Unprintable, whose text raised ZeroDivisionError>"
    assert RejectMessageAction(Unprintable()).reason == text_of(Unprintable())  # type: ignore[arg-type]


@given(st.text(st.characters()), st.integers(-3, 40))
def test_a_bounded_text_fits_and_can_be_written_anywhere(text: str, limit: int) -> None:
    bounded = bounded_text(text, limit)

    assert len(bounded.encode()) <= max(limit, 0)
    assert "\0" not in bounded


@pytest.mark.parametrize("value", ANYTHING)
def test_a_rejection_holds_bounded_text_whatever_it_was_given(value: Any) -> None:
    rejection = Rejection("delivery error", value, value, handler=value)

    for text in (rejection.reason, rejection.description, rejection.handler):
        assert type(text) is str
        assert len(text.encode()) <= TEXT_LIMIT


@pytest.mark.parametrize(
    "error", [UnprintableError(), BadlyNotedError("x"), SyntaxError("x", (None,) * 4), KeyError(Unprintable())]
)
@pytest.mark.parametrize("value", ANYTHING)
def test_provenance_can_always_be_made(value: Any, error: BaseException) -> None:
    message = Message(Header("m", "orders"), b"", position=value)

    texts = provenance(message, Rejection("delivery error", value, value, error, value, attempts=3))

    assert set(texts) <= set(PROVENANCE)
    assert texts["pump-attempts"] == "3"
    assert texts["pump-exception"].endswith(type(error).__name__)
    assert sum(len(name) + len(text.encode()) for name, text in texts.items()) <= TOTAL_LIMIT
