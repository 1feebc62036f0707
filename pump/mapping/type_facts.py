"""What the codec has to know about a type, found out when the program starts: whether it can be mapped at all."""

import dataclasses
import inspect
from typing import Any, Final, Generic, get_origin

import msgspec
from msgspec import inspect as types

from pump.errors import ConfigurationError
from pump.mapping.pydantic_codec import PydanticCodec, is_pydantic

_GENERATED: Final = "<string>"
"""The file name of methods that `dataclasses` has written."""
_NO_KEYS: Final = (
    types.BoolType, types.NoneType, types.FloatType, types.UnionType, types.CollectionType, types.TupleType,
    types.DictType, types.TypedDictType, types.NamedTupleType, types.DataclassType, types.StructType,
    types.CustomType, types.RawType,
)  # fmt: skip
"""Types that cannot be the keys of an object, or would be read back as another type."""


class TypeFacts:
    """The facts about a type and all types in it. Raises a ConfigurationError if one of them cannot be mapped.

    msgspec itself refuses most such types. Refused here are those that it would accept and then fail on every message,
    and those that would lose a value without an error.
    """

    def __init__(self, request_type: object) -> None:
        self.name: Final = getattr(request_type, "__name__", None) or str(request_type)
        self.cls: type | None = None
        """The exact class of the requests, where it is a dataclass or a struct."""
        self.names: Final[set[str]] = set()
        """The names of all fields. A path shows these; any other step of a path may be a key from a body."""
        self.models: Final[dict[type, PydanticCodec]] = {}
        """The codecs of the pydantic models in the type."""
        self.has_decimals = False
        self.equals_all = True
        """Whether `==` compares all fields."""
        self._seen: Final[set[int]] = set()
        try:
            info = types.type_info(request_type)
        except Exception as error:
            raise self._unmappable(_shown(request_type), error) from error
        if isinstance(info, types.DataclassType | types.StructType):
            self.cls = get_origin(info.cls) or info.cls
        self._visit(info, _shown(request_type))

    def _visit(self, info: types.Type, where: str) -> None:
        if id(info) in self._seen:  # a class may refer to itself
            return
        self._seen.add(id(info))
        self._check(info, where)
        for attribute in info.__struct_fields__:
            value = getattr(info, attribute)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, types.Field):
                    self.names.add(part.encode_name)
                    self._visit(part.type, f"{_shown(getattr(info, 'cls', where))}.{part.name}")
                elif isinstance(part, types.Type):
                    self._visit(part, where)

    def _check(self, info: types.Type, where: str) -> None:
        match info:
            case types.CustomType(cls=cls):
                self._check_class(cls, where)
            case types.DataclassType(cls=cls):
                self._check_dataclass(get_origin(cls) or cls, where)
            case types.StructType(cls=cls):
                self.equals_all &= (get_origin(cls) or cls).__eq__ is msgspec.Struct.__eq__
            case types.TypedDictType(cls=cls):
                self._check_typed_dict(cls, where)
            case types.DictType(key_type=key) if isinstance(key, _NO_KEYS):
                raise self._unmappable(where, "its keys are not strings, integers, or what is written as one of them")
            case types.DecimalType():
                self.has_decimals = True
            case _:
                pass

    def _check_class(self, cls: type, where: str) -> None:
        if is_pydantic(cls):
            self.models[cls] = PydanticCodec(cls)
        elif cls is not object:
            raise self._unmappable(where, f"{_shown(cls)} is no dataclass, and JSON has no form for it")

    def _check_dataclass(self, cls: type, where: str) -> None:
        if is_pydantic(cls):
            raise self._unmappable(where, f"{_shown(cls)} is a dataclass of pydantic: only its models can stand here")
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        if fields and "__dataclass_fields__" not in vars(cls) and _adds_annotations(cls):
            raise self._unmappable(where, f"{_shown(cls)} extends a dataclass but is not decorated as one")
        code = getattr(cls.__eq__, "__code__", None)
        self.equals_all &= getattr(code, "co_filename", "") == _GENERATED and all(field.compare for field in fields)

    def _check_typed_dict(self, cls: type, where: str) -> None:
        """Refuse a generic base: msgspec does not fill in its type variables, and would read those keys as Any."""
        if any(get_origin(base) not in (None, Generic) for base in getattr(cls, "__orig_bases__", ())):
            raise self._unmappable(where, f"{_shown(cls)} extends a generic TypedDict")

    def _unmappable(self, where: str, why: object) -> ConfigurationError:
        hint = ", and an annotation in quotes finds only names of its module and its class"
        return ConfigurationError(
            f"{where} cannot be mapped: {why}{hint if isinstance(why, NameError) else ''}. "
            f"Make {self.name} a dataclass of types that JSON can hold, or pass a Mapper for it"
        )


def _adds_annotations(cls: type) -> bool:
    return any("ClassVar" not in str(hint) for hint in inspect.get_annotations(cls).values())


def _shown(cls: Any) -> str:  # noqa: ANN401 - any form of a type
    return getattr(cls, "__qualname__", None) or str(cls)
