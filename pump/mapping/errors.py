"""The error for a body or request that cannot be mapped, and how other exceptions become that error."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NoReturn

import msgspec

from pump.errors import ConfigurationError, MessageAction, PumpError, contains

_PATH: Final = re.compile(r"(.*) - at (?:`key` in )?`\$([\w.\[\]]*)`", re.DOTALL)
_SHOWN_VALUE: Final = re.compile(r"(Invalid (?:enum )?value|Object contains unknown field) .*", re.DOTALL)
_SHOWN_TAG: Final = re.compile(r"Input tag '.*' found", re.DOTALL)
_UNEXPECTED: Final = re.compile(r"(?s)Pydantic serializer warnings:.*?Expected `([^`]+)`[^[]*(?:\[field_name='(\w+)')?")
_PYDANTIC: Final = ("pydantic.", "pydantic_core")
_WORDS: Final[Mapping[type, str]] = {
    RecursionError: "nested too deeply",
    UnicodeDecodeError: "not UTF-8 at byte {0.start}",
    UnicodeEncodeError: "a string holds half of a surrogate pair",
    json.JSONDecodeError: "not JSON: {0.msg} at character {0.pos}",
}


class MappingError(PumpError, ValueError):
    """A body is not a request of the type, or a request cannot become a body. Says where and why, never the value.

    It is also a ValueError: msgspec adds the path to those, so an error in a nested pydantic model keeps its path.
    """


def mapping_error(reason: str, path: str = "", cause: BaseException | None = None) -> MappingError:
    """The error at this path of the body, such as `.lines[2].sku`; the empty path is the whole body."""
    error = MappingError(f"${path}: {reason[:200]}")
    error.__cause__ = cause
    return error


class Reasons:
    """Makes the error texts for requests of one type."""

    def __init__(self, request_type: object) -> None:
        self._type: Final = request_type
        self._name: Final = getattr(request_type, "__name__", None) or str(request_type)

    def raise_for(self, error: Exception, by: str = "") -> NoReturn:
        """Raise a decision of the program unchanged, and a MappingError for anything else.

        The library's own exception is not kept as the cause, since its text or its frames may show values of the body.
        """
        if contains(error, (MessageAction, ConfigurationError)):
            raise error
        mapped = self._mapped(error, by or self._name)
        raise mapped from mapped.__cause__

    def step(self, key: int | str) -> str:
        """A step of a path as it may be shown: a name that is not in the type may be a key of a body."""
        if isinstance(key, int):
            return f"[{key}]"
        return f".{key}" if key in self._names else "[...]"

    @cached_property
    def _names(self) -> frozenset[str]:
        try:
            schema = msgspec.json.schema(self._type, schema_hook=lambda cls: getattr(cls, "model_json_schema", dict)())
            return frozenset(re.findall(r'"([^"\\]+)":', json.dumps(schema, ensure_ascii=False)))
        except Exception:
            return frozenset()

    def _mapped(self, error: BaseException | None, by: str = "") -> MappingError:
        if isinstance(error, MappingError):
            return error
        if isinstance(error, msgspec.ValidationError):
            return self._of_msgspec(error)
        if type(error).__module__.startswith(_PYDANTIC):
            return self._of_pydantic(error)
        if words := _WORDS.get(type(error)):
            return mapping_error(words.format(error))
        return mapping_error(f"{by} refused it: {type(error).__name__}: {error}", cause=error)

    def _of_msgspec(self, error: msgspec.ValidationError) -> MappingError:
        located = _PATH.fullmatch(str(error))
        reason, path = located.groups() if located else (str(error), "")
        cause = error.__cause__
        if isinstance(cause, MappingError) or type(cause).__module__.startswith(_PYDANTIC):  # it adds its path
            return MappingError(f"${path}{str(self._mapped(cause)).removeprefix('$')}")
        return mapping_error(_SHOWN_VALUE.sub(r"\1", reason), path, cause)

    def _of_pydantic(self, error: Any) -> MappingError:  # noqa: ANN401 - typed by pydantic
        if hasattr(error, "errors"):
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            reason = _SHOWN_TAG.sub("The input's tag found", first["msg"])
            return mapping_error(reason, "".join(map(self.step, first["loc"])))
        if unexpected := _UNEXPECTED.match(str(error)):
            return mapping_error(f"{unexpected[2] or 'a field'} does not hold the {unexpected[1]} that its type says")
        return mapping_error(f"pydantic refused it: {type(error).__name__}: {error}")
