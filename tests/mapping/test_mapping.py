"""What a mapper promises: a request becomes a body, a message a request, and anything else is a MappingError."""

import dataclasses
import json
import subprocess
import sys
import textwrap
import traceback
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from types import MappingProxyType, ModuleType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import msgspec
import pydantic
import pytest

from pump.errors import ConfigurationError, DontAckAction, InvalidMessageAction, MessageAction
from pump.mapping.errors import MappingError
from pump.mapping.mapper import JsonMapper, Mapper
from pump.mapping.pydantic_codec import is_pydantic
from pump.message import Header, Message
from pump.request import Command
from pump.wire_name import wire_type

T = TypeVar("T")
B = TypeVar("B", bound=int)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Word(StrEnum):
    TEA = "tea"


DROPS_BITS = pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="this Python drops the unknown bits of a Flag")


class Access(Flag):
    READ = auto()
    WRITE = auto()


@dataclass(frozen=True)
class Line:
    sku: str
    quantity: int = 1


@dataclass
class Node:
    name: str
    children: "list[Node]" = field(default_factory=list)
    parent: "Node | None" = None


@dataclass(frozen=True)
class PlaceOrder(Command):
    customer: str
    lines: list[Line]
    rush: bool = False
    discount: float | None = None


class OrderStruct(msgspec.Struct):
    sku: str
    quantity: int = 1
    price: float | None = None


class OrderModel(pydantic.BaseModel):
    sku: str
    quantity: int = 1
    price: float | None = None


ORDER = PlaceOrder("ann", [Line("tea", 2), Line("jam")], rush=True, discount=0.5)
ORDER_BODY = (
    b'{"customer":"ann","lines":[{"sku":"tea","quantity":2},{"sku":"jam","quantity":1}],"rush":true,"discount":0.5}'
)


def message(body: bytes, **header: Any) -> Message:
    return Message(Header("1", **header), body)


def decode(request_type: Any, body: bytes | str) -> Any:
    """What the mapper makes of the body: the request, or the words of the error."""
    try:
        return JsonMapper(request_type).decode(message(body.encode() if isinstance(body, str) else body))
    except MappingError as error:
        return str(error)


def refusal(request_type: Any, body: bytes | str) -> str:
    text = decode(request_type, body)
    assert isinstance(text, str)
    assert text.startswith("$")
    return text


def encoding_refusal(request_type: Any, request: object) -> str:
    with pytest.raises(MappingError) as raised:
        JsonMapper(request_type).encode(request)
    return str(raised.value)


