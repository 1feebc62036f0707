"""Between requests and messages: mappers, the default one for JSON, and the names that types travel under."""

import inspect
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pump.errors import ConfigurationError
from pump.mapping.errors import MappingError, is_decision, mapping_error, refused
from pump.mapping.msgspec_codec import MsgspecCodec
from pump.mapping.pydantic_codec import PydanticCodec, is_pydantic
from pump.mapping.strict_json import dump, parse
from pump.message import Message

T = TypeVar("T")

Upcast: TypeAlias = Callable[[str, dict[str, object]], dict[str, object]]
"""Called with the version and the data of a message of another version; returns the data of this version."""

_JSON: Final = "application/json"
_JSON_LIKE: Final = re.compile(r"\s*(?:(?:application|text)/json|[^\s/;]+/[^\s/;]+\+json)\s*(?:;.*)?", re.IGNORECASE)
_LONGEST_NAME: Final = 80


class Mapper(ABC, Generic[T]):
    """Turns requests into bodies and messages into requests. Inherit for a wire format of your own."""

    content_type: str = _JSON
    """What the header states about the body."""
    version: str = ""
    """What the header states about the body's version."""

    @abstractmethod
    def encode(self, request: T) -> bytes:
        """Return the body of the request. An exception raised here reaches the caller of `post`; nothing is sent."""

    @abstractmethod
    def decode(self, message: Message) -> T:
        """Return the request in the message. An exception other than a MessageAction makes the message invalid."""


class JsonMapper(Mapper[T]):
    """The default mapper: JSON by pydantic for pydantic's types, by msgspec for all others.

    Every body becomes a request of the type or a MappingError. A body of another version than the type's
    is first passed to `upcast`; without one it is decoded as it is.
    """

    def __init__(self, request_type: type[T], *, upcast: Upcast | None = None) -> None:
        self.version = wire_version(request_type)
        self._codec: Final = PydanticCodec(request_type) if is_pydantic(request_type) else MsgspecCodec(request_type)
        self._upcast: Final = upcast

    def encode(self, request: T) -> bytes:
        """Return the body of the request; raise a MappingError if it does not hold what its type says."""
        return self._codec.encode(request)

    def decode(self, message: Message) -> T:
        """Return the request in the message; raise a MappingError, or what the program itself decides."""
        header = message.header
        if header.content_type != _JSON:
            _check_content_type(header.content_type)
        body = message.body
        if self._upcast is not None and header.version != self.version:
            body = _upcasted(self._upcast, header.version, body)
        request: T = self._codec.decode(body)
        return request


def mapper_for(request_type: type[T]) -> Mapper[T]:
    """Return the default mapper of a type; raise a ConfigurationError that says what to do if it can have none."""
    return JsonMapper(request_type)


def _check_content_type(content_type: str) -> None:
    if content_type and not _JSON_LIKE.fullmatch(content_type):
        raise MappingError(f"cannot read content type {content_type[:_LONGEST_NAME]!r}")


def _upcasted(upcast: Upcast, version: str, body: bytes) -> bytes:
    data = parse(body)
    if not isinstance(data, dict):
        raise mapping_error("expected an object of another version")
    try:
        return dump(upcast(version, data))
    except Exception as error:
        if isinstance(error, MappingError) or is_decision(error):
            raise
        raise refused("upcast", error) from error


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
