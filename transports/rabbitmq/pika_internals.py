"""Everything that depends on pika's internals: messages are read directly from the bytes of its connection.

pika builds some twenty objects for a message, which takes longer than all other work on it. It gives the connection up
because of a header that it cannot read. It rounds numbers. And it rejects deliveries that were under way when a
consumer was cancelled. So pika reads all frames except those of messages. Tried with pika 1.3.2 and 1.4.4. If pika's
internals are different, pika reads the messages, and a warning says so.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import pika
from pika import exceptions, frame

log: Final = logging.getLogger("pump.transports.rabbitmq")

DELIVER: Final = b"\x00\x3c\x00\x3c"
"""The first bytes of the frame of a delivery."""
RETURN: Final = b"\x00\x3c\x00\x32"
"""The first bytes of the frame of a message that could not be routed."""

CONFIRMS: Final[Mapping[bytes, bool]] = {b"\x00\x3c\x00\x50": True, b"\x00\x3c\x00\x78": False}
"""The first bytes of the frames that answer a publish, and whether the message is stored."""

READ_SIZE: Final = 65_536

_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3
_END: Final = b"\xce"
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_MANDATORY: Final = b"\x01"
_CONTENT: Final = Struct(">HHQ")
_HEAD: Final = Struct(">BHI")
_AROUND: Final = 8
"""The number of bytes around the payload of a frame; seven of them stand before it."""
_NUMBER: Final = Struct(">Q")
_BEFORE_PROPERTIES: Final = 12
_PLAIN: Final = "_AsyncPlaintextTransport"
"""The class of pika's transports without TLS."""
_HOOKS: Final = (
    "_on_data_available",
    "_process_frame",
    "_frame_buffer",
    "bytes_received",
    "_output_marshaled_frames",
)


class Content(NamedTuple):
    """A message as the broker sends it."""

    tag: int
    """The number of the delivery; 0 for a returned message."""
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    redelivered: bool = False
    """Whether the broker says that it was delivered before, to any consumer."""


class Confirm(Protocol):
    """Called when the message of one tag, or all messages up to it, are stored or refused."""

    def __call__(self, tag: int, *, multiple: bool, stored: bool) -> None: ...  # noqa: D102 - as the class says


class ContentReader:
    """Reads the messages of one AMQP channel from the bytes that its connection receives; other frames go to pika.

    `takes` has the function to call for deliveries, or for returned messages; `confirm` is called for confirmations;
    `read` is called after each piece of the stream.
    """

    def __init__(
        self,
        connection: Any,  # noqa: ANN401 - pika's insides
        takes: Mapping[bytes, Callable[[Content], None]],
        read: Callable[[], None] = lambda: None,
        confirm: Confirm | None = None,
    ) -> None:
        self.channel = 0
        """The number of the AMQP channel."""
        self._connection: Final = connection
        self._takes: Final = takes
        self._read: Final = read
        self._confirm: Final = confirm
        self._buffer = b""
        self._take: Callable[[Content], None] | None = None
        self._tag = 0
        self._redelivered = False
        self._exchange = ""
        self._routing_key = ""
        self._properties = b""
        self._missing = 0
        self._body: list[bytes] = []

    def install(self) -> bool:
        """Read all bytes from now on. If pika's internals do not allow it, warn and return False: pika reads them."""
        connection = self._connection
        if not all(hasattr(connection, name) for name in _HOOKS):
            _warn_once()
            return False
        connection._on_data_available = self.feed  # noqa: SLF001 - there is no public way
        if hasattr(connection._transport, "_MAX_RECV_BYTES"):  # noqa: SLF001 - the default is 4 KiB, about ten messages
            connection._transport._MAX_RECV_BYTES = READ_SIZE  # noqa: SLF001
        return True

    def feed(self, data: bytes) -> None:
        """Read a piece of the stream."""
        connection = self._connection
        connection.bytes_received += len(data)  # else pika's heartbeats would take the broker for silent
        if connection._frame_buffer:  # noqa: SLF001 - pika had begun to read a frame
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
        """Read the frame if it is a part of a message; returns whether it is."""
        if kind == _METHOD:
            take = self._takes.get(buffer[start : start + 4])
            if take is None:
                return self._confirm is not None and self._is_confirmation(buffer, start, self._confirm)
            self._take = take
            self._begin(buffer, start)
            return True
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

    def _is_confirmation(self, buffer: bytes, start: int, confirm: "Confirm") -> bool:
        stored = CONFIRMS.get(buffer[start : start + 4])
        if stored is None:
            return False
        (tag,) = _NUMBER.unpack_from(buffer, start + 4)
        confirm(tag, multiple=bool(buffer[start + 12] & 1), stored=stored)
        return True

    def _begin(self, buffer: bytes, start: int) -> None:
        if buffer.startswith(DELIVER, start):
            at = start + 5 + buffer[start + 4]  # after the consumer's tag
            (self._tag,) = _NUMBER.unpack_from(buffer, at)
            self._redelivered = bool(buffer[at + 8] & 1)
            at += 9
        else:
            self._tag, self._redelivered = 0, False
            at = start + 7 + buffer[start + 6]  # after the reply code and text
        middle = at + 1 + buffer[at]
        end = middle + 1 + buffer[middle]
        self._exchange = buffer[at + 1 : middle].decode("utf-8", "replace")
        self._routing_key = buffer[middle + 1 : end].decode("utf-8", "replace")

    def _end(self, take: Callable[[Content], None]) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._take, self._body = None, []
        take(Content(self._tag, self._exchange, self._routing_key, self._properties, body, self._redelivered))


