"""What a type is called in messages, and which version of it."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, Generic, Literal, NewType, Optional, TypeVar

import msgspec
import pydantic
import pytest

from pump.errors import ConfigurationError
from pump.mapping.mapper import JsonMapper
from pump.request import Command, Event
from pump.wire_name import wire_type, wire_version

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    sku: str


@dataclass(frozen=True)
class PlaceOrder(Command):
    lines: list[Line]


def test_a_type_travels_under_its_own_name_and_no_version() -> None:
    class Shop:
        @dataclass
        class Opened(Event):
            pass

    assert wire_type(PlaceOrder) == "PlaceOrder"
    assert wire_type(Shop.Opened) == "Opened"
    assert wire_version(PlaceOrder) == ""


def test_a_declared_name_is_its_own_alone_and_a_version_is_inherited() -> None:
    @dataclass(slots=True)
    class Placed:
        wire_type: ClassVar[str] = "shop.order.placed"
        wire_version: ClassVar[str] = "3"
        sku: str

    @dataclass
    class PlacedLater(Placed):
        day: date

    class Struct(msgspec.Struct):
        wire_type: ClassVar[str] = "struct"

    class Model(pydantic.BaseModel):
        wire_type: ClassVar[str] = "model"

    assert wire_type(Placed) == "shop.order.placed"
    assert wire_type(PlacedLater) == "PlacedLater"
    assert wire_version(Placed) == wire_version(PlacedLater) == JsonMapper(PlacedLater).version == "3"
    assert [wire_type(Struct), wire_type(Model)] == ["struct", "model"]


def test_the_name_of_a_generic_type_says_what_it_is_made_of() -> None:
    @dataclass
    class Box(Generic[T]):
        item: T

    @dataclass
    class Named(Generic[T]):
        wire_type: ClassVar[str] = "named"
        item: T

    class Model(pydantic.BaseModel, Generic[T]):
        wire_version: ClassVar[str] = "2"
        item: T

    class NamedModel(pydantic.BaseModel, Generic[T]):
        wire_type: ClassVar[str] = "model"
        item: T

    kinds: list[tuple[Any, str]] = [
        (Box[PlaceOrder], "Box[PlaceOrder]"),
        (Box[list[int]], "Box[list[int]]"),
        (Named[int], "named"),
        (Model[int], "Model[int]"),
        (NamedModel[int], "model"),
        (list[int], "list[int]"),
        (dict[str, Line], "dict[str, Line]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Line | None, "Line | None"),
        (Optional[Line], "Line | None"),  # noqa: UP045 - users still write it
        (Literal["a", 1], "Literal['a', 1]"),
        (Annotated[Line, "x"], "Line"),
        (NewType("Sku", str), "Sku"),
        (Any, "Any"),
    ]
    assert [wire_type(kind) for kind, _ in kinds] == [name for _, name in kinds]
    assert wire_version(Model[int]) == "2"
    assert wire_version(list[int]) == ""


def test_a_name_that_is_declared_wrongly_is_a_configuration_error() -> None:
    @dataclass
    class AField:
        wire_type: str = "order"

    class Number:
        wire_version = 2

    class Nothing:
        wire_type: ClassVar[str] = ""

    with pytest.raises(ConfigurationError, match=r"AField\.wire_type must be a ClassVar\[str\]"):
        wire_type(AField)
    with pytest.raises(ConfigurationError, match="wire_version"):
        wire_version(Number)
    with pytest.raises(ConfigurationError, match="not empty"):
        wire_type(Nothing)