def unmappable(request_type: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        JsonMapper(request_type)
    return str(raised.value)


def assert_round_trip(request_type: Any, value: object, wire: str | None = None) -> None:
    mapper = JsonMapper[Any](request_type)
    body = mapper.encode(value)
    back = mapper.decode(message(body))

    assert back == value
    assert type(back) is type(value)
    if wire is not None:
        assert body.decode() == wire


class TestRequestsAndBodies:
    def test_a_dataclass_becomes_an_object_of_its_fields_and_comes_back(self) -> None:
        assert_round_trip(PlaceOrder, ORDER, ORDER_BODY.decode())

    def test_missing_fields_take_their_defaults_and_unknown_ones_are_ignored(self) -> None:
        order = decode(PlaceOrder, '{"lines":[],"customer":"ann","added later":{"x":[1]}}')

        assert order == PlaceOrder("ann", [])

    def test_a_default_factory_makes_a_new_value_each_time(self) -> None:
        @dataclass
        class Basket:
            skus: list[str] = field(default_factory=list)

        first, second = decode(Basket, "{}"), decode(Basket, "{}")

        assert first == second == Basket([])
        assert first.skus is not second.skus

    def test_keyword_only_slotted_and_frozen_dataclasses_come_back(self) -> None:
        @dataclass(frozen=True, slots=True, kw_only=True)
        class Parcel:
            weight: float
            label: str = ""

        assert_round_trip(Parcel, Parcel(weight=1.5, label="x"), '{"weight":1.5,"label":"x"}')

    def test_fields_that_are_not_in_the_constructor_come_back_before_post_init_has_its_say(self) -> None:
        @dataclass
        class Payment:
            amount: int
            state: str = field(default="new", init=False)
            notes: list[str] = field(default_factory=list, init=False)
            double: int = field(init=False)

            def __post_init__(self) -> None:
                self.double = self.amount * 2

        payment = Payment(3)
        payment.state = "paid"
        payment.notes.append("thanks")

        assert_round_trip(Payment, payment, '{"amount":3,"state":"paid","notes":["thanks"],"double":6}')
        assert decode(Payment, '{"amount":3,"double":1000}') == Payment(3)

    def test_a_field_outside_the_constructor_may_lack_a_default(self) -> None:
        @dataclass
        class Lazy:
            a: int
            later: int = field(init=False, compare=False, repr=False)

        assert decode(Lazy, '{"a":1,"later":2}') == Lazy(1)
        assert refusal(Lazy, '{"a":1}') == "$: Object missing required field `later`"
        assert encoding_refusal(Lazy, Lazy(1)) == "$: Object missing required field `later`"

    def test_generic_dataclasses_are_filled_in_through_their_bases(self) -> None:
        @dataclass
        class Box(Generic[T]):
            item: T
            spare: "list[T]"

        @dataclass
        class Crate(Box[date], Generic[B]):
            count: B

        assert_round_trip(Box[Line], Box(Line("tea"), [Line("jam")]))
        assert_round_trip(Crate[int], Crate(date(2024, 2, 29), [], 3), '{"item":"2024-02-29","spare":[],"count":3}')
        assert decode(Box, '{"item":{"any":1},"spare":[1,"x"]}') == Box({"any": 1}, [1, "x"])
        assert refusal(Crate, '{"item":"2024-02-29","spare":[],"count":"3"}').startswith("$.count: Expected `int`")

    def test_a_class_may_refer_to_itself(self) -> None:
        assert_round_trip(Node, Node("a", [Node("b", [Node("c")])], Node("d")))

    def test_names_in_quotes_are_found_in_the_module_and_within_the_class(self) -> None:
        @dataclass
        class Outer:
            @dataclass
            class Nested:
                y: int

            line: "Line"
            nested: "Nested"
            date: "date | None" = None

        assert_round_trip(Outer, Outer(Line("tea"), Outer.Nested(2), date(2024, 1, 1)))

    def test_names_in_quotes_that_only_a_function_knows_are_a_configuration_error(self) -> None:
        @dataclass
        class Inner:
            x: int

        @dataclass
        class Outer:
            inner: "Inner"

        @dataclass
        class Own:
            children: "list[Own]"

        assert "Outer cannot be mapped: name 'Inner' is not defined, and an annotation in quotes" in unmappable(Outer)
        assert "Own cannot be mapped: name 'Own' is not defined" in unmappable(Own)

    def test_a_field_that_begins_with_an_underscore_is_a_field(self) -> None:
        @dataclass
        class Order:
            _number: int

        assert_round_trip(Order, Order(1), '{"_number":1}')

    def test_a_named_tuple_is_an_array_of_its_fields(self) -> None:
        class Point(NamedTuple):
            x: int
            y: float = 0.0

        assert_round_trip(Point, Point(1, 2.5), "[1,2.5]")
        assert decode(Point, "[1]") == Point(1)
        assert refusal(Point, '["1"]').startswith("$[0]: Expected `int`")

    def test_annotations_may_all_be_strings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("shop")
        monkeypatch.setitem(sys.modules, "shop", module)
        source = """
            from __future__ import annotations
            import typing as t
            from dataclasses import dataclass, field, InitVar, KW_ONLY

            T = t.TypeVar("T")

            @dataclass(slots=True)
            class Page(t.Generic[T]):
                wire_type: t.ClassVar[str] = "page"
                items: list[T]
                _: KW_ONLY
                next: Page[T] | None = None
                total: t.Final[int] = 0

            class Options(t.TypedDict, total=False):
                gift: t.Required[bool]
                card: str

            @dataclass
            class Order:
                options: Options
                pages: dict[str, Page[Options]] = field(default_factory=dict)

            @dataclass
            class Hidden:
                a: InitVar[int]
        """
        exec(textwrap.dedent(source), vars(module))  # noqa: S102 - the future import must be another file's

        order = module.Order({"gift": True}, {"a": module.Page([{"gift": False, "card": "x"}], total=1)})
        assert_round_trip(module.Order, order)
        assert wire_type(module.Page) == "page"
        assert refusal(module.Order, '{"options":{}}') == "$.options: Object missing required field `gift`"
        assert "InitVar" in unmappable(module.Hidden)

    def test_every_other_form_of_type_may_be_a_request_too(self) -> None:
        assert_round_trip(list[int], [1, 2], "[1,2]")
        assert_round_trip(dict[str, Line], {"a": Line("tea")})
        assert_round_trip(int | None, None, "null")
        assert_round_trip(str, "é😀\x7f\u2028", '"é😀\x7f\u2028"')


class TestForms:
    @pytest.mark.parametrize(
        ("hint", "value", "wire"),
        [
            (str, 'a"\\\n\x00', '"a\\"\\\\\\n\\u0000"'),
            (int, -(10**30), "-1" + "0" * 30),
            (bool, True, "true"),
            (float, 1.0, "1.0"),
            (float, -0.0, "-0.0"),
            (float, 1e300, "1e300"),
            (None, None, "null"),
            (bytes, b"\xff\x00a", '"/wBh"'),
            (UUID, UUID(int=10), '"00000000-0000-0000-0000-00000000000a"'),
            (Decimal, Decimal("-1.50"), '"-1.50"'),
            (Decimal, Decimal("1E+3"), '"1E+3"'),
            (date, date(1, 2, 3), '"0001-02-03"'),
            (time, time(1, 2, 3), '"01:02:03"'),
            (time, time(1, 2, 3, 40, UTC), '"01:02:03.000040Z"'),
            (datetime, datetime(2024, 1, 2, 3, 4, 5), '"2024-01-02T03:04:05"'),  # noqa: DTZ001 - a naive one
            (datetime, datetime(2024, 1, 2, 3, 4, 5, 6, UTC), '"2024-01-02T03:04:05.000006Z"'),
            (
                datetime,
                datetime(2024, 1, 2, tzinfo=timezone(-timedelta(hours=3, minutes=30))),
                '"2024-01-02T00:00:00-03:30"',
            ),
            (timedelta, timedelta(), '"P0D"'),
            (timedelta, timedelta(days=1, hours=2), '"P1DT7200S"'),
            (timedelta, timedelta(microseconds=-1), '"-PT0.000001S"'),
            (timedelta, timedelta.min, '"-P999999999D"'),
            (timedelta, timedelta.max, '"P999999999DT86399.999999S"'),
            (list, [1, "a", None, {"x": [1.5]}], '[1,"a",null,{"x":[1.5]}]'),
            (typing.List, [1], "[1]"),  # noqa: UP006 - users still write it
            (list[float], [1.0, 2.5], "[1.0,2.5]"),
            (set[int], {1}, "[1]"),
            (set, {"a"}, '["a"]'),
            (frozenset[str], frozenset({"a"}), '["a"]'),
            (tuple, (1, "a"), '[1,"a"]'),
            (typing.Tuple, (1, "a"), '[1,"a"]'),  # noqa: UP006 - users still write it
            (tuple[()], (), "[]"),
            (tuple[int, str], (1, "a"), '[1,"a"]'),
            (tuple[date, ...], (date(2024, 1, 1),), '["2024-01-01"]'),
            (dict, {"a": 1}, '{"a":1}'),
            (dict[str, int], {"": 1, "b": 2}, '{"":1,"b":2}'),
            (dict[Any, int], {"a": 1}, '{"a":1}'),
            (dict[int, str], {-1: "a"}, '{"-1":"a"}'),
            (dict[Size, int], {Size.LARGE: 1}, '{"2":1}'),
            (dict[Colour, int], {Colour.RED: 1}, '{"red":1}'),
            (dict[UUID, int], {UUID(int=1): 1}, '{"00000000-0000-0000-0000-000000000001":1}'),
            (dict[date, int], {date(2024, 1, 1): 1}, '{"2024-01-01":1}'),
            (dict[Literal["a", "b"], int], {"a": 1}, '{"a":1}'),
            (Colour, Colour.BLUE, '"blue"'),
            (Size, Size.LARGE, "2"),
            (Access, Access.READ | Access.WRITE, "3"),
            (Literal["a", 1, None], 1, "1"),  # noqa: PYI061 - users still write it
            (Literal[True, 0], True, "true"),
            (Any, {"a": [1, 1.5, True, None, "x"]}, '{"a":[1,1.5,true,null,"x"]}'),
            (object, [1], "[1]"),
            (int | str, 5, "5"),
            (Union[int, str], "5", '"5"'),  # noqa: UP007 - users still write it
            (Optional[date], date(2024, 1, 1), '"2024-01-01"'),  # noqa: UP045 - users still write it
            (int | float, 1, "1"),
            (int | float, 1.0, "1.0"),
            (Decimal | int, Decimal(1), '"1"'),
            (Decimal | int, 1, "1"),
            (bool | int, True, "true"),
            (bool | int, 1, "1"),
            (Line | list[Line] | None, [Line("a", 2)], '[{"sku":"a","quantity":2}]'),
            (Any | None, 5, "5"),
            (Colour | int, Colour.RED, '"red"'),
            (NewType("Sku", str), "x", '"x"'),
            (Annotated[int, "a note", ["unhashable"]], 5, "5"),
        ],
    )
    def test_each_form_comes_back_equal_and_of_its_type(self, hint: Any, value: object, wire: str) -> None:
        assert_round_trip(hint, value, wire)

    @pytest.mark.parametrize(
        ("hint", "value", "read"),
        [
            (Sequence[int], (1, 2), [1, 2]),
            (MutableSequence[int], [1, 2], [1, 2]),
            (AbstractSet[int], frozenset({1}), {1}),
            (MutableSet[int], {1}, {1}),
            (Mapping[str, int], {"a": 1}, {"a": 1}),
            (MutableMapping[str, int], {"a": 1}, {"a": 1}),
            (float, 2, 2.0),
            (float | None, 2, 2.0),
            (Decimal, Decimal(2), Decimal(2)),
            (Any, (1, 2), [1, 2]),
            (str, Word.TEA, "tea"),
            (int, Size.LARGE, 2),
            (int | None, Size.LARGE, 2),
        ],
    )
    def test_what_a_type_accepts_is_written_and_read_as_the_type_itself(
        self, hint: Any, value: object, read: object
    ) -> None:
        mapper = JsonMapper[Any](hint)
        assert mapper.decode(message(mapper.encode(value))) == read

    @pytest.mark.parametrize(
        ("hint", "wire", "value"),
        [
            (float, "2", 2.0),
            (float, "1" + "0" * 308, 1e308),
            (float, "1e-999", 0.0),
            (Decimal, "2", Decimal(2)),
            (Decimal, "1.10", Decimal("1.1")),
            (Decimal, '"1.10"', Decimal("1.10")),
            (Decimal, '"+.5e1"', Decimal(5)),
            (Decimal, "0.12345678901234567", Decimal("0.12345678901234567")),
            (UUID, '"0000000000000000000000000000000A"', UUID(int=10)),
            (datetime, '"2024-01-02 03:04:05z"', datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
            (datetime, '"2024-01-02T03:04:05.5-00:00"', datetime(2024, 1, 2, 3, 4, 5, 500_000, UTC)),
            (datetime, '"2024-12-31T23:59:59.9999995Z"', datetime(2025, 1, 1, tzinfo=UTC)),
            (datetime, '"2024-01-01T00:00:00.12345649999+0100"', None),
            (time, '"01:02:03.00000051"', time(1, 2, 3, 1)),
            (timedelta, '"p1dt1h1m1.5s"', timedelta(1, 3661, 500_000)),
            (timedelta, '"-PT1.5H"', timedelta(hours=-1.5)),
            (timedelta, '"+P0.5D"', timedelta(hours=12)),
            (timedelta, '"PT0.0000005S"', timedelta(microseconds=1)),
            (bytes, '"YQ=="', b"a"),
            (dict[int, int], '{"0":1,"-5":2}', {0: 1, -5: 2}),
        ],
    )
    def test_what_others_may_write_is_read(self, hint: Any, wire: str, value: object) -> None:
        read = decode(hint, f" \t\r\n{wire}\n ")

        assert not isinstance(read, str)
        assert value is None or read == value

    @pytest.mark.parametrize(
        ("hint", "wire"),
        [
            *((str, wire) for wire in ("1", "null", "[]", "{}", "true")),
            *((int, wire) for wire in ('"1"', "1.0", "1e2", "true", "null", "[]")),
            *((float, wire) for wire in ('"1"', "true", "null", "1" + "0" * 400)),
            *((bool, wire) for wire in ("1", "0", '"true"', "null")),
            *((None, wire) for wire in ("0", '""', "false")),
            *((bytes, f'"{text}"') for text in ("YQ", "Y===", "Y Q=", "-_-_", "é===", "YQ==\\n", "YWI=YWI=", "YWJj=")),
            *((UUID, f'"{text}"') for text in ("", "x", "{00000000-0000-0000-0000-000000000001}", "0" * 31)),
            *((Decimal, f'"{text}"') for text in ("", "NaN", "sNaN", "nan1", "Infinity", "-inf", "1e", ".")),
            *((Decimal, wire) for wire in ("true", "null", '"1e99999999999999999999"')),
            *((date, f'"{text}"') for text in ("2024-02-30", "20240101", "2024-1-1", "2024-01-01T00:00:00")),
            *((time, f'"{text}"') for text in ("24:00:00", "00:00", "00:00:60")),
            *(
                (datetime, f'"{text}"')
                for text in (
                    "2024-01-01",
                    "2024-01-01T00:00Z",
                    "2024-01-01T24:00:00Z",
                    "2024-01-01T00:00:00,5Z",
                    "2024-01-01T00:00:00.Z",
                    "2024-01-01T00:00:00+05",
                    "2024-01-01T00:00:00+05:60",
                    "9999-12-31T23:59:59.9999999Z",
                    "0000-01-01T00:00:00Z",
                )
            ),
            (datetime, "1704067200"),
            *(
                (timedelta, f'"{text}"')
                for text in ("", "P", "PT", "P1DT", "P1W", "P1Y", "PT1.5M1S", "PT1S1M", "P-1D", "P1000000000D")
            ),
            (timedelta, "5"),
            (Colour, '"green"'),
            (Colour, "1"),
            (Size, "3"),
            (Size, "true"),
            (Size, '"1"'),
            pytest.param(Access, "8", marks=DROPS_BITS),
            (Literal["a", 1], "true"),
            (Literal["a", 1], '"b"'),
            (list[int], '{"a":1}'),
            (set[Any], "[[]]"),
            (tuple[int, str], "[1]"),
            (tuple[int, str], '[1,"a",2]'),
            (tuple[int, str], "{}"),
            (dict[str, int], "[]"),
            *((dict[int, int], f'{{"{key}":1}}') for key in ("01", "+1", " 1", "1.0", "", "x", "1" * 5000)),
            (int | str, "1.5"),
            (int | None, "{}"),
            (Line, "[]"),
            (Line, '"x"'),
        ],
    )
    def test_nothing_is_converted_that_is_not_meant_so(self, hint: Any, wire: str) -> None:
        mapper = JsonMapper[Any](hint)
        with pytest.raises(MappingError, match=r"^\$"):
            mapper.decode(message(wire.encode()))

    def test_a_typed_dict_says_which_of_its_keys_may_be_missing(self) -> None:
        class Base(TypedDict):
            a: int

        class Details(Base, total=False):
            b: "Required[str]"
            c: float

        class More(Details):
            d: NotRequired[bool]

        assert_round_trip(More, {"a": 1, "b": "x", "c": 1.5, "d": True})
        assert decode(More, '{"a":1,"b":"x","e":5}') == {"a": 1, "b": "x"}
        assert refusal(More, '{"a":1}') == "$: Object missing required field `b`"
        assert encoding_refusal(More, {"a": 1}) == "$: Object missing required field `b`"
        assert encoding_refusal(More, {"a": "1", "b": ""}) == "$.a: Expected `int`, got `str`"
        assert encoding_refusal(More, {"a": 1, "b": "", "z": 1}) == "$[...]: int would be read back as nothing"
        assert encoding_refusal(More, []) == "$: Expected `object`, got `array`"

    def test_an_enum_decides_about_values_it_does_not_list(self) -> None:
        class Status(Enum):
            OPEN = "open"

            @classmethod
            def _missing_(cls, value: object) -> "Status | None":
                return cls.OPEN if value == "OPEN" else None

        assert decode(Status, '"OPEN"') is Status.OPEN
        assert refusal(Status, '"private"') == "$: Invalid enum value"


class TestWhatIsNoRequest:
    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ('{"customer":"ann"}', "$: Object missing required field `lines`"),
            ('{"customer":5,"lines":[]}', "$.customer: Expected `str`, got `int`"),
            ('{"customer":"ann","lines":{}}', "$.lines: Expected `array`, got `object`"),
            ('{"customer":"ann","lines":[{"sku":"a"},{}]}', "$.lines[1]: Object missing required field `sku`"),
            (
                '{"customer":"ann","lines":[{"sku":"a"},{"sku":"b"},{"sku":null}]}',
                "$.lines[2].sku: Expected `str`, got `null`",
            ),
            ('{"customer":"ann","lines":[],"rush":1}', "$.rush: Expected `bool`, got `int`"),
            (
                '{"customer":"ann","lines":[],"discount":"1"}',
                "$.discount: Expected `float | null`, got `str`",
            ),
            ("[]", "$: Expected `object`, got `array`"),
            ("5", "$: Expected `object`, got `int`"),
        ],
    )
    def test_the_error_names_the_path_what_was_expected_and_what_was_found(self, body: str, words: str) -> None:
        assert refusal(PlaceOrder, body) == words

    def test_a_key_of_a_dict_is_not_shown(self) -> None:
        assert refusal(dict[str, list[int]], '{"private":[1,"private"]}') == "$[...][1]: Expected `int`, got `str`"

    @pytest.mark.parametrize(
        ("hint", "wire"),
        [
            (Colour, '"private"'),
            (Literal["a"], '"private"'),
            (date, '"private"'),
            (timedelta, '"private"'),
            (UUID, '"private"'),
            (Decimal, '"private"'),
            (bytes, '"private"'),
            (int, '"private"'),
            (dict[int, int], '{"private":1}'),
            (dict[str, int], '{"private":1,"private":2}'),
            (list[str], '["private" "private"]'),
            (tuple[int], '["private","private"]'),
            (int | None, '"private"'),
            (OrderStruct, '{"sku":"a","quantity":"private"}'),
            (OrderModel, '{"sku":"a","quantity":"private"}'),
        ],
    )
    def test_no_value_is_shown_neither_in_the_error_nor_in_its_traceback(self, hint: Any, wire: str) -> None:
        mapper = JsonMapper[Any](hint)
        with pytest.raises(MappingError) as raised:
            mapper.decode(message(wire.encode()))

        assert "private" not in "".join(traceback.format_exception(raised.value))

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "$: empty"),
            (b" \n", "$: empty"),
            (b"{", "$: not JSON: Expecting property name enclosed in double quotes at character 1"),
            (b'{"sku":"a"} x', "$: not JSON: text follows its end at character 11"),
            (b"\xef\xbb\xbf{}", "$: not JSON: Expecting value at character 0"),
            (b"\xff\xfe{\x00}\x00", "$: not UTF-8 at byte 0"),
            (b'{"sku":"\xed\xa0\x80"}', "$: not UTF-8 at byte 8"),
            (b'{"sku":"\\ud800"}', "$: a string holds half of a surrogate pair"),
            (b'{"sku":"a","x":{"\\uDC00":1}}', "$: a string holds half of a surrogate pair"),
            (b'{"sku":"a","sku":"a"}', "$: an object has one key twice"),
            (b'{"sku":"a","x":[{"y":1,"\\u0079":1}]}', "$: an object has one key twice"),
            (b'{"sku":"a","x":NaN}', "$: NaN and Infinity are not JSON"),
            (b'{"sku":"a","x":-Infinity}', "$: NaN and Infinity are not JSON"),
            (b'{"sku":"a","x":1e999}', "$: a number is too large"),
            (b'{"sku":"a","quantity":%s}' % (b"1" * 5000), "$: an integer has too many digits"),
            (b"[" * 100_000, "$: nested too deeply"),
            (b'{"sku":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "$: nested too deeply"),
        ],
    )
    def test_a_body_that_is_no_sound_json_is_refused_alike_by_every_library(self, body: bytes, words: str) -> None:
        for request_type in (Line, OrderStruct, OrderModel):
            assert refusal(request_type, body) == words

    def test_a_whole_pair_and_an_escaped_backslash_are_no_half_character(self) -> None:
        assert decode(Line, b'{"sku":"\\ud83d\\ude00 \\\\ud800"}') == Line("😀 \\ud800")

    def test_nesting_that_only_the_type_makes_deep_is_refused_too(self) -> None:
        @dataclass
        class Nested:
            name: str
            parent: "Node | None" = None

        body = '{"name":"","parent":' * 100_000 + "null" + "}" * 100_000

        assert refusal(Nested, body) == "$: nested too deeply"

    def test_a_content_type_that_is_not_json_is_refused(self) -> None:
        for content_type in ("image/png", "application/jsonl", "json", "text/plain; x=application/json", "x" * 1000):
            with pytest.raises(MappingError, match="cannot read content type") as raised:
                JsonMapper(Line).decode(message(b'{"sku":"a"}', content_type=content_type))

            assert len(str(raised.value)) < 120

    @pytest.mark.parametrize(
        "content_type",
        ["", "application/json", "text/json", "Application/JSON; charset=utf-8", "application/vnd.shop.order+json;v=2"],
    )
    def test_a_content_type_that_is_like_json_is_read(self, content_type: str) -> None:
        assert JsonMapper(Line).decode(message(b'{"sku":"a"}', content_type=content_type)) == Line("a")


