"""Whatever comes over a connection, what one request sends is never another's, and each reply is its own request's.

Conversations are made at random from a fixed seed, so each run tries the same ones. A conversation is a few requests on
one connection, sent in pieces that fall anywhere. What must become of each request is known when it is made.
"""

import http.client
import io
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.programs import DEADLINE
from support.queue_http import Served

CLOSED: Final = (BrokenPipeError, ConnectionResetError)
QUEUE: Final = "framing"
SMUGGLED: Final = "smuggled"
HOST: Final = b"Host: 127.0.0.1"
UPGRADES: Final = (
    (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    (b"CONNECTION: upgrade", b"UPGRADE: TLS/1.0"),
    (b"Upgrade: h2c",),
)


@dataclass(frozen=True)
class Request:
    """A request, and what must become of it."""

    text: bytes
    status: int
    """0: what follows cannot be understood, so it is refused with any 4xx or not at all, and nothing more is read."""
    says: str = ""
    """The reply names it, so that it cannot be another's."""
    stores: str = ""
    """The mark of the one message that it stores."""
    method: str = "GET"


def a_request(path: str, *lines: bytes, method: str = "GET", body: bytes = b"") -> bytes:
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), HOST, *lines]) + b"\r\n\r\n" + body


def innocent_looking(mark: str) -> str:
    """A text that is itself a whole request: it must stay a text."""
    body = json.dumps({"items": [{"queue": SMUGGLED, "payload": mark}]}).encode()
    length = b"Content-Length: %d" % len(body)
    return a_request("/api/v1/push", length, method="POST", body=body).decode()


