"""How the values of one type stand in a JSON tree. Nothing here knows what an annotation is.

Strict: a node is converted only to what JSON itself has no word for.
"""

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from pump.mapping import json_text
from pump.mapping.json_tree import MISSING, WORDS, Mismatch, decides, dump, expected, found, refused

Convert: TypeAlias = Callable[[Any], object]

KINDS: Final = frozenset(WORDS)
"""The types that `json` gives the nodes of a tree."""


class _Never:
    """The type of no value."""


class Unfit(Exception):  # noqa: N818 - the name says what is wrong
    """A type has no JSON form."""

    where: str = ""
    """The field that asks for one."""


class Form(NamedTuple):
    """How the values of one type stand in a JSON tree. Both ways raise Mismatch, or what the program itself decides."""

    read: Convert
    write: Convert
    kinds: frozenset[type]
    """The kinds of node that it is written as."""
    classes: tuple[type, ...]
    """What its values are instances of."""
    also: frozenset[type] = frozenset()
    """The kinds that it is read from too, unless another member of its union is written so."""
    as_read: type = _Never
    """A node of exactly this type is the value."""
    as_written: type = _Never
    """A value of exactly this type is its node."""


# --- single values


def _exact(kind: type) -> Form:
    """A type that JSON has itself. A subclass is written as what it extends, but True is no integer."""

    def read(node: object) -> object:
        if type(node) is kind:
            return node
        raise expected(WORDS[kind], node)

    def write(value: object) -> object:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise expected(WORDS[kind], value)

    return Form(read, write, frozenset({kind}), (kind,), as_read=kind, as_written=kind)


def _read_float(node: object) -> float:
    if type(node) is not float and type(node) is not int:
        raise expected("a number", node)
    try:
        return float(node)
    except OverflowError:
        raise Mismatch("expected a number, found one that is too large") from None


