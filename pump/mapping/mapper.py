"""Mappers between requests and messages, and the default mapper for JSON."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from pump.mapping.errors import MappingError, Reasons, mapping_error
from pump.mapping.msgspec_codec import MsgspecCodec
from pump.mapping.pydantic_codec import PydanticCodec, is_pydantic
from pump.mapping.strict_json import dump, parse
from pump.message import Message
from pump.wire_name import wire_version

T = TypeVar("T")

Upcast: TypeAlias = Callable[[str, dict[str, object]], dict[str, object]]
"""Called with the version and the data of a message of another version; returns the data of this version."""

_JSON: Final = "application/json"
_JSON_LIKE: Final = re.compile(r"|\s*(?:(?:application|text)/json|[^\s/;]+/[^\s/;]+\+json)\s*(?:;.*)?", re.IGNORECASE)


class Mapper(ABC, Generic[T]):
    """Turns requests into bodies and messages into requests. Inherit for a wire format of your own."""

    content_type: str = _JSON
    """The content type that the header states."""
    version: str = ""
    """The version of the body that the header states."""

    @abstractmethod
    def encode(self, request: T) -> bytes:
        """Return the body of the request. An exception raised here reaches the caller of `post`; nothing is sent."""

    @abstractmethod
    def decode(self, message: Message) -> T:
        """Return the request in the message. An exception other than a MessageAction makes the message invalid."""


class JsonMapper(Mapper[T]):
    """The default mapper: JSON by pydantic for pydantic's types, by msgspec for all others.

    Every body becomes a request of the type or a MappingError. A body of another version than the type's
    is first passed to `upcast`; without one it is decoded as it is. To make a mapper for a type that cannot be mapped
    raises a ConfigurationError that says what to do.
    """

    def __init__(self, request_type: type[T], *, upcast: Upcast | None = None) -> None:
        self.version = wire_version(request_type)
        self._reasons: Final = Reasons(request_type)
        self._codec: Final = PydanticCodec(request_type) if is_pydantic(request_type) else MsgspecCodec(request_type)
        self._upcast: Final = upcast

    def encode(self, request: T) -> bytes:
        """Return the body of the request; raise a MappingError if it does not hold what its type says."""
        cls = self._codec.cls
        if type(request) is not cls and cls is not None:
            raise mapping_error(f"expected {cls.__name__}, found {type(request).__name__}")
        try:
            return self._codec.write(request)
        except Exception as error:
            self._reasons.raise_for(error)

    def decode(self, message: Message) -> T:
        """Return the request in the message; raise a MappingError, or a decision of the program's own code."""
        header = message.header
        if header.content_type != _JSON and not _JSON_LIKE.fullmatch(header.content_type):
            raise MappingError(f"cannot read content type {header.content_type[:80]!r}")
        try:
            body = message.body
            if self._upcast is not None and header.version != self.version:
                body = self._upcasted(self._upcast, header.version, body)
            request: T = self._codec.read(body)
        except Exception as error:
            self._reasons.raise_for(error)
        return request

    def _upcasted(self, upcast: Upcast, version: str, body: bytes) -> bytes:
        data = parse(body)
        if not isinstance(data, dict):
            raise mapping_error("expected an object of another version")
        try:
            return dump(upcast(version, data))
        except Exception as error:
            self._reasons.raise_for(error, "upcast")