@cache
def _warn_once() -> None:
    log.warning(
        "pika %s differs inside from the versions that this package was tested with (1.3.2 to 1.4.4): "
        "so pika reads the messages itself, which is slower and fails on some headers",
        pika.__version__,
    )


@lru_cache(1024)
def publish_method(exchange: str, routing_key: str) -> bytes:
    """The method that publishes to this exchange and routing key; the broker returns a message that no queue takes."""
    names = b"".join(bytes((len(name),)) + name for name in (exchange.encode(), routing_key.encode()))
    return b"".join((_PUBLISH, names, _MANDATORY))


def publish_frames(channel: int, method: bytes, properties: bytes, body: bytes, largest: int) -> Iterator[bytes]:
    """The frames that publish one message; `largest` is the largest frame that both sides allow."""
    header = b"".join((_CONTENT.pack(60, 0, len(body)), properties))
    yield b"".join(
        (
            _HEAD.pack(_METHOD, channel, len(method)),
            method,
            _END,
            _HEAD.pack(_HEADER, channel, len(header)),
            header,
            _END,
        )
    )
    step = largest - _AROUND
    for begin in range(0, len(body), step):
        piece = body[begin : begin + step]
        yield b"".join((_HEAD.pack(_BODY, channel, len(piece)), piece, _END))


def write_frames(connection: Any, frames: Sequence[bytes]) -> None:  # noqa: ANN401 - pika's insides
    """Write frames in one piece: at once as far as the socket takes them, and the rest as pika does."""
    data = b"".join(frames)
    sent = _send(connection, data)
    if sent < len(data):
        connection._output_marshaled_frames([data[sent:]])  # noqa: SLF001 - pika makes one write for each frame


def _send(connection: Any, data: bytes) -> int:  # noqa: ANN401 - pika's insides
    """How many bytes the socket has taken. pika asks its poller before it writes, which takes longer than the write."""
    transport: Any = getattr(connection, "_transport", None)
    try:
        is_free = not transport._tx_buffers and transport._state == transport._STATE_ACTIVE  # noqa: SLF001
        if type(transport).__name__ != _PLAIN or not is_free:
            return 0
        sent = int(transport._sock.send(data))  # noqa: SLF001
    except (AttributeError, OSError):  # pika is made differently; or it meets the same error when it writes
        return 0
    connection.bytes_sent += sent
    return sent


class EncodedProperties:
    """Properties that are encoded already, as an object that pika takes as properties."""

    INDEX: Final = 0x003C

    def __init__(self, encoded: bytes) -> None:
        self._encoded: Final = encoded

    def encode(self) -> list[bytes]:
        """The encoded properties."""
        return [self._encoded]


def abort(connection: pika.SelectConnection) -> None:
    """End a connection at once, without waiting for the peer's answer."""
    with suppress(Exception):
        connection._terminate_stream(exceptions.ConnectionClosed(0, "gave up waiting"))  # noqa: SLF001 - no public way
