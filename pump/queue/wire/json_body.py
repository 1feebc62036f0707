"""Bodies in JSON, read into structs and written from them. The payloads in them stay the same, byte for byte."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, ValidationError

from pump.queue.errors import BadRequest
from pump.queue.wire.times import A_TIME, Time, time_text

DEEPEST: Final = 500
"""The most levels of a payload: a consumer must be able to read it inside another value too."""
LONGEST_NUMBER: Final = 4300
"""The most digits of a whole number in a payload: Python's own reader refuses a longer one."""

ABSENT: Final[Any] = UNSET
"""The default of a member that may be missing; it is falsy, like null, and is not written."""
NULL: Final = Raw(b"null")

Body = TypeVar("Body")


def _read_value(kind: type, value: object) -> object:
    return Time.read(value) if kind is Time else value


def _written_value(value: object) -> object:
    if isinstance(value, Time):
        return time_text(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


encode: Final = msgspec.json.Encoder(enc_hook=_written_value).encode
"""Writes structs, mappings and lists as JSON. A Raw is written unchanged."""

_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_PAYLOADS: Final = frozenset({"payload", "data"})
_SHORTEST_DEEP: Final = 2 * DEEPEST
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (LONGEST_NUMBER + 1))
_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING: Final = re.compile(r"missing required field `(?P<name>\w+)`")
_UNKNOWN: Final = re.compile(r"unknown field `(?P<name>[^`]{0,40})")
_EXPECTED: Final = re.compile(r"^Expected `(?P<kind>\w+)[^`]*`(?: >= (?P<least>\d+))?")
_KINDS: Final[Mapping[str, str]] = {
    "array": "an array of strings",
    "bool": "true or false",
    "float": "a number of seconds, 0 or more",
    "int": "a whole number",
    "object": "an object",
    "str": "a string",
    "time": A_TIME,
}


class Reader(Generic[Body]):
    """Reads bodies of one kind; BadRequest names the wrong member.

    `wrong` has error texts by member, for a member that is missing or has the wrong type.
    """

    def __init__(
        self, kind: type[Body], wrong: Mapping[str, str] = MappingProxyType({}), *, may_be_empty: bool = False
    ) -> None:
        self._decode: Final = msgspec.json.Decoder(kind, dec_hook=_read_value).decode
        self._may_be_empty: Final = may_be_empty
        self._wrong: Final = wrong

    def read(self, body: bytes) -> Body:
        """Read a body. Outside the payloads, no object may have the same name twice."""
        if not body or body.isspace():
            if not self._may_be_empty:
                raise BadRequest("Empty request body")
            body = b"{}"
        try:
            if not body.isascii():
                body.decode()  # msgspec does not check the UTF-8 of values that it skips
            found = self._decode(body)
            if _may_repeat_a_name(body, found):
                _refuse_repeated_names(body)
        except ValidationError as error:
            raise BadRequest(explained(error, self._wrong)) from None
        except UnicodeDecodeError as error:
            raise BadRequest(f"Invalid JSON: not UTF-8 at byte {error.start}") from None
        except ValueError as error:
            raise BadRequest(f"Invalid JSON: {_reason(body, error)}") from None
        except RecursionError:
            raise BadRequest("Invalid JSON: nested too deeply") from None
        return found


def payload_of(raw: Raw) -> bytes:
    """The bytes of a payload that has been read; BadRequest if some JSON reader could not read it."""
    payload = bytes(raw)
    if len(payload) >= _SHORTEST_DEEP:
        if payload.count(b"[") + payload.count(b"{") > DEEPEST:
            _refuse_deep(payload)
        _refuse_long_numbers(payload)
    return payload


def is_json(body: bytes) -> bool:
    """Whether the bytes can be put into a JSON text unchanged."""
    try:
        if not body.isascii():
            body.decode()
        _decode_raw(body)
        if len(body) > LONGEST_NUMBER:
            _refuse_long_numbers(body)
    except (BadRequest, ValueError, RecursionError):
        return False
    return True


def read_members(members: Mapping[str, str], kind: type[Body], wrong: Mapping[str, str]) -> Body:
    """Make a struct from members that are texts, such as query parameters."""
    try:
        return msgspec.convert(members, kind, strict=False, dec_hook=_read_value)
    except ValidationError as error:
        raise BadRequest(explained(error, wrong)) from None


def explained(error: ValidationError, wrong: Mapping[str, str]) -> str:
    """Explain which member is wrong and why, for the author of the client."""
    text = str(error)
    if unknown := _UNKNOWN.search(text):
        return f"there is no option {unknown['name']!r}"
    place, missing, expected = _PLACE.search(text), _MISSING.search(text), _EXPECTED.match(text)
    path = place["path"] if place else ""
    kind = expected["kind"] if expected else ""
    if missing:
        path = f"{path}.{missing['name']}"
    elif not path or (kind == "object" and path.endswith("]")):
        return f"{path or 'the body'} must be an object"
    where, _, name = re.sub(r"\[\d+\]$", "", path).rpartition(".")
    least = f", {expected['least']} or more" if expected and expected["least"] and kind == "int" else ""
    default = f"{name} must be {_KINDS.get(kind, 'a number in range')}{least}"
    return f"{wrong.get(name, default)}{where and f' ({where})'}"


def _may_repeat_a_name(body: bytes, found: object) -> bool:
    """Whether the body has something that was not read: a repeated name or an unknown member.

    Each name and each string has two quotes. So if the value is written again and has as many quotes, nothing was
    dropped. A quote that is written as an escape is found by counting the escapes.
    """
    written = encode(found)
    if written == body:
        return False
    if written.count(b'"') != body.count(b'"'):
        return True
    return b"\\u" in body and written.count(b"\\u") != body.count(b"\\u")


def _reason(body: bytes, error: ValueError) -> str:
    try:
        json.dumps(json.loads(body, object_pairs_hook=list), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a string holds half of a surrogate pair"
    except (ValueError, RecursionError):
        pass
    return str(error)


class _Members(list[tuple[str, object]]):
    """A JSON object as a list of all its members, repeated ones included."""


def _refuse_repeated_names(body: bytes) -> None:
    waiting: list[object] = [json.loads(body, object_pairs_hook=_Members)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _Members):
            names = [name for name, _ in value]
            if len(set(names)) < len(names):
                repeated = next(name for name in names if names.count(name) > 1)
                raise BadRequest(f"Invalid JSON: {repeated!r} stands twice in one object")
            waiting += [inner for name, inner in value if name not in _PAYLOADS]
        elif isinstance(value, list):
            waiting += value


def _refuse_deep(payload: bytes) -> None:
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", payload)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            raise BadRequest("Invalid JSON: nested too deeply")


def _refuse_long_numbers(payload: bytes) -> None:
    if _LONG_NUMBER.search(_STRING.sub(b"", payload)):
        raise BadRequest("Invalid JSON: a number has too many digits")
