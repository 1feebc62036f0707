"""Bodies of dataclasses, msgspec structs and other annotated types: msgspec reads and writes them.

This codec also refuses NaN, an object with a key twice, a value that would be lost on the way, and a type that msgspec
accepts although it would fail on every message, or lose a value without an error.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Generic, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as types

from pump.errors import ConfigurationError
from pump.mapping.errors import Reasons, mapping_error
from pump.mapping.pydantic_codec import PydanticCodec, is_pydantic
from pump.mapping.strict_json import dump, parse

_MINUTE: Final = timedelta(minutes=1)
_NOT_FINITE: Final = re.compile(rb"NaN|Infinity")
"""What msgspec writes for a Decimal that is not finite; for a float that is not finite it writes null."""
_TEXT_IN_JSON: Final = (Decimal, UUID, datetime, date, time, timedelta, bytes, bytearray)
"""Types that are written as strings, and read back as strings where the request's type does not name them."""
_PLAIN: Final[Mapping[type, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    datetime: datetime.isoformat,
    date: date.isoformat,
    Mapping: dict,
}
"""How instances of subclasses are written: msgspec knows only the exact types."""
_NO_KEYS: Final = (
    types.BoolType, types.NoneType, types.FloatType, types.UnionType, types.CollectionType, types.TupleType,
    types.DictType, types.TypedDictType, types.NamedTupleType, types.DataclassType, types.StructType,
    types.CustomType, types.RawType,
)  # fmt: skip
"""Types that cannot be the keys of an object, or would be read back as another type."""


class MsgspecCodec:
    """Writes and reads requests of one type. Making it raises a ConfigurationError if the type cannot be mapped."""

    def __init__(self, request_type: object) -> None:
        self.cls: type | None = None
        """The exact class of the requests, if it is a dataclass or a struct."""
        self._reasons: Final = Reasons(request_type)
        self._models: Final[dict[type, PydanticCodec]] = {}
        """The codecs of the pydantic models in the type."""
        self._has_decimals = False
        self._equals_all = True
        """Whether `==` compares all fields."""
        self._inspect(request_type)
        decoder = msgspec.json.Decoder[Any](request_type, dec_hook=self._from_json)
        self._decode: Final = decoder.decode
        self._encode: Final = msgspec.json.Encoder(enc_hook=self._to_plain).encode
        self._tree: Final = partial(msgspec.to_builtins, builtin_types=_TEXT_IN_JSON, enc_hook=self._to_plain)

    def _inspect(self, request_type: object) -> None:
        where = name = _shown(request_type)
        try:
            info = types.type_info(request_type)
            for where, part in _parts(info, name, set()):  # noqa: B007 - the error names it
                self._add(part)
        except Exception as error:
            hint = ", and an annotation in quotes finds only names of its module and its class"
            raise ConfigurationError(
                f"{where} cannot be mapped: {error}{hint if isinstance(error, NameError) else ''}. "
                f"Make {name} a dataclass of types that JSON can hold, or pass a Mapper for it"
            ) from error
        if isinstance(info, types.DataclassType | types.StructType):
            self.cls = get_origin(info.cls) or info.cls

    def _add(self, info: types.Type) -> None:
        cls: Any = getattr(info, "cls", None)
        cls = get_origin(cls) or cls
        generics = {*map(get_origin, getattr(cls, "__orig_bases__", ()))} - {None, Generic}
        self._has_decimals |= isinstance(info, types.DecimalType)
        if isinstance(info, types.DataclassType):
            self._add_dataclass(cls)
        elif isinstance(info, types.StructType):
            self._equals_all &= cls.__eq__ is msgspec.Struct.__eq__
        elif isinstance(info, types.CustomType) and is_pydantic(cls):
            self._models[cls] = PydanticCodec(cls)
        elif isinstance(info, types.CustomType) and cls is not object:
            raise TypeError(f"{_shown(cls)} is not a dataclass, and JSON has no form for it")
        elif isinstance(info, types.DictType) and isinstance(info.key_type, _NO_KEYS):
            raise TypeError("its keys are not strings, integers, or what is written as one of them")
        elif isinstance(info, types.TypedDictType) and generics:  # msgspec would read the keys of those as Any
            raise TypeError(f"{_shown(cls)} extends a generic TypedDict")

    def _add_dataclass(self, cls: type) -> None:
        if is_pydantic(cls):
            raise TypeError(f"{_shown(cls)} is a dataclass of pydantic: only its models can stand here")
        adds = any("ClassVar" not in str(hint) for hint in inspect.get_annotations(cls).values())
        if adds and hasattr(cls, "__dataclass_fields__") and "__dataclass_fields__" not in vars(cls):
            raise TypeError(f"{_shown(cls)} extends a dataclass but is not decorated as one")
        code = getattr(cls.__eq__, "__code__", None)
        generated = getattr(code, "co_filename", "") == "<string>"  # where `dataclasses` says that its methods stand
        self._equals_all &= generated and all(field.compare for field in dataclasses.fields(cls))

    def write(self, request: object) -> bytes:
        """The body of the request. It is read back first, to refuse what cannot be read or would be lost."""
        body = self._encode(request)
        read = self._decode(body)
        if read != request or not self._equals_all or (self._has_decimals and _NOT_FINITE.search(body)):
            self._compare(self._tree(request), self._tree(read), "")
        return body

    def read(self, body: bytes) -> Any:  # noqa: ANN401 - the caller knows the type
        """The request in the body.

        A body that equals what msgspec would write, apart from spaces, is accepted. Any other is parsed once more, to
        refuse what msgspec lets pass: a key twice, and bad UTF-8 or too large a number in an unknown field.
        """
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            parse(body)  # so that bad JSON has the same error text, whichever library reads it
            raise
        try:
            written = self._encode(request)
        except Exception:
            written = b""  # `__post_init__` may have set a field to a value that has no JSON form
        if body != written != msgspec.json.format(body, indent=-1):
            parse(body)
        if self._has_decimals and _NOT_FINITE.search(written):
            self._compare(self._tree(request), self._tree(request), "")
        return request

    def _to_plain(self, value: object) -> object:
        """The plain value to write for a value that msgspec does not know."""
        model = self._models.get(type(value))
        if model is not None:
            return parse(model.write(value))
        for cls, plain in _PLAIN.items():
            if isinstance(value, cls):
                return plain(value)
        raise mapping_error(f"{type(value).__name__} has no JSON form")

    def _from_json(self, cls: type, tree: object) -> object:
        """The value of a type that msgspec does not know: a pydantic model, or any object."""
        model = self._models.get(cls)
        return tree if model is None else model.read(dump(tree))

    def _compare(self, sent: object, read: object, path: str) -> None:
        """Raise for the first value that is not finite, or that would be read back as something else."""
        if isinstance(sent, dict) and isinstance(read, dict):
            for key, value in sent.items():
                self._compare(value, read.get(key, msgspec.UNSET), path + self._reasons.step(str(key)))
        elif isinstance(sent, list | tuple) and isinstance(read, list | tuple):
            for index, (value, other) in enumerate(zip_longest(sent, read, fillvalue=msgspec.UNSET)):
                self._compare(value, other, path + self._reasons.step(index))
        elif isinstance(sent, float | Decimal) and not Decimal(sent).is_finite():
            raise mapping_error("expected a finite number, found NaN or an infinity", path)
        elif read is msgspec.UNSET or (
            # Not any other type: two equal sets may be listed in different orders.
            isinstance(sent, _TEXT_IN_JSON)
            and isinstance(read, (str, *_TEXT_IN_JSON))
            and not isinstance(read, type(sent))
        ):
            found = "nothing" if read is msgspec.UNSET else type(read).__name__
            raise mapping_error(f"{type(sent).__name__} would be read back as {found}", path)
        elif isinstance(sent, datetime | time) and (sent.utcoffset() or _MINUTE) % _MINUTE:
            raise mapping_error("expected an offset in whole minutes", path)


def _parts(info: object, where: str, seen: set[int]) -> Iterator[tuple[str, types.Type]]:
    """Each type within a type, once, and its place in it."""
    if isinstance(info, tuple):
        for part in info:
            yield from _parts(part, where, seen)
    elif isinstance(info, types.Field):
        yield from _parts(info.type, f"{where}.{info.name}", seen)
    elif isinstance(info, types.Type) and id(info) not in seen:  # a class may refer to itself
        seen.add(id(info))
        yield where, info
        yield from _parts(msgspec.structs.astuple(info), _shown(getattr(info, "cls", where)), seen)


def _shown(cls: Any) -> str:  # noqa: ANN401 - any form of a type
    return getattr(cls, "__qualname__", None) or str(cls)
