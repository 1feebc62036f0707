"""Bodies of pydantic's models and dataclasses, as pydantic validates and dumps them by alias.

This module never imports pydantic: a type can only be pydantic's once the program has imported it.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final, get_origin

from pump.errors import ConfigurationError
from pump.mapping.strict_json import dump, parse

_OLDEST: Final = (2, 7)
"""The first version that can refuse to dump what does not fit its type."""
_DUMPED: Final[Mapping[str, Any]] = {"by_alias": True, "round_trip": True, "warnings": "error"}
_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""What pydantic writes for NaN or an infinity contains one of these."""


def is_pydantic(hint: object) -> bool:
    """Whether the type is a model or a dataclass of pydantic."""
    return "__pydantic_validator__" in getattr(get_origin(hint) or hint, "__dict__", ())


class PydanticCodec:
    """Writes and reads requests of one of pydantic's types; never NaN, nor an object with a key twice."""

    def __init__(self, hint: Any) -> None:  # noqa: ANN401 - a class or a generic alias
        pydantic: Any = sys.modules["pydantic"]
        self.cls: Final[Any] = get_origin(hint) or hint
        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _OLDEST:
            raise ConfigurationError(f"{self.cls.__qualname__} cannot be mapped by a pydantic older than 2.7")
        try:
            if not self.cls.__pydantic_complete__:
                self.cls.model_rebuild(raise_errors=True)
            self._adapter: Final = pydantic.TypeAdapter(hint)
        except Exception as error:
            raise ConfigurationError(f"{self.cls.__qualname__} cannot be mapped: {error}") from error

    def write(self, request: object) -> bytes:
        """The body of the request; a request whose values do not fit its type is refused."""
        body: bytes = self._adapter.dump_json(request, **_DUMPED)
        if any(word in body for word in _NOT_FINITE):
            dump(self._adapter.dump_python(request, mode="json", **_DUMPED))
        return body

    def read(self, body: bytes) -> Any:  # noqa: ANN401 - the caller knows the type
        """The request in the body."""
        parse(body)
        return self._adapter.validate_json(body)
