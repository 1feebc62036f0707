"""Bodies of pydantic's models and dataclasses, as pydantic validates and dumps them by alias.

This module never imports pydantic: a type can only be pydantic's once the program has imported it.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, get_origin

from pump.errors import ConfigurationError
from pump.mapping.errors import MappingError, mapping_error, raise_mapped, refused
from pump.mapping.strict_json import dump, parse

_OLDEST: Final = (2, 7)
"""The first version that can refuse to dump what does not fit its type."""
_DUMPED: Final[Mapping[str, Any]] = {"by_alias": True, "round_trip": True, "warnings": "error"}
_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""One of these is in what pydantic writes for NaN or an infinity."""
_SHOWN_TAG: Final = re.compile(r"Input tag '.*' found", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`")
_FIELD: Final = re.compile(r"field_name='(\w+)'")


def is_pydantic(hint: object) -> bool:
    """Whether the type is a model or a dataclass of pydantic."""
    pydantic: Any = sys.modules.get("pydantic")
    cls: Any = get_origin(hint) or hint
    if not isinstance(cls, type) or not hasattr(pydantic, "BaseModel"):  # it may still be being imported
        return False
    return issubclass(cls, pydantic.BaseModel) or pydantic.dataclasses.is_pydantic_dataclass(cls)


class PydanticCodec:
    """Encodes and decodes requests of one of pydantic's types; never NaN, nor an object with a key twice."""

    def __init__(self, hint: Any) -> None:  # noqa: ANN401 - a class or a generic alias
        pydantic: Any = sys.modules["pydantic"]
        self._cls: Final[Any] = get_origin(hint) or hint
        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _OLDEST:
            raise ConfigurationError(f"{self._cls.__qualname__} cannot be mapped by a pydantic older than 2.7")
        try:
            if not self._cls.__pydantic_complete__:
                self._cls.model_rebuild(raise_errors=True)
            self._adapter: Final = pydantic.TypeAdapter(hint)
        except Exception as error:
            raise ConfigurationError(f"{self._cls.__qualname__} cannot be mapped: {error}") from error
        self._invalid: Final[type[Any]] = pydantic.ValidationError

    def encode(self, request: object) -> bytes:
        """The body of the request; a MappingError if it does not hold what its type says."""
        if type(request) is not self._cls:
            raise mapping_error(f"expected {self._cls.__name__}, found {type(request).__name__}")
        try:
            body: bytes = self._adapter.dump_json(request, **_DUMPED)
            if any(word in body for word in _NOT_FINITE):
                dump(self._adapter.dump_python(request, mode="json", **_DUMPED))
        except Exception as error:
            raise_mapped(error, self._unwritten)
        return body

    def decode(self, body: bytes) -> Any:  # noqa: ANN401 - the type is known to the caller
        """The request in the body, or a MappingError."""
        parse(body)
        try:
            return self._adapter.validate_json(body)
        except Exception as error:
            raise_mapped(error, self._unread)

    def _unread(self, error: Any) -> MappingError:  # noqa: ANN401 - typed by pydantic
        if not isinstance(error, self._invalid):
            return refused(self._cls.__name__, error)
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = _SHOWN_TAG.sub("The input's tag found", first["msg"])
        return mapping_error(reason, "".join(map(self._step, first["loc"])))

    def _step(self, step: int | str) -> str:
        if isinstance(step, int):
            return f"[{step}]"
        return f".{step}" if step in self._names else "[...]"

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names that a path may show; any other may be a key from a body, which may be private."""
        try:
            return frozenset(_properties(self._adapter.json_schema()))
        except Exception:
            return frozenset()

    @staticmethod
    def _unwritten(error: Exception) -> MappingError:
        """What pydantic could not write, without the value that it shows."""
        expected, field = _EXPECTED.search(str(error)), _FIELD.search(str(error))
        if expected is None:
            return refused("pydantic", error)
        return mapping_error(f"{field[1] if field else 'a field'} does not hold the {expected[1]} that its type says")


def _properties(schema: object) -> Iterator[str]:
    """The names of all properties in a JSON schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _properties(part)
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        yield from _properties(list(schema.values()))