class TestWhatCannotBeWritten:
    @pytest.mark.parametrize(
        ("hint", "value", "words"),
        [
            (
                PlaceOrder,
                PlaceOrder("ann", [], discount=float("nan")),
                "$.discount: expected a finite number, found NaN or an infinity",
            ),
            (PlaceOrder, PlaceOrder("ann", [Line(5)]), "$.lines[0].sku: Expected `str`, got `int`"),  # type: ignore[arg-type] # the point
            (PlaceOrder, Line("tea"), "$: expected PlaceOrder, found Line"),
            (Any, {"a": [float("inf")]}, "$[...][0]: expected a finite number, found NaN or an infinity"),
            (Any, {1: 2}, "$[...]: int would be read back as nothing"),
            (Any, [UUID(int=1)], "$[0]: UUID would be read back as str"),
            (Any, [1, 1j], "$: complex has no JSON form"),
            (int, True, "$: Expected `int`, got `bool`"),
            (bool, 1, "$: Expected `bool`, got `int`"),
            (float, True, "$: Expected `float`, got `bool`"),
            (float, 10**400, "$: Number out of range"),
            (str, "\ud800", "$: a string holds half of a surrogate pair"),
            (date, datetime(2024, 1, 1, tzinfo=UTC), "$: Invalid RFC3339 encoded date"),
            (
                datetime,
                datetime(2024, 1, 1, tzinfo=timezone(timedelta(seconds=30))),
                "$: expected an offset in whole minutes",
            ),
            (Decimal, Decimal("NaN"), "$: expected a finite number, found NaN or an infinity"),
            (Decimal, Decimal("-Infinity"), "$: expected a finite number, found NaN or an infinity"),
            (Colour, "green", "$: Invalid enum value"),
            (Literal["a", 1], "b", "$: Invalid enum value"),
            (tuple[int, int], (1,), "$: Expected `array` of length 2"),
            (tuple[int, int], {1: 2}, "$: Expected `array`, got `object`"),
            (tuple[int, date], (1, "x"), "$[1]: Invalid RFC3339 encoded date"),
            (set[int], [1, 1], "$[1]: int would be read back as nothing"),
            (dict[str, int], [], "$: Expected `object`, got `array`"),
            (int | str, None, "$: Expected `int | str`, got `null`"),
            (OrderStruct, Line("a"), "$: expected OrderStruct, found Line"),
            (OrderModel, Line("a"), "$: expected OrderModel, found Line"),
        ],
    )
    def test_a_request_that_does_not_hold_what_its_type_says_is_refused_before_it_is_sent(
        self, hint: Any, value: object, words: str
    ) -> None:
        assert encoding_refusal(hint, value) == words

    def test_a_moment_of_an_hour_that_comes_twice_is_written(self) -> None:
        class Summer(tzinfo):
            """Clocks go back at three: PEP 495 has such a moment equal to none of another zone."""

            def utcoffset(self, moment: datetime | None) -> timedelta:
                return timedelta(hours=1 if moment is None or moment.fold else 2)

            def dst(self, _moment: datetime | None) -> timedelta:
                return timedelta()

            def tzname(self, _moment: datetime | None) -> str:
                return "summer"

        moment = datetime(2024, 10, 27, 2, 30, tzinfo=Summer(), fold=1)

        assert JsonMapper(datetime).encode(moment) == b'"2024-10-27T02:30:00+01:00"'

    def test_an_instance_of_a_subclass_of_a_plain_type_is_written_as_that_type(self) -> None:
        class Text(str):
            __slots__ = ()

        class Moment(datetime):
            pass

        class Price(float):
            pass

        values: list[tuple[Any, Any, str]] = [
            (str, Text("tea"), '"tea"'),
            (float, Price(1.5), "1.5"),
            (datetime, Moment(2024, 1, 2, 3, tzinfo=UTC), '"2024-01-02T03:00:00+00:00"'),
            (Mapping[str, int], MappingProxyType({"a": 1}), '{"a":1}'),
        ]
        for hint, value, wire in values:
            body = JsonMapper[Any](hint).encode(value)

            assert body.decode() == wire
            assert decode(hint, body) == value

    def test_what_a_nested_subclass_adds_is_not_lost_in_silence(self) -> None:
        @dataclass(frozen=True)
        class Gift(Line):
            card: str = ""

        order = PlaceOrder("ann", [Line("tea"), Gift("jam", card="x")])

        assert encoding_refusal(PlaceOrder, order) == "$.lines[1][...]: str would be read back as nothing"

    def test_a_set_of_what_has_no_order_is_written_beside_what_is_read_back_as_something_else(self) -> None:
        @dataclass
        class Basket:
            lines: set[Line]
            tags: Sequence[str] = ()
            price: float | None = None

        basket = Basket({Line("tea"), Line("jam")}, ("new",))

        assert decode(Basket, JsonMapper(Basket).encode(basket)) == Basket(basket.lines, ["new"])
        basket.price = float("nan")
        assert encoding_refusal(Basket, basket) == "$.price: expected a finite number, found NaN or an infinity"

    def test_a_set_says_what_it_would_lose_in_whatever_order_it_is_listed(self) -> None:
        @dataclass(frozen=True)
        class Tag:
            id: Any
            cost: Decimal

        @dataclass
        class Basket:
            tags: set[Tag]
            prices: frozenset[Decimal | int] = frozenset()

        prices = frozenset([Decimal("1.5"), *range(40)])
        kept = Basket({Tag(str(number), Decimal(number)) for number in range(40)}, prices)

        assert_round_trip(Basket, kept)
        assert encoding_refusal(Basket, Basket({Tag(UUID(int=1), Decimal(1))}, prices)) == (
            "$.tags[0].id: UUID would be read back as str"
        )

    def test_nan_is_refused_in_a_field_that_no_comparison_looks_at(self) -> None:
        @dataclass
        class Priced:
            sku: str
            price: float | None = field(default=None, compare=False)

        @dataclass
        class Named:
            sku: str
            price: float | None = None

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Named) and other.sku == self.sku

            __hash__ = None  # type: ignore[assignment] # as Python has it for an own __eq__

        for priced in (Priced("tea", float("nan")), Named("tea", float("inf"))):
            assert encoding_refusal(type(priced), priced).startswith("$.price: expected a finite number")
        assert_round_trip(Named, Named("tea"), '{"sku":"tea","price":null}')

    def test_a_subclass_is_not_written_as_what_it_extends(self) -> None:
        @dataclass(frozen=True)
        class Gift(Line):
            card: str = ""

        assert encoding_refusal(Line, Gift("tea")) == "$: expected Line, found Gift"

    def test_an_integer_that_could_not_be_read_back_is_refused(self) -> None:
        assert encoding_refusal(int, 10**5000).startswith("$: int refused it: ValueError: Exceeds the limit")
        assert "Exceeds the limit" in encoding_refusal(dict[int, int], {10**5000: 1})

    def test_what_is_within_itself_is_refused(self) -> None:
        loop: list[Any] = []
        loop.append(loop)

        assert encoding_refusal(list[Any], loop) == "$: nested too deeply"
        with pytest.raises(MappingError, match="nested too deeply"):
            JsonMapper(Line, upcast=lambda _version, _data: {"sku": loop}).decode(message(b"{}", version="0"))


