"""AMQP's bytes: messages read straight out of a connection's, and a message's properties taken apart and put together.

Pika builds some twenty objects for a message, which takes longer than everything else that becomes of it; it gives
the connection up over a header that it cannot read; it rounds numbers; and it rejects by itself what was under way
when a consumer was cancelled. So only the other frames are left to it, and what others put into their properties is
carried on exactly as it came.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from pika import frame

LONGEST_SHORT: Final = 255
"""The longest property that is text, and the longest name of a header, in bytes."""

# Where each property stands among the parts.
CONTENT_TYPE: Final = 0
CONTENT_ENCODING: Final = 1
HEADERS: Final = 2
DELIVERY_MODE: Final = 3
PRIORITY: Final = 4
CORRELATION_ID: Final = 5
REPLY_TO: Final = 6
EXPIRATION: Final = 7
MESSAGE_ID: Final = 8
TIMESTAMP: Final = 9
TYPE: Final = 10
USER_ID: Final = 11
APP_ID: Final = 12
CLUSTER_ID: Final = 13

PARTS: Final = 14
_SHORT: Final = 0
_TABLE: Final = -1
_SIZES: Final = (_SHORT, _SHORT, _TABLE, 1, 1, _SHORT, _SHORT, _SHORT, _SHORT, 8, _SHORT, _SHORT, _SHORT, _SHORT)
_UNKNOWN: Final = 0x0003

U8: Final = Struct(">B")
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")
_I8: Final = Struct(">b")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_NUMBERS: Final = {
    ord(kind): number
    for kinds, number in {
        "B": U8,
        "u": U16,
        "i": U32,
        "b": _I8,
        "Us": _I16,
        "I": _I32,
        "Ll": _I64,
        "f": Struct(">f"),
        "d": Struct(">d"),
        "t": Struct(">?"),
    }.items()
    for kind in kinds
}
TEXT: Final = ord("S")
_DEEPEST: Final = 32


class Unreadable(ValueError):  # noqa: N818 - it never leaves the transport
    """These bytes are not what AMQP says they should be."""


class Content(NamedTuple):
    """A message as AMQP brings it."""

    tag: int
    """Of its delivery; 0 of what was returned."""
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Entry(NamedTuple):
    """One header of a table."""

    name: str
    value: object
    """Text, or whatever it is; bytes where they are not text."""
    encoded: bytes


def split(raw: bytes) -> list[bytes | None]:
    """The parts of encoded properties, each without its length; None where there is none."""
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
        raise Unreadable("the properties are cut off" if at > len(raw) else "there are properties that nobody knows")
    return parts


def join(parts: Sequence[bytes | None]) -> bytes:
    """Encoded properties of these parts."""
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
    """An encoded header of text; ValueError if its name is too long for AMQP."""
    short, long = name.encode(), text.encode()
    if len(short) > LONGEST_SHORT:
        raise ValueError(f"the name of a header is longer than {LONGEST_SHORT} bytes: {name[:40]}…")
    return b"".join((U8.pack(len(short)), short, b"S", U32.pack(len(long)), long))


def entries(table: bytes) -> Iterator[Entry]:
    """The headers of an encoded table."""
    at, end = 0, len(table)
    while at < end:
        start = at
        at += 1 + table[at]
        name = table[start + 1 : at].decode()
        value, at = _value(table, at, 0)
        if at > end:
            raise Unreadable("a header is cut off")
        yield Entry(name, value, table[start:at])


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
            raise Unreadable(f"a header is of the kind {kind!r}")


def _nested(raw: bytes, kind: str, at: int, depth: int) -> tuple[object, int]:
    if depth > _DEEPEST:
        raise Unreadable("its headers are nested too deeply")
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
    """The moment; the bare number where no calendar reaches."""
    try:
        return datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return number


# -- frames


DELIVER: Final = b"\x00\x3c\x00\x3c"
RETURN: Final = b"\x00\x3c\x00\x32"

READ_SIZE: Final = 65_536

_METHOD: Final = 1
_HEADER: Final = 2
_HEAD: Final = Struct(">BHI")
_AROUND: Final = 8
"""The bytes of a frame around its payload, seven of them before it."""
_NUMBER: Final = Struct(">Q")
_BEFORE_PROPERTIES: Final = 12
_HOOKS: Final = ("_on_data_available", "_process_frame", "_frame_buffer", "bytes_received")


class ContentReader:
    """Stands between a connection's socket and pika, and reads the messages of one AMQP channel.

    `takes` says who gets what is delivered, and what is returned; `read` is called after each piece of the stream.
    """

    def __init__(
        self,
        connection: Any,  # noqa: ANN401 - pika's insides
        takes: Mapping[bytes, Callable[[Content], None]],
        read: Callable[[], None] = lambda: None,
    ) -> None:
        self.channel = 0
        """The number of the AMQP channel."""
        self._connection: Final = connection
        self._takes: Final = takes
        self._read: Final = read
        self._buffer = b""
        self._take: Callable[[Content], None] | None = None
        self._tag = 0
        self._exchange = ""
        self._routing_key = ""
        self._properties = b""
        self._missing = 0
        self._body: list[bytes] = []

    def install(self) -> bool:
        """Read all that comes from now on; False if this pika is made in another way, and has to do it by itself."""
        connection = self._connection
        if not all(hasattr(connection, name) for name in _HOOKS):
            return False
        connection._on_data_available = self.feed  # noqa: SLF001 - there is no public place to stand
        if hasattr(connection._transport, "_MAX_RECV_BYTES"):  # noqa: SLF001 - 4 KiB, which are ten messages
            connection._transport._MAX_RECV_BYTES = READ_SIZE  # noqa: SLF001
        return True

    def feed(self, data: bytes) -> None:
        """Take what came from the socket."""
        connection = self._connection
        connection.bytes_received += len(data)  # or its heartbeats believe that the broker is silent
        if connection._frame_buffer:  # noqa: SLF001 - it had begun to read this when we came
            self._buffer, connection._frame_buffer = connection._frame_buffer, b""  # noqa: SLF001
        buffer = self._buffer + data if self._buffer else data
        at, end = 0, len(buffer)
        while at + _AROUND <= end:
            kind, channel, size = _HEAD.unpack_from(buffer, at)
            after = at + _AROUND + size
            if after > end:
                break
            if channel != self.channel or not self._is_ours(buffer, kind, at + 7, after - 1):
                connection._process_frame(frame.decode_frame(buffer[at:after])[1])  # noqa: SLF001
            at = after
        self._buffer = buffer[at:]
        self._read()

    def _is_ours(self, buffer: bytes, kind: int, start: int, end: int) -> bool:
        """Whether this frame is a part of a message, which then is taken in."""
        if kind == _METHOD:
            take = self._takes.get(buffer[start : start + 4])
            if take is not None:
                self._take = take
                self._begin(buffer, start)
            return take is not None
        if self._take is None:
            return False
        if kind == _HEADER:
            self._properties = buffer[start + _BEFORE_PROPERTIES : end]
            (self._missing,) = _NUMBER.unpack_from(buffer, start + 4)
        else:
            self._missing -= end - start
            self._body.append(buffer[start:end])
        if self._missing <= 0:
            self._end(self._take)
        return True

    def _begin(self, buffer: bytes, start: int) -> None:
        if buffer.startswith(DELIVER, start):
            at = start + 5 + buffer[start + 4]  # behind the consumer's tag
            (self._tag,) = _NUMBER.unpack_from(buffer, at)
            at += 9  # and behind whether it was delivered before
        else:
            self._tag = 0
            at = start + 7 + buffer[start + 6]  # behind the code and the text that say why
        middle = at + 1 + buffer[at]
        end = middle + 1 + buffer[middle]
        self._exchange = buffer[at + 1 : middle].decode("utf-8", "replace")
        self._routing_key = buffer[middle + 1 : end].decode("utf-8", "replace")

    def _end(self, take: Callable[[Content], None]) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._take, self._body = None, []
        take(Content(self._tag, self._exchange, self._routing_key, self._properties, body))
