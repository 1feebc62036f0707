"""One connection of a client: the head of a request has a size and a time, and no byte of one request is another's.

It is uvicorn's own protocol with checks before and after it. Of uvicorn it uses what stands without an underscore in
`HttpToolsProtocol`: `parser`, `cycle`, `flow`, `transport` and the callbacks of the parser; tried with 0.29 to 0.54.
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
"""So much of a head is read at once: it ends at most so many bytes behind its limit."""
_HOP_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})

_REASONS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
}


class Stage(Enum):
    """What a connection is at."""

    NEW = "new"
    """It has sent nothing yet."""
    HEAD = "head"
    """The head of a request has begun."""
    BODY = "body"
    """The body of a request has begun, or is awaited."""
    DRAIN = "drain"
    """It was answered before its body had come, or it was refused."""
    BUSY = "busy"
    """All of a request is here; it is being answered."""
    IDLE = "idle"
    """All that was asked is answered."""


class UpgradelessParser:
    """The parser of httptools, to which an `Upgrade` is a header like any other.

    To httptools, all that follows the head of such a request is another protocol, its body included. So the head is
    read a second time without its `Upgrade`: the body is then where its length says.
    """

    def __init__(self, protocol: "ClientConnection") -> None:
        self._protocol: Final = protocol
        self._parser = _new_parser(protocol)

    def feed_data(self, data: bytes) -> None:
        """Read more; HttpParserError where it is no HTTP."""
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
        """Whether httptools takes the head that it has just read for another protocol's beginning."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """Never."""
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
    if hasattr(parser, "set_dangerous_leniencies"):  # as uvicorn does: what follows a last request is not read
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class ClientConnection(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """uvicorn's protocol, whose heads are bounded, and which tells the front what it is at."""

    def __init__(self, front: "Front", **of_uvicorn: Any) -> None:  # noqa: ANN401 - what its base class takes
        super().__init__(**of_uvicorn)
        self.phase = Stage.NEW
        self._front: Final = front
        self.parser: Any = UpgradelessParser(self)
        self._part: Stage | None = None
        """HEAD or BODY, if a part of a request is missing."""
        self._unread = 0
        """Bytes since the parser last came to an end of something."""
        self._answering = 0
        self._refused = False
        self._upgrading = False

    # -- from the transport

    def connection_made(self, transport: "asyncio.Transport") -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._front.entered(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._front.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read requests. A head that is too large is refused before anything else is known of it."""
        while data and not self._refused:
            piece = data if self._part is Stage.BODY else data[:_SLICE_BYTES]
            data = data[len(piece) :]
            self._unread += len(piece)
            super().data_received(piece)
            if self._unread > LARGEST_HEAD_BYTES and not self._refused:
                self.refuse(431, f"the head of a request has at most {LARGEST_HEAD_BYTES} bytes")
        self._settle_phase()

    # -- from the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        self._part = Stage.HEAD
        if not self._upgrading:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of its URL."""
        if not self._upgrading:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it."""
        if not self._upgrading and self._part is Stage.HEAD:  # what stands behind a body is no header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is here."""
        if self.parser.is_upgrade():
            self._upgrading = True  # nothing of it counts until its head is read again
            return
        self._unread, self._part, self._upgrading = 0, Stage.BODY, False
        self._answering += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it is here."""
        if self._upgrading:
            return
        self._unread, self._part = 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request is answered."""
        self._answering -= 1
        if self._refused and self._answering <= (self._part is Stage.BODY):  # a body that is broken never ends
            self.transport.close()
            return
        super().on_response_complete()
        self._settle_phase()

    def head_without_upgrade(self) -> bytes:
        """The head that was just read, to be read once more."""
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
        """What was sent is no HTTP."""
        self.refuse(400, msg)

    def refuse(self, status: int, why: str) -> None:
        """Answer this, and read nothing more of it. What was asked before it is answered, and then it is closed."""
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
                self.transport.write_eof()  # a connection closed while something is unread takes the answer back
            self._settle_phase()
            return
        if not self.cycle.response_started:
            self._say(status, why)
        self.transport.close()  # whoever waits for the rest of the body learns that nobody sends it

    def _say(self, status: int, why: str) -> None:
        body = encode({"success": False, "error": why})
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def end(self) -> None:
        """Close it at once."""
        self.transport.abort()

    def too_slow(self) -> None:
        """Its time is over."""
        if self.phase is Stage.HEAD:
            self.refuse(408, "the head of a request has to come faster")
        else:
            self.end()

    def _settle_phase(self) -> None:
        phase = self._current_phase()
        if phase is not self.phase:
            self.phase = phase
            self._front.moved(self)

    def _current_phase(self) -> Stage:
        if self._refused:
            return Stage.BUSY if self._answering else Stage.DRAIN
        if self._part is Stage.BODY:
            return Stage.BODY if self._answering else Stage.DRAIN
        if self._answering:
            return Stage.BUSY
        return Stage.IDLE if self._part is None else Stage.HEAD