def _write_float(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return _read_float(int(value))
    if not isinstance(value, float):
        raise expected("a number", value)
    if value - value != 0:
        raise Mismatch("expected a finite number, found NaN or an infinity")
    return value


def _write_any(value: object) -> object:
    """A tree as it is, since nothing that JSON cannot say would come back as it was."""
    if isinstance(value, float):
        return _write_float(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return _each(value, _Never, _write_any)
    if isinstance(value, dict):
        return _members(value, STRING.write, _Never, _write_any)
    raise expected("what JSON can say", value)


def _read_decimal(node: str | float) -> Decimal:
    return json_text.read_decimal(node) if isinstance(node, str) else json_text.decimal_of(node)


def _text(
    words: str, cls: type, read_text: Convert, write_text: Convert, *, also: frozenset[type] = frozenset()
) -> Form:
    """A type that JSON has no word for: a string, or a node of a kind in `also`."""

    def read(node: object) -> object:
        if type(node) is not str and type(node) not in also:
            raise expected(words, node)
        try:
            return read_text(node)
        except (ValueError, ArithmeticError):
            raise Mismatch(f"expected {words}, found {found(node)} that is not") from None

    def write(value: object) -> object:
        if not isinstance(value, cls) or (cls is date and isinstance(value, datetime)):
            raise expected(words, value)
        try:
            return write_text(value)
        except ValueError as error:
            raise Mismatch(f"expected {words}, found {error}") from None

    return Form(read, write, frozenset({str}), (cls,), also=also)


STRING: Final = _exact(str)
ANY: Final = Form(lambda node: node, _write_any, KINDS, (object,))
NULL: Final = _exact(types.NoneType)
SCALARS: Final[Mapping[object, Form]] = {
    Any: ANY,
    object: ANY,
    None: NULL,
    types.NoneType: NULL,
    str: STRING,
    int: _exact(int),
    bool: _exact(bool),
    float: Form(_read_float, _write_float, frozenset({float}), (float,), also=frozenset({int}), as_read=float),
    datetime: _text("an RFC 3339 moment", datetime, json_text.read_datetime, json_text.write_moment),
    time: _text("an RFC 3339 time", time, json_text.read_time, json_text.write_moment),
    date: _text("an RFC 3339 date", date, json_text.read_date, json_text.write_date),
    timedelta: _text("an ISO 8601 duration", timedelta, json_text.read_duration, json_text.write_duration),
    UUID: _text("a UUID", UUID, json_text.read_uuid, str),
    Decimal: _text("a decimal", Decimal, _read_decimal, json_text.write_decimal, also=frozenset({int, float})),
    bytes: _text("base64", bytes, json_text.read_bytes, json_text.write_bytes),
}
"""The forms of types that are what they are, whatever holds them."""


def by_value(values: Collection[object], other: Convert | None = None) -> Form:
    """A closed set of literals or enum members, each written as its value. `other` makes members of other values."""
    wires = [value.value if isinstance(value, Enum) else value for value in values]
    kinds = frozenset(map(type, wires))
    if not kinds or not kinds <= {str, int, bool, types.NoneType}:
        raise Unfit("only strings, integers, booleans and None can be told apart by value")
    members = {(type(wire), wire): value for value, wire in zip(values, wires, strict=True)}
    classes = tuple(set(map(type, values)))
    words = f"one of {', '.join(map(repr, wires))}"

    def read(node: object) -> object:
        if type(node) not in kinds:
            raise expected(words, node)
        member = members.get((type(node), node), MISSING)
        if member is MISSING and other is not None:
            member = other(node)
        if member is MISSING:
            raise Mismatch(f"expected {words}, found another")
        return member

    def write(value: object) -> object:
        if type(value) not in classes:
            raise expected(words, value)
        wire = value.value if isinstance(value, Enum) else value
        if other is None and (type(wire), wire) not in members:
            raise Mismatch(f"expected {words}, found another")
        return wire

    return Form(read, write, kinds, classes)


def enum(cls: type[Enum]) -> Form:
    """The members of an enum, each written as its value; what the enum makes of other values is a member too."""

    def other(node: object) -> object:
        try:
            return cls(node)
        except Exception as error:
            if decides(error):
                raise
            raise Mismatch(f"expected one of {cls.__name__}, found another") from None

    return by_value(list(cls), other)


# --- many values


def _each(values: Iterable[object], exact: type, convert: Convert) -> list[object]:
    converted: list[object] = []
    for index, value in enumerate(values):
        if type(value) is exact:
            converted.append(value)
            continue
        try:
            converted.append(convert(value))
        except Mismatch as mismatch:
            mismatch.under(f"[{index}]")
            raise
    return converted


def _members(values: Mapping[Any, object], key: Convert, exact: type, convert: Convert) -> dict[object, object]:
    converted: dict[object, object] = {}
    for name, value in values.items():
        try:
            converted[key(name)] = value if type(value) is exact else convert(value)
        except Mismatch as mismatch:
            mismatch.under("[...]")  # a key may be as private as a value
            raise
    if len(converted) != len(values):
        raise Mismatch("two keys of an object stand for the same")
    return converted


def collection(item: Form, make: type[Any], *accepted: type[Any]) -> Form:
    """Values of one type: an array, made into a `make`. Written from what it makes, or from what is accepted too."""
    classes = (make, *accepted)

    def read(node: object) -> object:
        if type(node) is not list:
            raise expected("an array", node)
        values = _each(node, item.as_read, item.read)
        try:
            return values if make is list else make(values)
        except TypeError:
            raise Mismatch(f"expected values that a {make.__name__} can hold") from None

    def write(value: object) -> object:
        if not isinstance(value, classes):
            raise expected(f"a {make.__name__}", value)
        return _each(value, item.as_written, item.write)

    return Form(read, write, frozenset({list}), classes)


def _applied(step: tuple[object, Convert]) -> object:
    value, convert = step
    return convert(value)


def fixed(items: Sequence[Form]) -> Form:
    """A tuple of a given length: an array of that length."""
    words = f"an array of {len(items)}"

    def each(values: Sequence[object], converts: Sequence[Convert]) -> list[object]:
        if len(values) != len(items):
            raise Mismatch(f"expected {words}, found one of {len(values)}")
        return _each(zip(values, converts, strict=True), _Never, _applied)

    def read(node: object) -> object:
        if type(node) is not list:
            raise expected(words, node)
        return tuple(each(node, reads))

    def write(value: object) -> object:
        if not isinstance(value, tuple):
            raise expected("a tuple", value)
        return each(value, writes)

    reads, writes = [form.read for form in items], [form.write for form in items]
    return Form(read, write, frozenset({list}), (tuple,))


def _key(form: Form) -> tuple[Convert, Convert]:
    """How the form's values are read from and written to the keys of an object, which are strings."""
    if form is ANY:
        return STRING.read, STRING.write
    if form.kinds == {str}:
        return form.read, form.write
    if form.kinds != {int}:
        raise Unfit("its keys are not strings, integers, or what is written as one of them")

    def read(text: str) -> object:
        try:
            number = json_text.read_integer(text)
        except ValueError:
            raise Mismatch("expected an integer as key, found a string that is not") from None
        return form.read(number)

    def write(value: object) -> str:
        return dump(form.write(value)).decode()

    return read, write


def mapping(key: Form, item: Form, accepted: type[Any]) -> Form:
    """A dict: an object. Written from whatever is an instance of the type accepted."""
    read_key, write_key = _key(key)

    def read(node: object) -> object:
        if type(node) is not dict:
            raise expected("an object", node)
        return _members(node, read_key, item.as_read, item.read)

    def write(value: object) -> object:
        if not isinstance(value, accepted):
            raise expected("a dict", value)
        return _members(value, write_key, item.as_written, item.write)

    return Form(read, write, frozenset({dict}), (accepted,))


def union(forms: Sequence[Form]) -> Form:
    """One of several types, each written as other kinds of node than the rest."""
    if any(form is ANY for form in forms):
        return ANY
    readers, writers = _readers(forms), _writers(forms)
    words = " or ".join(sorted(WORDS[kind] for kind in readers))

    def read(node: object) -> object:
        reader = readers.get(type(node))
        if reader is None:
            raise expected(words, node)
        return reader(node)

    def write(value: object) -> object:
        writer = writers.get(type(value))
        if writer is None:
            writer = next((write for cls, write in writers.items() if isinstance(value, cls)), None)
        if writer is None:
            raise expected(words, value)
        return writer(value)

    kinds = frozenset(kind for form in forms for kind in form.kinds)
    as_read = next((form.as_read for form in forms if form.as_read is not _Never), _Never)
    as_written = next((form.as_written for form in forms if form.as_written is not _Never), _Never)
    return Form(read, write, kinds, tuple(writers), as_read=as_read, as_written=as_written)


def _readers(forms: Sequence[Form]) -> Mapping[type, Convert]:
    readers: dict[type, Convert] = {}
    for form in forms:
        if not form.kinds:
            raise Unfit("a type that refers to itself is a member of its own union")
        for kind in form.kinds:
            if kind in readers:
                raise Unfit(f"two members of a union are both written as {WORDS[kind]}")
            readers[kind] = form.read
    lenient = {kind: form.read for form in forms for kind in form.also}
    return lenient | readers


def _writers(forms: Sequence[Form]) -> Mapping[type, Convert]:
    lenient = {kind: form.write for form in forms for kind in form.also}
    return lenient | {cls: form.write for form in forms for cls in form.classes}


# --- named values


class Member(NamedTuple):
    """One named value of a record."""

    name: str
    form: Form
    required: bool


def _reader(members: Sequence[Member], make: Callable[..., object]) -> Convert:
    plan = [(name, form.as_read, form.read, required) for name, form, required in members]

    def read(node: object) -> object:
        if type(node) is not dict:
            raise expected("an object", node)
        values: dict[str, object] = {}
        for name, exact, convert, required in plan:
            value = node.get(name, MISSING)
            if type(value) is exact:
                values[name] = value
            elif value is not MISSING:
                try:
                    values[name] = convert(value)
                except Mismatch as mismatch:
                    mismatch.under(f".{name}")
                    raise
            elif required:
                raise Mismatch("missing", path=f".{name}")
        return make(**values)

    return read


def record(cls: type, members: Sequence[Member], make: Callable[..., object]) -> Form:
    """An instance of exactly this class: an object of its members. Others in the object are ignored."""
    plan = [(name, form.as_written, form.write) for name, form, _ in members]

    def made(**values: object) -> object:
        try:
            return make(**values)
        except Exception as error:
            if decides(error):
                raise
            raise refused(cls.__name__, error) from error

    def write(value: object) -> object:
        if type(value) is not cls:
            raise expected(cls.__name__, value)
        node: dict[str, object] = {}
        for name, exact, convert in plan:
            member = getattr(value, name, MISSING)
            try:
                node[name] = member if type(member) is exact else convert(member)
            except Mismatch as mismatch:
                mismatch.under(f".{name}")
                raise
        return node

    return Form(_reader(members, made), write, frozenset({dict}), (cls,))


def typed_dict(members: Sequence[Member]) -> Form:
    """A dict of named values: an object of them. Others in the object are ignored; in the dict they are refused."""
    forms = {name: (form.write, required) for name, form, required in members}

    def write(value: object) -> object:
        if not isinstance(value, dict):
            raise expected("a dict", value)
        if not forms.keys() >= value.keys():
            raise Mismatch("expected only the keys that its type has")
        node: dict[str, object] = {}
        for name, (convert, required) in forms.items():
            if name not in value:
                if required:
                    raise Mismatch("missing", path=f".{name}")
                continue
            try:
                node[name] = convert(value[name])
            except Mismatch as mismatch:
                mismatch.under(f".{name}")
                raise
        return node

    return Form(_reader(members, dict), write, frozenset({dict}), (dict,))
