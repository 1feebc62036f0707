"""One connection of a client: heads have a limited size and time, and no byte of one request is read as another's.

It is uvicorn's own protocol with checks before and after it. It uses only public names of uvicorn's
`HttpToolsProtocol`: `parser`, `cycle`, `pipeline`, `flow`, `transport` and the callbacks of the parser; tried with 0.29
to 0.54.
"""

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pump.queue.wire.json_body import encode

if TYPE_CHECKING:
    import asyncio

    from pump.queue.http.front import Front

LARGEST_HEAD_BYTES: Final = 64 * 1024
_SLICE_BYTES: Final = 4 * 1024
"""A head is read in pieces of this size: it may exceed its limit by at most this much."""
_BODY_SLICE_BYTES: Final = 16 * 1024
"""The same for a body, and so for a head that begins in the same piece."""
_MOST_AHEAD: Final = 16
"""When so many requests of a connection wait for the one before them, the next piece is not parsed yet."""
_HOP_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})

_REASONS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
}


class Stage(Enum):
    """The phase that a connection is in."""

    NEW = "new"
    """The client has sent nothing yet."""
    HEAD = "head"
    """The head of a request is arriving."""
    BODY = "body"
    """The body of a request is arriving, or is awaited."""
    DRAIN = "drain"
    """The request was refused, or answered before its body had arrived."""
    BUSY = "busy"
    """A whole request has arrived and is being answered."""
    SENDING = "sending"
    """A reply is being sent that the client has not read so far that the rest fits into the system's buffers."""
    IDLE = "idle"
    """Every request has been answered."""


