"""A load generator for HTTP/1.1 that costs little: one thread, raw connections that stay open, bodies made beforehand.

It shares the machine with what it measures. So it reads of an answer the status, the length and the bytes, no more.
"""

import selectors
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

SILENT_SECONDS: Final = 60.0
_ROOM: Final = 1 << 20
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


Caller = Generator[bytes, Answer, None]
"""Yields a whole request, is sent its answer, and goes on until it has no more to ask."""


class Load(NamedTuple):
    """What a run took."""

    seconds: float
    own_cpu_seconds: float
    """Of this thread, which is the generator's own cost."""


class Connection:
    """One connection, on which one request is under way at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket: Final = socket.create_connection((parts.hostname or "", parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self._pieces: list[bytes] = []
        self._missing = -1
        """Bytes of the answer that are still to come; below 0 while its head is not complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Of its socket."""
        return self._socket.fileno()

    def send(self, request: bytes) -> None:
        """Ask."""
        self._socket.sendall(request)

    def receive(self) -> Answer | None:
        """Read what has come; the answer, once it is complete."""
        piece = self._socket.recv(_ROOM)
        if not piece:
            raise ConnectionError("the server has hung up")
        if self._missing < 0:
            piece = b"".join((*self._pieces, piece))
            self._pieces = [piece]
            self._missing = _whole_length(piece) - len(piece)
            if self._missing < -len(piece):
                return None
        else:
            self._pieces.append(piece)
            self._missing -= len(piece)
        return None if self._missing else self._complete()

    def ask(self, request: bytes) -> Answer:
        """Ask, and wait for the answer."""
        self.send(request)
        while (answer := self.receive()) is None:
            pass
        return answer

    def _complete(self) -> Answer:
        whole = b"".join(self._pieces)
        self._pieces, self._missing = [], -1
        return Answer(int(whole[9:12]), whole[whole.index(_END) + len(_END) :])


def _whole_length(start: bytes) -> int:
    """Of an answer of which this much has come; below 0 as long as that is not known."""
    head = start.find(_END)
    if head < 0:
        return -1
    where = start.lower().find(_LENGTH, 0, head)
    length = 0 if where < 0 else int(start[where + len(_LENGTH) : start.index(b"\r", where)])
    return head + len(_END) + length


def post(path: str, body: bytes) -> bytes:
    """A request that carries JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + _END + body


def get(path: str) -> bytes:
    """A request that carries nothing."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def drive(url: str, callers: Sequence[Caller]) -> Load:
    """Let each caller ask on a connection of its own, all at once, until none has any more to ask."""
    with ExitStack() as stack:
        watch = stack.enter_context(selectors.DefaultSelector())
        for caller in callers:
            connection = stack.enter_context(Connection(url))
            watch.register(connection, selectors.EVENT_READ, (connection, caller))
        began, cpu = time.perf_counter(), time.thread_time()
        for connection, caller in [key.data for key in watch.get_map().values()]:
            connection.send(next(caller))
        while watch.get_map():
            _turn(watch)
        return Load(time.perf_counter() - began, time.thread_time() - cpu)


def _turn(watch: selectors.BaseSelector) -> None:
    ready = watch.select(SILENT_SECONDS)
    if not ready:
        raise TimeoutError("the server does not answer")
    for key, _ in ready:
        connection, caller = key.data
        answer = connection.receive()
        if answer is None:
            continue
        try:
            connection.send(caller.send(answer))
        except StopIteration:
            watch.unregister(connection)
