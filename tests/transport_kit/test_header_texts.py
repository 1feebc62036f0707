"""Headers as text are read strictly: anybody may have written them."""

import pytest

from pump.transport_kit.header_texts import KINDS, count_of, is_count, kind_of, time_of


def test_the_kinds_are_those_that_a_header_may_have() -> None:
    assert {"command", "event", "document"} == KINDS
    assert [kind_of("pump-kind", kind) for kind in sorted(KINDS)] == sorted(KINDS)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("999999999", 999_999_999)])
def test_a_count_is_a_whole_number_below_a_billion(text: str, number: int) -> None:
    assert is_count(text)
    assert count_of("pump-attempts", text) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1_000", "٣", "²", " 1", "1000000000", "9" * 5000])
def test_anything_else_is_no_count(text: str) -> None:
    assert not is_count(text)
    with pytest.raises(ValueError, match=r"its header pump-attempts must be a whole number, not '") as error:
        count_of("pump-attempts", text)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(("text", "time"), [("0", 0.0), ("12.5", 12.5), ("-1e3", -1000.0)])
def test_a_time_is_a_finite_number(text: str, time: float) -> None:
    assert time_of("pump-time", text) == time


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-inf", "1e999", "x" * 5000])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"its header pump-time must be a time in seconds, not '") as error:
        time_of("pump-time", text)
    assert len(str(error.value)) < 150


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"its header pump-kind must be one of command, document, event, not 'order'"):
        kind_of("pump-kind", "order")