class UpgradelessParser:
    """The parser of httptools, changed so that it treats an `Upgrade` header like any other header.

    After a head with `Upgrade`, httptools takes everything, the body included, for another protocol. So the head is
    parsed a second time without its `Upgrade`: then the body is read by its length.
    """

    def __init__(self, protocol: "ClientConnection") -> None:
        self._protocol: Final = protocol
        self._parser = _new_parser(protocol)

    def feed_data(self, data: bytes) -> None:
        """Parse more bytes; HttpParserError if they are not HTTP."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return
            self._read_head_again()
            if not data:
                return

    def _read_head_again(self) -> None:
        head = self._protocol.head_without_upgrade()
        self._parser = _new_parser(self._protocol)
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade as again:
            raise httptools.HttpParserError("CONNECT is not answered here") from again

    def is_upgrade(self) -> bool:
        """Whether httptools takes the head that it has just parsed for a change to another protocol."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """Always False."""
        return False

    def should_keep_alive(self) -> bool:
        """Whether the connection may be used for another request."""
        return bool(self._parser.should_keep_alive())

    def get_method(self) -> bytes:
        """The method of the request."""
        return bytes(self._parser.get_method())

    def get_http_version(self) -> str:
        """The version of HTTP that the request is written in."""
        return str(self._parser.get_http_version())


def _new_parser(protocol: "ClientConnection") -> Any:  # noqa: ANN401 - a vendor's class
    parser = httptools.HttpRequestParser(protocol)
    if hasattr(parser, "set_dangerous_leniencies"):  # as uvicorn does: bytes after the last request are ignored
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class ClientConnection(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """uvicorn's protocol, with a limit on heads; it tells the front each change of its phase."""

    def __init__(self, front: "Front", **of_uvicorn: Any) -> None:  # noqa: ANN401 - what its base class takes
        super().__init__(**of_uvicorn)
        self.phase = Stage.NEW
        self._front: Final = front
        self.parser: Any = UpgradelessParser(self)
        self._part: Stage | None = None
        """HEAD or BODY if that part of a request has not arrived completely."""
        self._unread = 0
        """The bytes received since the parser last finished a part of a request."""
        self._answering = 0
        self._refused = False
        self._upgrading = False
        self._sending = False
        self._unparsed = memoryview(b"")

    # -- from the transport

    def connection_made(self, transport: "asyncio.Transport") -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` at the first byte that the system does not take
        self._front.entered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._front.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read requests. A head that is too large is refused before anything else is checked."""
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, until many requests wait: each of them takes far more memory than its bytes."""
        while self._unparsed and len(self.pipeline) < _MOST_AHEAD:
            if self._refused or self.transport.is_closing():
                self._unparsed = memoryview(b"")
                break
            size = _BODY_SLICE_BYTES if self._part is Stage.BODY else _SLICE_BYTES
            piece, self._unparsed = bytes(self._unparsed[:size]), self._unparsed[size:]
            self._unread += len(piece)
            super().data_received(piece)
            if self._unread > LARGEST_HEAD_BYTES and not self._refused:
                self.refuse(431, f"the head of a request may have at most {LARGEST_HEAD_BYTES} bytes")
        if self._unparsed:
            self.flow.pause_reading()
        self._settle_phase()

    def pause_writing(self) -> None:
        """The client reads more slowly than the reply is written."""
        super().pause_writing()
        self._sending = True
        self._settle_phase()

    def resume_writing(self) -> None:
        """The client has read nearly all of what was written."""
        super().resume_writing()
        self._sending = False
        self._settle_phase()

    # -- from the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._part = Stage.HEAD
        if not self._upgrading:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the URL has arrived."""
        if not self._upgrading:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has arrived."""
        if not self._upgrading and self._part is Stage.HEAD:  # trailers after a body are no headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The whole head has arrived."""
        if self.parser.is_upgrade():
            self._upgrading = True  # ignore it until its head has been parsed again
            return
        self._unread, self._part, self._upgrading = 0, Stage.BODY, False
        self._answering += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body has arrived."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        if self._upgrading:
            return
        self._unread, self._part = 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request has been answered."""
        self._answering -= 1
        if self._refused and self._answering <= (self._part is Stage.BODY):  # a broken body never ends
            self.transport.close()
            return
        super().on_response_complete()
        self._parse()

    def head_without_upgrade(self) -> bytes:
        """The head that was just parsed, without its `Upgrade`, to be parsed again."""
        self._upgrading = False
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(each for each in value.split(b",") if each.strip().lower() != b"upgrade")  # noqa: PLW2901
            if name not in _HOP_HEADERS:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # -- refusing

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP."""
        self.refuse(400, msg)

    def refuse(self, status: int, why: str) -> None:
        """Refuse a request and read nothing more. Earlier requests are answered, then the connection is closed."""
        if self._refused:
            return
        self._refused = True
        self._front.refused(str(status))
        in_body = self._part is Stage.BODY and self._answering == 1
        if self.transport.is_closing() or (self._answering and not in_body):
            return
        if not in_body:
            self._say(status, why)
            if self.transport.can_write_eof():
                self.transport.write_eof()  # closing with unread bytes could lose the reply
            self._settle_phase()
            return
        if not self.cycle.response_started:
            self._say(status, why)
        self.transport.close()  # this ends the wait for the rest of the body

    def _say(self, status: int, why: str) -> None:
        body = encode({"success": False, "error": why})
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    @property
    def unsent(self) -> int:
        """How many bytes of replies are in memory."""
        return int(self.transport.get_write_buffer_size())

    def end(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def too_slow(self) -> None:
        """The time for the connection's phase is over."""
        if self.phase is Stage.HEAD:
            self.refuse(408, "the head of the request came too slowly")
        else:
            self.end()

    def _settle_phase(self) -> None:
        phase = self._current_phase()
        if phase is not self.phase:
            self.phase = phase
            self._front.moved(self)

    def _current_phase(self) -> Stage:
        if self._sending:
            return Stage.SENDING
        if self._refused:
            return Stage.BUSY if self._answering else Stage.DRAIN
        if self._part is Stage.BODY:
            return Stage.BODY if self._answering else Stage.DRAIN
        if self._answering:
            return Stage.BUSY
        return Stage.IDLE if self._part is None else Stage.HEAD
