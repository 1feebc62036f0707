"""Whatever the body is, it becomes a request of the type or a MappingError; whatever a request holds comes back."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from types import GenericAlias
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pydantic
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pump.mapping.errors import MappingError
from pump.mapping.mapper import JsonMapper
from pump.message import Header, Message

fuzzed = settings(max_examples=100, deadline=None)

Values = st.SearchStrategy[Any]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass
class Everything:
    name: str
    count: int
    price: float
    paid: bool
    when: datetime
    day: date
    at: time
    lasting: timedelta
    id: UUID
    data: bytes
    colour: Colour
    size: Size
    word: Literal["a", 1]
    either: int | str | None
    anything: Any
    pair: tuple[int, str]
    row: tuple[float, ...]
    points: list[Point]
    by_name: dict[str, Point]
    by_number: dict[int, str]
    tags: set[str]
    parent: "Everything | None" = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Exact:
    amount: Decimal
    by_id: dict[UUID, Decimal]
    checked: int = 0

    def __post_init__(self) -> None:
        if self.checked > 1:
            raise ZeroDivisionError("checked too often")


class Struct(msgspec.Struct):
    name: str
    count: int
    price: float | None = None
    when: datetime | None = None
    points: list[Point] = []
    colour: Colour = Colour.RED
    anything: Any = None


class Model(pydantic.BaseModel):
    name: str
    count: int
    price: float | None = None
    when: datetime | None = None
    points: list[Point] = []
    colour: Colour = Colour.RED
    anything: Any = None


def message(body: bytes) -> Message:
    return Message(Header("1"), body)


def outcome(mapper: JsonMapper[Any], body: bytes) -> Any:
    """The request or the error's words; nothing else may come out."""
    try:
        return mapper.decode(message(body))
    except MappingError as error:
        return str(error)


# --- types and their values

offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
zones = st.none() | st.just(UTC) | offsets
numbers = st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

