"""A message's AMQP properties as bytes: split into parts, and joined again.

pika gives a connection up because of a header that it cannot read, and rounds numbers. The functions here keep the
properties of other programs exactly as they came.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from struct import Struct
from typing import Final

LONGEST_SHORT: Final = 255
"""The longest text in a property, and the longest name of a header, in bytes."""

# The place of each property among the parts.
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE, PRIORITY, CORRELATION_ID, REPLY_TO = range(7)
EXPIRATION, MESSAGE_ID, TIMESTAMP, TYPE, USER_ID, APP_ID, CLUSTER_ID = range(7, 14)

PARTS: Final = 14
_SHORT: Final = 0
_TABLE: Final = -1
_SIZES: Final = (_SHORT, _SHORT, _TABLE, 1, 1, _SHORT, _SHORT, _SHORT, _SHORT, 8, _SHORT, _SHORT, _SHORT, _SHORT)
_UNKNOWN: Final = 0x0003

U8: Final = Struct(">B")
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")
_I32: Final = Struct(">i")
_NUMBERS: Final = {ord(kind): Struct(f">{code}") for kind, code in zip("BuibUsILlfdt", "BHIbhhiqqfd?", strict=True)}
"""How numbers are encoded, by the letter of their type in AMQP."""
TEXT: Final = ord("S")
_DEEPEST: Final = 32


def split(raw: bytes) -> list[bytes | None]:
    """The encoded properties, one by one, each without its length; None for a property that is absent."""
    flags = int.from_bytes(raw[:2], "big")
    parts: list[bytes | None] = [None] * PARTS
    at = 2
    for place, size in _layout(flags):
        if size == _SHORT:
            start = at + 1
            at = start + raw[at]
        elif size == _TABLE:
            start = at + 4
            at = start + U32.unpack_from(raw, at)[0]
        else:
            start = at
            at += size
        parts[place] = raw[start:at]
    if at > len(raw) or flags & _UNKNOWN:
        raise ValueError("the properties are cut off" if at > len(raw) else "there are unknown properties")
    return parts


def join(parts: Sequence[bytes | None]) -> bytes:
    """The inverse of `split`."""
    flags = 0
    pieces: list[bytes] = []
    for place, part in enumerate(parts):
        if part is None:
            continue
        flags |= 0x8000 >> place
        if _SIZES[place] == _SHORT:
            pieces.append(U8.pack(len(part)))
        elif _SIZES[place] == _TABLE:
            pieces.append(U32.pack(len(part)))
        pieces.append(part)
    return b"".join((U16.pack(flags), *pieces))


@lru_cache(1024)
def _layout(flags: int) -> Sequence[tuple[int, int]]:
    return [(place, size) for place, size in enumerate(_SIZES) if flags & (0x8000 >> place)]


def entry(name: str, text: str) -> bytes:
    """A text header, encoded; ValueError if its name is too long for AMQP."""
    short, long = name.encode(), text.encode()
    if len(short) > LONGEST_SHORT:
        raise ValueError(f"the name of a header is longer than {LONGEST_SHORT} bytes: {name[:40]}…")
    return b"".join((U8.pack(len(short)), short, b"S", U32.pack(len(long)), long))


def entries(table: bytes) -> Iterator[tuple[str, object, bytes]]:
    """Name, value and encoding of each header of a table. A text that cannot be decoded is returned as bytes."""
    at, end = 0, len(table)
    while at < end:
        start = at
        at += 1 + table[at]
        name = table[start + 1 : at].decode()
        value, at = _value(table, at, 0)
        if at > end:
            raise ValueError("a header is cut off")
        yield name, value, table[start:at]


def _value(raw: bytes, at: int, depth: int) -> tuple[object, int]:
    kind = raw[at]
    at += 1
    if kind == TEXT:
        end = at + 4 + U32.unpack_from(raw, at)[0]
        return _text(raw[at + 4 : end]), end
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(raw, at)[0], at + number.size
    return _rare_value(raw, chr(kind), at, depth)


def _rare_value(raw: bytes, kind: str, at: int, depth: int) -> tuple[object, int]:
    match kind:
        case "x":
            end = at + 4 + U32.unpack_from(raw, at)[0]
            return raw[at + 4 : end], end
        case "V":
            return None, at
        case "T":
            return _time(U64.unpack_from(raw, at)[0]), at + 8
        case "D":
            return Decimal(_I32.unpack_from(raw, at + 1)[0]).scaleb(-raw[at]), at + 5
        case "A" | "F":
            return _nested(raw, kind, at, depth + 1)
        case _:
            raise ValueError(f"a header has the unknown type {kind!r}")


def _nested(raw: bytes, kind: str, at: int, depth: int) -> tuple[object, int]:
    if depth > _DEEPEST:
        raise ValueError("its headers are nested too deeply")
    end = at + 4 + U32.unpack_from(raw, at)[0]
    at += 4
    names: list[str] = []
    values: list[object] = []
    while at < end:
        if kind == "F":
            start = at + 1
            at = start + raw[at]
            names.append(raw[start:at].decode())
        value, at = _value(raw, at, depth)
        values.append(value)
    return (dict(zip(names, values, strict=True)) if kind == "F" else values), at


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _time(number: int) -> object:
    """The time as a datetime; the number itself if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return number
