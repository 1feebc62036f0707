"""Between requests and messages: mappers, the default one for JSON, and the names that types travel under."""

import inspect
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from pump.errors import ConfigurationError, PumpError
from pump.mapping import json_form, json_tree
from pump.mapping.json_tree import Mismatch
from pump.mapping.library_codec import codec_for
from pump.message import Message

T = TypeVar("T")

Upcast: TypeAlias = Callable[[str, dict[str, object]], dict[str, object]]
"""Turns the data of a message of another version, which it is told, into data of this version."""

_JSON: Final = "application/json"
_JSON_LIKE: Final = re.compile(r"\s*(?:(?:application|text)/json|[^\s/;]+/[^\s/;]+\+json)\s*(?:;.*)?", re.IGNORECASE)
_LONGEST_NAME: Final = 80


class MappingError(PumpError):
    """A body is not a request of the type, or a request cannot be a body. Says where and why, never the value."""


class Mapper(ABC, Generic[T]):
    """Turns requests into bodies and messages into requests. Inherit for a wire format of your own."""

    content_type: str = _JSON
    """What the header says of the body."""
    version: str = ""
    """What the header says of the body's version."""

    @abstractmethod
    def encode(self, request: T) -> bytes:
        """The body of the request. What is raised here, the caller of `post` gets; nothing is sent."""

    @abstractmethod
    def decode(self, message: Message) -> T:
        """The request in the message. What is raised here makes the message invalid, but for a MessageAction."""


class JsonMapper(Mapper[T]):
    """The default mapper: JSON, in the same form whichever library does it.

    msgspec structs are msgspec's to map and pydantic models pydantic's; all else is mapped strictly here, with
    msgspec's help where it is installed. Whatever the body is, it becomes a request of the type or a MappingError.
    A message of another version than the type's is shown to `upcast` first; without one it is read as it stands.
    """

    def __init__(self, request_type: type[T], *, upcast: Upcast | None = None) -> None:
        self.version = wire_version(request_type)
        self._codec: Final = codec_for(request_type)
        self._upcast: Final = upcast

    def encode(self, request: T) -> bytes:
        """The body of the request, which can be read again; a MappingError if it does not hold what its type says."""
        try:
            return self._codec.encode(request)
        except Mismatch as mismatch:
            raise MappingError(str(mismatch)) from mismatch.__cause__

    def decode(self, message: Message) -> T:
        """The request in the message, or a MappingError; what the program itself decides comes out as it is."""
        header = message.header
        if header.content_type != _JSON:
            _check_content_type(header.content_type)
        try:
            body = message.body
            if self._upcast is not None and header.version != self.version:
                body = _upcasted(self._upcast, header.version, body)
            return cast("T", self._codec.decode(body))
        except Mismatch as mismatch:
            raise MappingError(str(mismatch)) from mismatch.__cause__


def mapper_for(request_type: type[T]) -> Mapper[T]:
    """The default mapper of a type; a ConfigurationError if it needs one of its own, which says what to do."""
    return JsonMapper(request_type)


def _check_content_type(content_type: str) -> None:
    if content_type and not _JSON_LIKE.fullmatch(content_type):
        raise MappingError(f"cannot read content type {content_type[:_LONGEST_NAME]!r}")


def _upcasted(upcast: Upcast, version: str, body: bytes) -> bytes:
    data = json_tree.parse(body)
    if not isinstance(data, dict):
        raise Mismatch("expected an object of another version")
    try:
        return json_tree.dump(json_form.ANY.write(upcast(version, data)))
    except Exception as error:
        if json_tree.decides(error):
            raise
        raise json_tree.refused("upcast", error) from error


# --- the names that types travel under


def wire_type(request_type: type) -> str:
    """The name that a type travels under: its own `wire_type`, a ClassVar[str], else its name, never its module.

    It is not inherited, since two types cannot share one. A generic type's name says what it is made of.
    """
    origin: Any = get_origin(request_type) or request_type
    args = get_args(request_type)
    if origin is Annotated:
        return wire_type(args[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(wire_type, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    name = _declared(origin, "wire_type") or _name(origin)
    return f"{name}[{', '.join(map(wire_type, args))}]" if args and name == _name(origin) else name


def wire_version(request_type: type) -> str:
    """The version that a type declares, or inherits, as `wire_version`, a ClassVar[str]; else "", which is none."""
    origin: Any = get_origin(request_type) or request_type
    declared = (_declared(cls, "wire_version") for cls in getattr(origin, "__mro__", ()))
    return next(filter(None, declared), "")


def _name(origin: object) -> str:
    if origin is ...:
        return "..."
    if origin is types.NoneType:
        return "None"
    return getattr(origin, "__name__", None) or str(origin)


def _declared(cls: object, name: str) -> str:
    """What the class itself says of its name or version; a ConfigurationError if it says it in another way."""
    if not isinstance(cls, type):
        return ""
    value, hint = vars(cls).get(name), inspect.get_annotations(cls).get(name)
    if value is None and hint is None:
        generic = getattr(cls, "__pydantic_generic_metadata__", {}).get("origin")
        return _declared(generic, name)
    if (hint is not None and "ClassVar" not in str(hint)) or not isinstance(value, str) or not value:
        raise ConfigurationError(f"{cls.__qualname__}.{name} must be a ClassVar[str], and not empty")
    return value
