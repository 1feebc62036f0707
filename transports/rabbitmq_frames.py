"""Reads messages straight out of a connection's bytes, and leaves every other frame to pika.

Pika builds some twenty objects for a message, which takes longer than everything else that becomes of it; it gives
the connection up over a header that it cannot read; and it rejects by itself what was under way when a consumer was
cancelled.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from pika import frame

from pump.transports.rabbitmq_properties import Content

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