class Maker:
    """Makes requests of all kinds."""

    def __init__(self, seed: str) -> None:
        self._chance: Final = random.Random(seed)
        self._seed: Final = seed
        self._number = 0

    def conversation(self) -> list[Request]:
        """A few requests; at most the last one is such that nothing can follow it."""
        choose = self._chance.choice
        whole = [choose(self._whole)() for _ in range(self._chance.randint(1, 6))]
        if self._chance.random() < 0.5:
            whole.append(choose(self._last)())
            whole.append(self.pushed())  # never carried out
        return whole

    def pieces(self, text: bytes) -> Iterator[bytes]:
        """The text in pieces: whole, byte by byte, or cut anywhere."""
        size = self._chance.choice([len(text), 1, 2, 7, 100, 4096, 65_536])
        if len(text) / size > 5_000:
            size = 1_000
        at = 0
        while at < len(text):
            until = at + (size if self._chance.random() < 0.8 else self._chance.randint(1, 2 * size))
            yield text[at:until]
            at = until

    # -- requests that are answered, and others may follow

    def pushed(self) -> Request:
        mark, body = self._push_body()
        more = self._chance.choice([(), (b"Expect: 100-continue",), *UPGRADES, (b"Connection: keep-alive",)])
        lines = [b"Content-Length: %d" % len(body), *more, b"X-Filler: " + b"x" * self._chance.choice([0, 10, 5_000])]
        self._chance.shuffle(lines)
        return Request(a_request("/api/v1/push", *lines, method="POST", body=body), 201, "queued", mark, "POST")

    def pushed_in_chunks(self) -> Request:
        mark, body = self._push_body()
        more = self._chance.choice([(), (b"Expect: 100-continue",), *UPGRADES])
        lines = [b"Transfer-Encoding: chunked", *more]
        self._chance.shuffle(lines)
        text = a_request("/api/v1/push", *lines, method="POST", body=self._in_chunks(body))
        return Request(text, 201, "queued", mark, "POST")

    def asked(self) -> Request:
        name = self._mark()
        return Request(a_request(f"/api/v1/resources/queues/{name}", *self._harmless()), 404, name)

    def asked_with_a_body(self) -> Request:
        """A GET whose body nobody reads."""
        name, body = self._mark(), innocent_looking("in a GET").encode()
        lines = (b"Content-Length: %d" % len(body), *self._harmless())
        return Request(a_request(f"/api/v1/resources/queues/{name}", *lines, body=body), 404, name)

    def only_the_head(self) -> Request:
        return Request(a_request("/health", method="HEAD"), 405, method="HEAD")

    def settled(self) -> Request:
        name = self._mark()
        body = json.dumps({"transactionId": name, "partitionId": "none", "leaseId": "none"}).encode()
        lines = (b"Content-Length: %d" % len(body), *self._harmless())
        return Request(a_request("/api/v1/ack", *lines, method="POST", body=body), 200, name, method="POST")

    def wrong_body(self) -> Request:
        body = innocent_looking("in a wrong body").encode()
        lines = (b"Content-Length: %d" % len(body), *self._harmless())
        return Request(a_request("/api/v1/push", *lines, method="POST", body=body), 400, "JSON", method="POST")

    def another_host(self) -> Request:
        body = innocent_looking("for another host").encode()
        head = b"POST /api/v1/push HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: %d\r\n\r\n" % len(body)
        return Request(head + body, 403, "--allow-host", method="POST")

    def empty_lines_before(self) -> Request:
        made = self.asked()
        return Request(b"\r\n" * self._chance.randint(1, 3) + made.text, made.status, made.says)

    @property
    def _whole(self) -> Sequence[Callable[[], Request]]:
        return (
            self.pushed, self.pushed, self.pushed_in_chunks, self.asked, self.asked_with_a_body, self.only_the_head,
            self.settled, self.wrong_body, self.another_host, self.empty_lines_before,
        )  # fmt: skip

    # -- requests that nothing can follow

    def closing(self) -> Request:
        made = self.asked()
        return Request(made.text.replace(HOST, HOST + b"\r\nConnection: close"), made.status, made.says)

    def of_the_old_version(self) -> Request:
        made = self.asked()
        return Request(made.text.replace(b"HTTP/1.1", b"HTTP/1.0"), made.status, made.says)

    def nonsense(self) -> Request:
        wrong = (
            b"nonsense\r\n\r\n", b"\x00\x01\x02\x03", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", b"GET /health HTTP/1.1\r\n: x\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rb\r\n\r\n", b"FETCH /health HTTP/1.1\r\n\r\n",
        )  # fmt: skip
        return Request(self._chance.choice(wrong), 0)

    def contradicting(self) -> Request:
        smuggled = innocent_looking("behind lengths").encode()
        lines = self._chance.choice([
            (b"Content-Length: 5", b"Content-Length: %d"), (b"Content-Length: %d", b"Content-Length: 0"),
            (b"Content-Length: %d", b"Transfer-Encoding: chunked"),
            (b"Transfer-Encoding: chunked", b"Content-Length: %d"),
            (b"Transfer-Encoding: identity, chunked, x", b"X: %d"), (b"Transfer-Encoding: x", b"X: %d"),
            (b"Transfer-Encoding:\x0bchunked", b"X: %d"), (b"Transfer-Encoding : chunked", b"X: %d"),
            (b"Content-Length: +%d",), (b"Content-Length: -%d",), (b"Content-Length : %d",), (b"Content-Length: %d,5",),
            (b"Content-Length: 0x%d",), (b"Content-Length: %d 5",), (b"Content-Length: 9" + b"9" * 30, b"X: %d"),
            (b"X: a", b" Content-Length: %d"), (b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: z%d"),
        ])  # fmt: skip
        shown = [each % len(smuggled) if b"%d" in each else each for each in lines]
        return Request(a_request("/api/v1/push", *shown, method="POST", body=smuggled), 0, method="POST")

    def broken_chunks(self) -> Request:
        smuggling = self._in_chunks(innocent_looking("in chunks").encode()).replace(
            b"0\r\n", b"0\r\nContent-Length: 7\r\n"
        )
        broken = (
            b"zz\r\n",
            b"-1\r\n",
            b"5\r\nhello!!\r\n",
            b"\r\n",
            b"fffffffffffffffff\r\n",
            b"1;\x00\r\n",
            smuggling,
        )
        lines = (b"Transfer-Encoding: chunked",)
        return Request(
            a_request("/api/v1/push", *lines, method="POST", body=self._chance.choice(broken)), 0, method="POST"
        )

    def connecting(self) -> Request:
        return Request(b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 0, method="CONNECT")

    def too_large(self) -> Request:
        return Request(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 0)

    @property
    def _last(self) -> Sequence[Callable[[], Request]]:
        return (
            self.closing, self.of_the_old_version, self.nonsense, self.contradicting, self.contradicting,
            self.broken_chunks, self.connecting, self.too_large,
        )  # fmt: skip

    # -- parts

    def _mark(self) -> str:
        self._number += 1
        return f"{self._seed}-{self._number}"

    def _push_body(self) -> tuple[str, bytes]:
        mark = self._mark()
        filler = innocent_looking(mark) + "x" * self._chance.choice([0, 0, 0, 1_000, 70_000, 300_000])
        return mark, json.dumps({"items": [{"queue": QUEUE, "payload": [mark, filler]}]}).encode()

    def _harmless(self) -> Sequence[bytes]:
        return self._chance.choice([(), *UPGRADES, (b"X-Forwarded-For: 1.2.3.4",)])

    def _in_chunks(self, body: bytes) -> bytes:
        parts, at = [], 0
        while at < len(body):
            size = self._chance.randint(1, max(2, len(body) // 3))
            piece = body[at : at + size]
            extension = self._chance.choice([b"", b";a=b", b";" + b"x" * 100])
            parts.append(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
            at += size
        trailer = self._chance.choice([b"", b"X-Trailer: GET / HTTP/1.1\r\n"])
        return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


class Replies:
    """Reads the replies of one connection, each by itself."""

    def __init__(self, heard: bytes) -> None:
        self._heard = io.BytesIO(heard)

    def makefile(self, *_: object) -> io.BytesIO:
        """As `HTTPResponse` asks for it; it closes its copy."""
        return self._heard

    def read(self, methods: Sequence[str]) -> list[tuple[int, str]]:
        """Status and text of each reply to requests of these methods, without interim ones."""
        found = []
        text = self._heard.getvalue()
        for method in methods:
            text = re.sub(rb"\A(HTTP/1\.1 100 [^\r]*\r\n\r\n)+", b"", text)
            if not text:
                break
            self._heard = io.BytesIO(text)
            self._heard.close = lambda: None  # type: ignore[method-assign]
            reply = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
            reply.begin()
            found.append((reply.status, reply.read().decode()))
            text = text[self._heard.tell() :]
        assert re.sub(rb"HTTP/1\.1 100 [^\r]*\r\n\r\n", b"", text) == b"", "there are more replies than requests"
        return found


def heard_from(server: Served, pieces: Iterator[bytes]) -> bytes:
    """Send these, then say that nothing more comes once everything was answered or refused; returns all replies."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as peer,
        ThreadPoolExecutor(1) as thread,
    ):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        heard: list[bytes] = []

        def hear() -> None:
            with suppress(*CLOSED):
                heard.extend(iter(lambda: peer.recv(65_536), b""))

        hearing = thread.submit(hear)
        with suppress(*CLOSED):
            for piece in pieces:
                peer.sendall(piece)
        hearing.result(2 * DEADLINE)
    return b"".join(heard)


END: Final = Request(a_request("/api/v1/resources/queues/the-end", b"Connection: close"), 404, "the-end")


def talk(server: Served, maker: Maker) -> list[str]:
    """Hold one conversation; returns the marks of the messages that it must have stored."""
    requests = maker.conversation()
    answered = []
    for each in requests:
        answered.append(each)
        if not each.status or b"Connection: close" in each.text or b"HTTP/1.0" in each.text:
            break
    else:
        requests.append(END)
        answered.append(END)

    heard = heard_from(server, maker.pieces(b"".join(each.text for each in requests)))

    replies = Replies(heard).read([each.method for each in answered])
    shown = f"{[each.text[:300] for each in requests]}\n{[(status, text[:200]) for status, text in replies]}"
    for each, (status, text) in zip(answered, replies, strict=False):
        assert status == each.status or (not each.status and 400 <= status < 500), shown
        assert each.says in text, shown
    missing = answered[len(replies) :]
    assert not any(each.status for each in missing), shown
    return [each.stores for each in answered if each.stores]


@pytest.mark.parametrize("conversations", [150, pytest.param(5_000, marks=pytest.mark.long)])
def test_what_one_request_sends_is_never_anothers(tmp_path: Path, conversations: int) -> None:
    makers = [Maker(f"c{number}") for number in range(conversations)]
    with Served(tmp_path) as server:
        with ThreadPoolExecutor(4) as threads:
            talks = [threads.submit(talk, server, maker) for maker in makers]
            expected = Counter(mark for each in talks for mark in each.result(20 * DEADLINE))

        found = list(stored(server))
        assert Counter(mark for mark, _ in found) == expected, "each message was stored once, and no other"
        assert set(expected.values()) == {1}
        assert [mark for mark, text in found if not text.startswith(innocent_looking(mark))] == []
        queues = httpx.get(f"{server.url}/api/v1/resources/queues").json()["queues"]
        assert [each["name"] for each in queues] == [QUEUE]
        assert 'status="500"' not in httpx.get(f"{server.url}/metrics/prometheus").text
        assert "Traceback" not in server.program.output
        assert " ERROR " not in server.program.output


def stored(server: Served) -> Iterator[Any]:
    """The payloads of all messages."""
    while True:
        path = f"{server.url}/api/v1/pop/queue/{QUEUE}?batch=1000&autoAck=true"
        answer = httpx.get(path, timeout=DEADLINE)
        if answer.status_code == 204:
            return
        yield from (each["data"] for each in answer.json()["messages"])