class TestTheProgramsOwnCode:
    def test_what_post_init_refuses_is_a_mapping_error_with_its_words_and_its_cause(self) -> None:
        @dataclass
        class Order:
            quantity: int

            def __post_init__(self) -> None:
                if self.quantity < 1:
                    raise ValueError("quantity must be positive")

        @dataclass
        class Cart:
            orders: list[Order]

        with pytest.raises(MappingError) as raised:
            JsonMapper(Cart).decode(message(b'{"orders":[{"quantity":1},{"quantity":0}]}'))

        assert str(raised.value) == "$.orders[1]: quantity must be positive"
        assert isinstance(raised.value.__cause__, ValueError)

    @pytest.mark.parametrize(
        "decision",
        [
            DontAckAction("later"),
            ExceptionGroup("both", [ValueError("x"), DontAckAction("later")]),
            ConfigurationError("no shop is configured"),
        ],
    )
    def test_a_decision_comes_out_as_it_is(self, decision: Exception) -> None:
        @dataclass
        class Plain:
            a: int

            def __post_init__(self) -> None:
                raise decision

        class Struct(msgspec.Struct):
            a: int

            def __post_init__(self) -> None:
                raise decision

        class Model(pydantic.BaseModel):
            a: int

            @pydantic.field_validator("a")
            @classmethod
            def decide(cls, _value: int) -> int:
                raise decision

        for request_type in (Plain, Struct, Model):
            with pytest.raises(type(decision)) as raised:
                JsonMapper[Any](request_type).decode(message(b'{"a":1}'))
            assert raised.value is decision

    def test_any_other_error_is_a_mapping_error_whichever_library_raises_it(self) -> None:
        class Struct(msgspec.Struct):
            a: int

            def __post_init__(self) -> None:
                if self.a == 1:
                    raise KeyError("x")
                raise ValueError("never")

        class Model(pydantic.BaseModel):
            a: int

            @pydantic.field_validator("a")
            @classmethod
            def check(cls, value: int) -> int:
                if value == 1:
                    raise KeyError("x")
                raise ValueError("never")

        for request_type in (Struct, Model):
            assert refusal(request_type, '{"a":1}') == f"$: {request_type.__name__} refused it: KeyError: 'x'"
            assert refusal(request_type, '{"a":2}').endswith("never")

    def test_what_post_init_sets_need_not_be_what_json_can_hold(self) -> None:
        @dataclass
        class Order:
            quantity: int
            lock: Any = field(default=None, init=False)

            def __post_init__(self) -> None:
                self.lock = object()

        assert decode(Order, '{"quantity":1}').quantity == 1
        assert refusal(Order, '{"quantity":1,"quantity":1}') == "$: an object has one key twice"
        assert encoding_refusal(Order, Order(1)) == "$: object has no JSON form"

    def test_a_group_without_a_decision_is_a_mapping_error(self) -> None:
        @dataclass
        class Order:
            a: int

            def __post_init__(self) -> None:
                raise ExceptionGroup("both", [ValueError("x")])

        assert "Order refused it" in refusal(Order, '{"a":1}')


