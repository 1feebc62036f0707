"""The options as the documentation shows them: each with a text, from the class that has it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest

from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.program.options import option_rows, rows_of, type_text
from pump.subscription import Publication, Subscription
from pump.testing.settings import SubscriptionOptions


@dataclass
class Base:
    """What others inherit."""

    size: int = 1
    """How many."""


@dataclass
class Complete(Base):
    """A class that explains all of its options."""

    wait: Duration | None = None
    """How long, over
    two lines."""


@dataclass
class Silent(Base):
    """A class that does not."""

    secret: str = ""


class Parameters:
    """Made with options.

    * `name`: Who it is.
    """

    def __init__(self, name: str, other: int = 2) -> None: ...


def test_an_option_is_shown_with_type_default_and_text_those_of_bases_first() -> None:
    assert list(rows_of(Complete)) == [
        ("`size`", "int", "`1`", "How many."),
        ("`wait`", "duration or None", "`None`", "How long, over two lines."),
    ]


@pytest.mark.parametrize(("owner", "option"), [(Silent, "secret"), (Parameters, "other")])
def test_an_option_without_a_text_is_an_error(owner: type, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{owner.__name__} has an option without a text: {option}"):
        list(rows_of(owner))


@pytest.mark.parametrize("owner", [Subscription, Publication])
def test_every_option_of_a_class_is_in_the_table(owner: type) -> None:
    shown = [row[0].strip("`") for row in rows_of(owner)]

    assert sorted(shown) == sorted(field.name for field in fields(owner))


def test_the_table_has_all_three_classes() -> None:
    titles = [row[0] for row in option_rows() if row[0].startswith("**")]

    assert titles == ["**Dispatcher**", "**Subscription**", "**Publication**"]


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (str, "str"),
        (int | None, "int or None"),
        (Duration, "duration"),
        (tuple[Duration, Duration], "(duration, duration)"),
        (Callable[[int], str] | None, "function or None"),
        (Literal["a", "b"] | None, "`'a'` or `'b'` or None"),
        (list[Any], "list of object"),
    ],
)
def test_a_type_is_shown_in_words(hint: Any, text: str) -> None:
    assert type_text(hint) == text


def test_a_harness_takes_every_option_of_a_subscription_but_its_handlers() -> None:
    options = {field.name for field in fields(Subscription)} - {"request", "handlers"}

    assert set(SubscriptionOptions.__annotations__) == options