SCALAR_VALUES: dict[Any, Values] = {
    str: st.text(),
    int: st.integers(),
    float: numbers,
    bool: st.booleans(),
    None: st.none(),
    bytes: st.binary(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    date: st.dates(),
    time: st.times(timezones=zones).map(lambda moment: moment.replace(fold=0)),
    datetime: st.datetimes(timezones=zones).map(lambda moment: moment.replace(fold=0)),
    timedelta: st.timedeltas(),
    Any: trees,
    Colour: st.sampled_from(Colour),
    Size: st.sampled_from(Size),
    Literal["a", "b", 1]: st.sampled_from(["a", "b", 1]),
    Point: st.builds(Point),
    int | float: st.integers() | numbers,
    bool | str | list[int]: st.booleans() | st.text() | st.lists(st.integers()),
}
KEYS: list[Any] = [str, int, UUID, date, Colour, Size, timedelta, bytes]
HASHABLE: list[Any] = [str, int, bool, bytes, UUID, date, Colour, Decimal, Point]


class Typed(NamedTuple):
    """A type, and what its values may be."""

    hint: Any
    values: Values


def scalar(hint: Any) -> Typed:
    return Typed(hint, SCALAR_VALUES[hint])


def composed(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    keyed = st.tuples(st.sampled_from(KEYS).map(scalar), inner)
    element = st.sampled_from(HASHABLE).map(scalar)
    return st.one_of(
        inner.map(lambda item: Typed(of(list, item.hint), st.lists(item.values, max_size=3))),
        inner.map(lambda item: Typed(of(tuple, item.hint, ...), st.lists(item.values, max_size=3).map(tuple))),
        inner.map(lambda item: Typed(item.hint | None if item.hint else None, item.values | st.none())),
        st.lists(inner, max_size=3).map(
            lambda items: Typed(of(tuple, *(item.hint for item in items)), st.tuples(*(item.values for item in items)))
        ),
        keyed.map(
            lambda pair: Typed(
                of(dict, pair[0].hint, pair[1].hint), st.dictionaries(pair[0].values, pair[1].values, max_size=3)
            )
        ),
        element.map(lambda item: Typed(of(set, item.hint), st.sets(item.values, max_size=3))),
        element.map(lambda item: Typed(of(frozenset, item.hint), st.frozensets(item.values, max_size=3))),
        records(inner),
    )


def of(generic: type, *args: Any) -> Any:
    return GenericAlias(generic, args)


def constant(value: Any) -> Callable[[], Any]:
    return lambda: value


@st.composite
def records(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    """A dataclass of some fields, with some of the options."""
    members = draw(st.lists(inner, min_size=1, max_size=5))
    fields: list[Any] = []
    for index, member in enumerate(members):
        default: Any = dataclasses.field()
        if draw(st.booleans()):
            value = draw(member.values)
            default = dataclasses.field(default_factory=constant(value))
        fields.append((f"f{index}", member.hint, default))
    made = dataclasses.make_dataclass(
        "Made", fields, kw_only=True, frozen=draw(st.booleans()), slots=draw(st.booleans()), namespace={}
    )
    values = st.fixed_dictionaries({f"f{index}": member.values for index, member in enumerate(members)})
    return Typed(made, values.map(lambda given: made(**given)))


typed = st.recursive(st.sampled_from(list(SCALAR_VALUES)).map(scalar), composed, max_leaves=6)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    chosen = draw(typed)
    return chosen.hint, draw(chosen.values)


def assert_same(one: Any, other: Any) -> None:
    """Equal, and of the same types all the way down."""
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif dataclasses.is_dataclass(one):
        for member in dataclasses.fields(one):
            assert_same(getattr(one, member.name), getattr(other, member.name))
    else:
        assert one == other
        assert isinstance(one, set | frozenset) or repr(one) == repr(other)


# --- bodies


def replaced(tree: Any, draw: st.DrawFn) -> Any:
    """The tree with one of its nodes replaced by another."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(tree)))
        return {**tree, key: replaced(tree[key], draw)}
    if isinstance(tree, list) and tree and draw(st.integers(0, 4)):
        index = draw(st.integers(0, len(tree) - 1))
        return [*tree[:index], replaced(tree[index], draw), *tree[index + 1 :]]
    if isinstance(tree, str) and draw(st.booleans()):
        return "".join(mutated(list(tree), st.sampled_from("0123456789-:.TZPDHMS+=abA/ é"), draw))
    return draw(trees)


def mutated(items: list[Any], others: Values, draw: st.DrawFn) -> list[Any]:
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(items)))
        end = min(len(items), start + draw(st.integers(0, 4)))
        again = draw(st.sampled_from(["", "once more"]))
        items = items[:start] + (items[start:end] * 2 if again else draw(st.lists(others, max_size=3))) + items[end:]
    return items


@st.composite
def bodies(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Noise, JSON of any kind, or a valid body with something wrong in its bytes or in its tree, or nothing."""
    kind = draw(st.sampled_from(["noise", "tree", "bytes", "node", "spaced", "valid"]))
    if kind == "noise":
        return draw(st.binary(max_size=40))
    if kind == "tree":
        return json.dumps(draw(trees), ensure_ascii=draw(st.booleans())).encode()
    body = draw(valid)
    if kind == "bytes":
        tokens = st.sampled_from(list(b'"{}[]:,0e-.\\ud\xff \x00n') + list(range(256)))
        return bytes(mutated(list(body), tokens, draw))
    if kind == "node":
        return json.dumps(replaced(json.loads(body), draw), ensure_ascii=draw(st.booleans())).encode()
    return json.dumps(json.loads(body), indent=1).encode() if kind == "spaced" else body


def everything(depth: int) -> Values:
    parent = everything(depth - 1) | st.none() if depth else st.none()
    return st.builds(
        Everything,
        price=numbers,
        when=SCALAR_VALUES[datetime],
        at=SCALAR_VALUES[time],
        anything=trees,
        row=st.lists(numbers, max_size=2).map(tuple),
        points=st.lists(st.builds(Point, y=numbers), max_size=2),
        by_name=st.dictionaries(st.text(max_size=3), st.builds(Point, y=numbers), max_size=2),
        parent=parent,
    )


EVERYTHING = everything(1)
EXACT = st.builds(
    Exact,
    amount=SCALAR_VALUES[Decimal],
    by_id=st.dictionaries(st.uuids(), SCALAR_VALUES[Decimal], max_size=2),
    checked=st.just(0),
)
LOOSE = {
    "name": st.text(),
    "count": st.integers(-(2**63), 2**63),
    "price": numbers | st.none(),
    "when": st.datetimes() | st.none(),
    "points": st.lists(st.builds(Point, y=numbers), max_size=2),
    "colour": st.sampled_from(Colour),
    "anything": trees,
}


def written(mapper: JsonMapper[Any], values: Values) -> st.SearchStrategy[bytes]:
    return values.map(mapper.encode)


EVERYTHING_MAPPER, EXACT_MAPPER = JsonMapper(Everything), JsonMapper(Exact)
STRUCT_MAPPER, MODEL_MAPPER = JsonMapper(Struct), JsonMapper(Model)

EVERYTHING_BODIES = bodies(written(EVERYTHING_MAPPER, EVERYTHING))
EXACT_BODIES = bodies(written(EXACT_MAPPER, EXACT))
STRUCT_BODIES = bodies(written(STRUCT_MAPPER, st.builds(Struct, **LOOSE)))
MODEL_BODIES = bodies(written(MODEL_MAPPER, st.builds(Model, **LOOSE)))


class TestRoundTrips:
    @fuzzed
    @given(typed_values())
    def test_whatever_a_request_holds_comes_back_as_it_was(self, drawn: tuple[Any, Any]) -> None:
        hint, value = drawn

        mapper = JsonMapper(hint)

        assert_same(mapper.decode(message(mapper.encode(value))), value)

    @fuzzed
    @given(typed_values())
    def test_what_a_request_holds_comes_back_from_a_body_that_others_have_written(self, drawn: tuple[Any, Any]) -> None:
        hint, value = drawn
        mapper = JsonMapper(hint)
        tree = json.loads(mapper.encode(value))

        assert_same(mapper.decode(message(json.dumps(tree, indent=1).encode())), value)


class TestAnyBody:
    @fuzzed
    @given(EVERYTHING_BODIES)
    def test_is_a_request_or_a_mapping_error(self, body: bytes) -> None:
        assert isinstance(outcome(EVERYTHING_MAPPER, body), Everything | str)

    @fuzzed
    @given(EXACT_BODIES)
    def test_is_a_request_or_a_mapping_error_for_a_class_with_code_of_its_own(self, body: bytes) -> None:
        assert isinstance(outcome(EXACT_MAPPER, body), Exact | str)

    @fuzzed
    @given(STRUCT_BODIES)
    def test_is_a_request_or_a_mapping_error_for_a_struct(self, body: bytes) -> None:
        assert isinstance(outcome(STRUCT_MAPPER, body), Struct | str)

    @fuzzed
    @given(MODEL_BODIES)
    def test_is_a_request_or_a_mapping_error_for_a_model(self, body: bytes) -> None:
        assert isinstance(outcome(MODEL_MAPPER, body), Model | str)

    @fuzzed
    @given(typed, st.data())
    def test_is_a_request_or_a_mapping_error_for_every_form_of_type(self, chosen: Typed, data: st.DataObject) -> None:
        mapper = JsonMapper(chosen.hint)
        body = data.draw(bodies(written(mapper, chosen.values)))

        request = outcome(mapper, body)

        if not isinstance(request, str):
            assert_same(mapper.decode(message(mapper.encode(request))), request)

    @fuzzed
    @given(EVERYTHING_BODIES | EXACT_BODIES | MODEL_BODIES)
    def test_that_one_library_reads_as_json_is_json_to_the_others_too(self, body: bytes) -> None:
        sound = [not str(outcome(JsonMapper(kind), body)).startswith("$: not JSON") for kind in (Any, Struct, Model)]

        assert len(set(sound)) == 1

    @fuzzed
    @given(EVERYTHING)
    def test_that_says_a_value_is_private_keeps_it_so(self, value: Everything) -> None:
        tree = json.loads(EVERYTHING_MAPPER.encode(value))
        assume(not any("private" in key for key in tree))

        for name in tree.keys() - {"anything", "notes", "tags"}:
            wrong: Callable[[str], Any] = {"name": lambda text: [text], "either": lambda text: [text]}.get(name, str)
            told = outcome(EVERYTHING_MAPPER, json.dumps({**tree, name: wrong("private")}).encode())

            assert told.startswith((f"$.{name}: Expected", f"$.{name}: Invalid"))
            assert "private" not in told