class TestLibraries:
    def test_a_struct_is_msgspecs_and_a_model_pydantics(self) -> None:
        for request in (OrderStruct("tea", 2, 1.5), OrderModel(sku="tea", quantity=2, price=1.5)):
            mapper = JsonMapper(type(request))

            body = mapper.encode(request)

            assert body == b'{"sku":"tea","quantity":2,"price":1.5}'
            assert mapper.decode(message(body)) == request
            assert mapper.decode(message(b' {"sku": "tea", "x": 1, "price": 1.5, "quantity": 2}')) == request

    def test_their_errors_name_the_path_but_not_what_was_found_there(self) -> None:
        class Tagged(msgspec.Struct, tag="t", forbid_unknown_fields=True):
            colours: dict[str, Colour] = {}

        class Cat(pydantic.BaseModel):
            kind: Literal["cat"]

        class Dog(pydantic.BaseModel):
            kind: Literal["dog"]

        class Home(pydantic.BaseModel):
            pet: Cat | Dog = pydantic.Field(discriminator="kind", default=Cat(kind="cat"))
            ages: dict[str, list[int]] = pydantic.Field(default={}, alias="theAges")

        assert refusal(OrderStruct, "{}") == "$: Object missing required field `sku`"
        assert refusal(OrderStruct, '{"sku":5}') == "$.sku: Expected `str`, got `int`"
        assert refusal(Tagged, '{"type":"private"}') == "$.type: Invalid value"
        assert refusal(Tagged, '{"type":"t","private":1}') == "$: Object contains unknown field"
        assert (
            refusal(Tagged, '{"type":"t","colours":{"private":"x - at `$.y`"}}') == "$.colours[...]: Invalid enum value"
        )
        assert refusal(OrderModel, "{}") == "$.sku: Field required"
        assert refusal(Home, '{"theAges":{"private":[1,"x"]}}').startswith("$.theAges[...][1]: Input should be")
        assert refusal(Home, '{"pet":{"kind":"private"}}').startswith("$.pet: The input's tag found")

    def test_nan_is_refused_in_their_types_too(self) -> None:
        assert encoding_refusal(OrderStruct, OrderStruct("a", price=float("nan"))).startswith(
            "$.price: expected a finite"
        )
        assert "not finite" in encoding_refusal(OrderModel, OrderModel(sku="a", price=float("inf")))
        assert JsonMapper(OrderStruct).encode(OrderStruct("null")) == b'{"sku":"null","quantity":1,"price":null}'
        assert JsonMapper(OrderModel).encode(OrderModel(sku="a")) == b'{"sku":"a","quantity":1,"price":null}'

    def test_what_their_instances_should_not_hold_is_refused_before_it_is_sent(self) -> None:
        class Loose(pydantic.BaseModel):
            anything: Any = None

        assert encoding_refusal(OrderStruct, OrderStruct(5)) == "$.sku: Expected `str`, got `int`"  # type: ignore[arg-type] # the point
        assert encoding_refusal(OrderStruct, OrderStruct("\ud800")) == "$: a string holds half of a surrogate pair"
        wrong = OrderModel.model_construct(sku=5, quantity=1)
        assert encoding_refusal(OrderModel, wrong).endswith(" does not hold the str that its type says")
        assert "pydantic refused it" in encoding_refusal(Loose, Loose(anything=object()))

    def test_a_model_travels_by_its_aliases_and_without_what_it_computes(self) -> None:
        class Invoice(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(extra="forbid")
            net: int = pydantic.Field(alias="netAmount")

            @pydantic.computed_field  # type: ignore[prop-decorator] # as pydantic documents it
            @property
            def gross(self) -> int:
                return self.net * 2

        assert_round_trip(Invoice, Invoice(netAmount=5), '{"netAmount":5}')

    def test_a_dataclass_of_pydantic_is_pydantics(self) -> None:
        @pydantic.dataclasses.dataclass
        class Coerced:
            a: int

        assert decode(Coerced, '{"a":"5"}') == Coerced(5)

    def test_generic_types_of_theirs_are_filled_in(self) -> None:
        class Box(msgspec.Struct, Generic[T]):
            item: T

        class Crate(pydantic.BaseModel, Generic[T]):
            item: T

        assert decode(Box[date], '{"item":"2024-01-01"}') == Box(date(2024, 1, 1))
        assert decode(Crate[date], '{"item":"2024-01-01"}') == Crate[date](item=date(2024, 1, 1))

    def test_their_types_may_stand_in_a_dataclass(self) -> None:
        class Pair(msgspec.Struct, array_like=True):
            a: int
            b: int

        class Numbers(pydantic.RootModel[list[int]]):
            pass

        @dataclass
        class Order:
            lines: list[OrderStruct]
            model: OrderModel | None
            pair: Pair | None
            numbers: Numbers

        order = Order([OrderStruct("a"), OrderStruct("b")], OrderModel(sku="c"), Pair(1, 2), Numbers([1]))

        assert JsonMapper(Order).decode(message(JsonMapper(Order).encode(order))) == order
        with pytest.raises(MappingError, match=r"^\$\.lines\[1\]\.sku: Expected"):
            JsonMapper(Order).decode(
                message(b'{"lines":[{"sku":"a"},{"sku":5}],"model":null,"pair":null,"numbers":[]}')
            )
        with pytest.raises(MappingError, match=r"^\$\.model\.sku: "):
            JsonMapper(Order).decode(message(b'{"lines":[],"model":{"sku":5},"pair":null,"numbers":[]}'))

    def test_a_type_of_theirs_that_they_cannot_map_is_a_configuration_error(self) -> None:
        class Clash(msgspec.Struct):
            both: list[int] | set[int]

        class Unknown(pydantic.BaseModel):
            there: "Nowhere"  # type: ignore[name-defined] # noqa: F821 - the point

        class Opaque(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
            thing: Mapper[Any]

        assert "Clash cannot be mapped" in unmappable(Clash)
        assert "Unknown cannot be mapped" in unmappable(Unknown)
        assert "Cannot check" in refusal(Opaque, '{"thing":1}')  # for which there is no schema to name fields from

    def test_a_pydantic_that_is_too_old_is_a_configuration_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pydantic, "VERSION", "2.6.4")

        assert "older than 2.7" in unmappable(OrderModel)

    def test_a_model_that_was_waiting_for_a_type_is_completed(self) -> None:
        class Waiting(pydantic.BaseModel):
            later: "Later"

        class Later(pydantic.BaseModel):
            a: int

        assert not Waiting.__pydantic_complete__
        Waiting.model_rebuild()
        assert decode(Waiting, '{"later":{"a":1}}') == Waiting(later=Later(a=1))

    def test_a_dataclass_of_pydantic_cannot_stand_in_one_of_ours_which_would_skip_its_checks(self) -> None:
        @pydantic.dataclasses.dataclass
        class Coerced:
            a: int

        @dataclass
        class Order:
            coerced: Coerced

        assert "Order.coerced cannot be mapped: " in unmappable(Order)
        assert "only its models can stand here" in unmappable(Order)

    def test_an_error_of_a_model_in_a_dataclass_has_the_path_from_the_top_and_no_value(self) -> None:
        class Grocer(pydantic.BaseModel):
            lines: dict[str, OrderModel]
            price: float | None = None

        @dataclass
        class Order:
            shops: list[Grocer]

        wrong = Grocer(lines={"private": OrderModel.model_construct(sku=5, quantity=1)})

        assert refusal(Order, '{"shops":[{"lines":{"private":{"sku":["private"]}}}]}') == (
            "$.shops[0].lines[...].sku: Input should be a valid string"
        )
        assert encoding_refusal(Order, Order([wrong])).endswith(" does not hold the str that its type says")
        assert "not finite" in encoding_refusal(Order, Order([Grocer(lines={}, price=float("nan"))]))

    def test_constraints_of_msgspec_hold_in_a_dataclass_too(self) -> None:
        @dataclass
        class Constrained:
            a: Annotated[int, msgspec.Meta(gt=0)]

        assert_round_trip(Constrained, Constrained(1))
        assert refusal(Constrained, '{"a":0}') == "$.a: Expected `int` >= 1"
        assert encoding_refusal(Constrained, Constrained(0)) == "$.a: Expected `int` >= 1"

    def test_pydantic_is_not_imported_with_the_mapping(self) -> None:
        program = (
            "import sys, pump.mapping.mapper as m; from dataclasses import make_dataclass; "
            "m.JsonMapper(make_dataclass('X', [('a', int)])); assert 'pydantic' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_without_pydantic_a_dataclass_is_mapped_all_the_same(self) -> None:
        program = (
            "import sys; sys.modules['pydantic'] = None\n"
            "from dataclasses import make_dataclass\n"
            "from pump.mapping.mapper import JsonMapper\n"
            "X = make_dataclass('X', [('a', int)])\n"
            "assert JsonMapper(X).encode(X(1)) == b'{\"a\":1}'"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


class TestWhatCannotBeMapped:
    def test_the_error_names_the_innermost_field_and_says_what_to_do(self) -> None:
        @dataclass
        class Inner:
            callback: dict[str, type]

        @dataclass
        class Outer:
            inner: list[Inner]

        text = unmappable(Outer)

        assert "Inner.callback cannot be mapped: type is not a dataclass" in text
        assert "pass a Mapper" in text

    def test_a_plain_class_is_told_to_be_a_dataclass(self) -> None:
        class Plain(Command):
            pass

        assert "is not a dataclass" in unmappable(Plain)
        assert "Make " in unmappable(Plain)

    @pytest.mark.parametrize(
        ("hint", "words"),
        [
            (str | date, "may not contain more than one str-like type"),
            (Line | PlaceOrder, "may not contain more than one dataclass"),
            (list[int] | tuple[str, ...], "may not contain more than one array-like"),
            (Literal["a"] | Colour, "may not contain more than one str-like type"),
            (Line | OrderModel, "may not contain any additional types"),
            (dict[float, int], "its keys are not strings"),
            (dict[bool, int], "its keys are not strings"),
            (dict[Line, int], "its keys are not strings"),
            (dict[int | str, int], "its keys are not strings"),
            (Literal[b"x"], "only contain None/booleans/integers/strings"),
            (Literal[Colour.RED], "only contain None/booleans/integers/strings"),
            (Enum("Empty", []), "at least one item"),
            (Enum("Odd", {"A": 1.5}), "all str or all int"),
            (complex, "complex is not a dataclass"),
            (Final, "Type 'typing.Final' is not supported"),
            ([int], "Type '[<class 'int'>]' is not supported"),
            ("int", "Type ''int'' is not supported"),
        ],
    )
    def test_a_form_that_could_not_be_read_back_is_refused_at_once(self, hint: Any, words: str) -> None:
        assert words in unmappable(hint)

    def test_a_name_that_cannot_be_resolved_is_named_with_its_class(self) -> None:
        @dataclass
        class Order:
            line: "Missing"  # type: ignore[name-defined] # noqa: F821 - the point

        assert "Order cannot be mapped: name 'Missing' is not defined" in unmappable(Order)

    def test_a_class_that_is_made_of_more_than_its_fields_is_refused(self) -> None:
        @dataclass
        class Initial:
            a: int
            b: dataclasses.InitVar[int]

        class Undecorated(Line):
            gift: bool = False

        assert "`InitVar` fields are not supported" in unmappable(Initial)
        assert "extends a dataclass but is not decorated" in unmappable(Undecorated)

    def test_a_class_that_only_renames_a_dataclass_is_not(self) -> None:
        class Renamed(Line):
            limit: ClassVar[int] = 5

        assert_round_trip(Renamed, Renamed("tea"))

    def test_a_generic_typed_dict_may_not_be_extended(self) -> None:
        class Page(TypedDict, Generic[T]):
            item: T

        class DatePage(Page[date]):
            number: int

        assert_round_trip(Page[date], {"item": date(2024, 1, 1)})
        assert "extends a generic TypedDict" in unmappable(DatePage)

    def test_fields_come_back_as_they_were_whatever_the_constructor_does(self) -> None:
        @dataclass
        class Doubling:
            a: int

            def __init__(self, a: int, times: int) -> None:
                self.a = a * times

        @dataclass
        class Watched:
            a: int

            def __setattr__(self, name: str, value: object) -> None:
                object.__setattr__(self, name, value * 2 if isinstance(value, int) else value)

        assert_round_trip(Doubling, Doubling(1, 2), '{"a":2}')
        assert_round_trip(Watched, Watched(1), '{"a":2}')

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with Python 3.12")
    def test_a_type_alias_is_what_it_stands_for_but_may_not_refer_to_itself(self) -> None:
        names: dict[str, Any] = {}
        exec(  # noqa: S102 - older Pythons cannot read it
            "type Tree = list[Tree] | int\ntype Pair[A] = tuple[A, A]\n",
            names,
        )

        assert "Tree cannot be mapped: maximum recursion depth" in unmappable(names["Tree"])
        assert_round_trip(names["Pair"][date], (date(2024, 1, 1), date(2024, 1, 2)))

    def test_a_type_variable_stands_for_its_bound(self) -> None:
        assert_round_trip(B, 5)


class TestVersions:
    @dataclass
    class Order:
        wire_version: ClassVar[str] = "2"
        sku: str
        quantity: int

    @staticmethod
    def renamed(version: str, data: dict[str, object]) -> dict[str, object]:
        assert version in ("", "1")
        return {"quantity": data.pop("count"), **data}

    def test_another_version_is_shown_to_the_upcaster_and_its_own_is_not(self) -> None:
        mapper = JsonMapper(self.Order, upcast=self.renamed)

        assert mapper.version == "2"
        assert mapper.decode(message(b'{"sku":"a","count":3}', version="1")) == self.Order("a", 3)
        assert mapper.decode(message(b'{"sku":"a","count":3}')) == self.Order("a", 3)
        assert mapper.decode(message(b'{"sku":"a","quantity":3}', version="2")) == self.Order("a", 3)

    def test_without_an_upcaster_another_version_is_read_as_it_stands(self) -> None:
        assert JsonMapper(self.Order).decode(message(b'{"sku":"a","quantity":3}', version="1")) == self.Order("a", 3)

    def test_a_struct_and_a_model_are_upcast_as_well(self) -> None:
        def upcast(_version: str, data: dict[str, object]) -> dict[str, object]:
            return {"sku": data["code"]}

        for request_type, request in ((OrderStruct, OrderStruct("a")), (OrderModel, OrderModel(sku="a"))):
            mapper = JsonMapper[Any](request_type, upcast=upcast)

            assert mapper.decode(message(b'{"code":"a"}', version="0")) == request

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"[1]", "$: expected an object of another version"),
            (b"{", "$: not JSON"),
            (b"{}", "$: upcast refused it: KeyError: 'count'"),
            (b'{"count":"x","sku":"a"}', "$.quantity: Expected `int`, got `str`"),
        ],
    )
    def test_what_the_upcaster_cannot_do_is_a_mapping_error(self, body: bytes, words: str) -> None:
        with pytest.raises(MappingError) as raised:
            JsonMapper(self.Order, upcast=self.renamed).decode(message(body, version="1"))

        assert str(raised.value).startswith(words)

    def test_an_upcaster_may_decide_but_must_give_what_json_can_say(self) -> None:
        def decide(_version: str, _data: dict[str, object]) -> dict[str, object]:
            raise InvalidMessageAction("too old")

        def odd(_version: str, _data: dict[str, object]) -> dict[str, object]:
            return {"sku": date(2024, 1, 1)}

        with pytest.raises(MessageAction, match="too old"):
            JsonMapper(self.Order, upcast=decide).decode(message(b"{}"))
        with pytest.raises(MappingError, match="upcast refused it: TypeError: Object of type date"):
            JsonMapper(self.Order, upcast=odd).decode(message(b"{}"))


class TestMappersOfOnesOwn:
    def test_two_methods_make_a_mapper(self) -> None:
        class Csv(Mapper[Line]):
            content_type = "text/csv"

            def encode(self, request: Line) -> bytes:
                return f"{request.sku},{request.quantity}".encode()

            def decode(self, message: Message) -> Line:
                sku, quantity = message.body.decode().split(",")
                return Line(sku, int(quantity))

        mapper = Csv()

        assert mapper.decode(message(mapper.encode(Line("tea", 2)))) == Line("tea", 2)
        assert (mapper.content_type, mapper.version) == ("text/csv", "")

    def test_a_mapper_that_lacks_one_cannot_be_made(self) -> None:
        class Half(Mapper[Line]):
            def encode(self, request: Line) -> bytes:
                return json.dumps(dataclasses.asdict(request)).encode()

        with pytest.raises(TypeError, match="decode"):
            Half()  # type: ignore[abstract] # the point


def test_a_pydantic_that_another_thread_is_just_importing_has_no_types_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", ModuleType("pydantic"))

    assert not is_pydantic(Line)
