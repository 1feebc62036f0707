"""Checks before a request is understood: its head, its framing, too many connections, too few open files."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pump.queue.http import front
from pump.queue.http.connection import Stage
from support.programs import DEADLINE, pump_run
from support.queue_http import Served, data
from support.waiting import eventually

HALF_A_HEAD = b"GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
CLOSED = (BrokenPipeError, ConnectionResetError)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that leave nothing behind."""
    with Served(tmp_path_factory.mktemp("front")) as server:
        yield server


def connection(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)


def said_until_end(peer: socket.socket) -> bytes:
    heard: list[bytes] = []
    with suppress(*CLOSED):
        heard.extend(iter(lambda: peer.recv(65_536), b""))
    return b"".join(heard)


def pushed(queue: str, payload: object, *more: bytes) -> bytes:
    """The bytes of a push request."""
    body = json.dumps({"items": [{"queue": queue, "payload": payload}]}).encode()
    lines = [b"POST /api/v1/push HTTP/1.1", b"Host: 127.0.0.1", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def asked(path: str, *more: bytes) -> bytes:
    return b"\r\n".join([b"GET %s HTTP/1.1" % path.encode(), b"Host: 127.0.0.1", *more]) + b"\r\n\r\n"


LAST = asked("/openapi.json", b"Connection: close")


def statuses(answers: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def stored(server: Served, queue: str) -> list[Any]:
    """Pop and return the messages of a queue."""
    query = {"batch": "1000", "autoAck": "true"}
    answer = httpx.get(f"{server.url}/api/v1/pop/queue/{queue}", params=query, timeout=DEADLINE)
    return data(answer.json()["messages"]) if answer.status_code == 200 else []


def memory(server: Served) -> int:
    """The server's memory in bytes."""
    status = Path(f"/proc/{server.program.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


# -- heads


@pytest.mark.parametrize("line", [b"X-Large: " + b"x" * 70_000, b"\r\n".join(b"X-%d: y" % n for n in range(9_000))])
def test_a_head_that_is_too_large_is_refused_before_anything_else_is_known(shared: Served, line: bytes) -> None:
    with connection(shared) as peer:
        with suppress(*CLOSED):
            peer.sendall(b"GET /health HTTP/1.1\r\nHost: elsewhere\r\n" + line + b"\r\n\r\n")
        answer = said_until_end(peer)

    assert statuses(answer) == [431]
    assert b"at most 65536 bytes" in answer


def test_a_head_that_never_ends_costs_no_memory(shared: Served) -> None:
    httpx.get(f"{shared.url}/health")
    before = memory(shared)

    with connection(shared) as peer, suppress(*CLOSED):
        peer.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Large: ")
        for _ in range(300):
            peer.sendall(b"x" * 1_000_000)

    assert memory(shared) - before < 20_000_000
    assert httpx.get(f"{shared.url}/health").status_code == 200


def test_what_stands_behind_a_body_is_bounded_too(shared: Served) -> None:
    before = memory(shared)
    head = b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"

    with connection(shared) as peer, suppress(*CLOSED):
        peer.sendall(head + b"2\r\n{}\r\n0\r\nX-Trailer: ")
        for _ in range(100):
            peer.sendall(b"x" * 1_000_000)

    assert memory(shared) - before < 20_000_000


HURRIED = """
import sys
from pump.queue.http import front
from pump.queue.http.connection import Stage
front._LIMITS = {{**front._LIMITS, front.Stage.NEW: {seconds}, front.Stage.HEAD: {seconds}}}
from pump.command.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("seconds", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_a_head_has_limited_time(tmp_path: Path, seconds: float) -> None:
    assert front._LIMITS[Stage.NEW] == front._LIMITS[Stage.HEAD] == front.HEAD_SECONDS == 10

    class Hurried(Served):
        def command(self, *arguments: str) -> list[str]:
            return [sys.executable, "-c", HURRIED.format(seconds=seconds), *arguments]

    with Hurried(tmp_path) as server, connection(server) as slow, connection(server) as silent:
        slow.sendall(HALF_A_HEAD)
        begun = time.monotonic()
        answer = said_until_end(slow)
        nothing = said_until_end(silent)
        took = time.monotonic() - begun

    assert statuses(answer) == [408]
    assert nothing == b""
    assert seconds - 0.5 < took < seconds + 15


# -- framing: no byte of one request is read as another's

UPGRADES = {
    "h2c": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    "websocket": (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    "unknown": (b"connection: upgrade", b"upgrade: anything/7"),
}


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("split", ["whole", "after the head", "each byte"])
def test_an_upgrade_is_ignored_and_its_body_is_its_own(shared: Served, upgrade: str, split: str) -> None:
    queue = f"{upgrade}-{split.replace(' ', '-')}"
    smuggled = pushed(queue, "smuggled").decode()
    request = pushed(queue, smuggled, *UPGRADES[upgrade])
    head = request.index(b"\r\n\r\n") + 4
    pieces = {"whole": [request], "after the head": [request[:head], request[head:]]}

    with connection(shared) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces.get(split, [request[at : at + 1] for at in range(len(request))]):
            peer.sendall(piece)
            time.sleep(0.05 if split == "after the head" else 0)
        peer.sendall(LAST)
        answers = said_until_end(peer)

    assert statuses(answers) == [201, 200]
    assert stored(shared, queue) == [smuggled]


def test_an_upgrade_with_a_body_in_chunks_is_ignored_too(shared: Served) -> None:
    body = b'{"items":[{"queue":"chunks","payload":1}]}'
    head = b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"

    with connection(shared) as peer:
        peer.sendall(chunked * 20 + LAST)
        answers = said_until_end(peer)

    assert statuses(answers) == [201] * 20 + [200]
    assert stored(shared, "chunks") == [1] * 20


@pytest.mark.parametrize(
    "wrong",
    [
        b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: %d\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\nTransfer-Encoding: x\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length : %d\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: +%d\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -%d\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n Content-Length: %d\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM %d\r\n\r\n",
    ],
    ids=["connect", "two", "both", "unknown", "space", "plus", "minus", "folded", "http2"],
)
def test_where_lengths_contradict_each_other_nothing_more_is_read(shared: Served, wrong: bytes) -> None:
    smuggled = pushed("contradiction", "smuggled")

    with connection(shared) as peer:
        with suppress(*CLOSED):
            peer.sendall(wrong % len(smuggled) + smuggled + LAST)
        answers = said_until_end(peer)

    assert [each // 100 for each in statuses(answers)] == [4]
    assert stored(shared, "contradiction") == []


def test_what_comes_before_something_wrong_is_answered(shared: Served) -> None:
    with connection(shared) as peer:
        peer.sendall(pushed("before", 1) + b"nonsense\r\n\r\n" + pushed("before", 2))
        answers = said_until_end(peer)

    assert statuses(answers) == [201]
    assert stored(shared, "before") == [1]


def test_a_body_that_is_broken_is_refused_at_once(shared: Served) -> None:
    with connection(shared) as peer:
        peer.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        begun = time.monotonic()
        answers = said_until_end(peer)

    assert statuses(answers) == [400]
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("size", [1, 7, 100, 5_000])
def test_requests_may_be_split_anywhere(shared: Served, size: int) -> None:
    queue, expects = f"split-{size}", (b"Expect: 100-continue",)
    requests = [pushed(queue, f"{number} " * 40, *(expects if number % 3 == 0 else ())) for number in range(12)]
    sent = b"".join(requests) + LAST

    with connection(shared) as peer, ThreadPoolExecutor(1) as threads:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        heard = threads.submit(said_until_end, peer)
        for at in range(0, len(sent), size):
            peer.sendall(sent[at : at + size])
        answers = heard.result(DEADLINE)

    assert [each for each in statuses(answers) if each != 100] == [201] * 12 + [200]
    assert stored(shared, queue) == [f"{number} " * 40 for number in range(12)]


# -- bodies


def test_the_token_is_looked_at_before_the_body(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("ann write 0123456789abcdef\n")
    with Served(tmp_path, "--tokens", "tokens.txt") as server, connection(server) as peer:
        peer.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n{")

        assert peer.recv(65_536).startswith(b"HTTP/1.1 401")
        begun = time.monotonic()
        said_until_end(peer)

        assert time.monotonic() - begun < front.DRAIN_SECONDS + 15


def test_unfinished_bodies_are_bounded_together(tmp_path: Path) -> None:
    with Served(tmp_path) as server, ExitStack() as stack:
        httpx.get(f"{server.url}/health")
        before = memory(server)
        for _ in range(60):
            peer = stack.enter_context(connection(server))
            peer.settimeout(0.2)
            with suppress(TimeoutError, *CLOSED):
                peer.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n\r\n")
                peer.sendall(b'{"items":[' + b" " * 9_900_000)

        assert httpx.get(f"{server.url}/health", timeout=DEADLINE).status_code == 200
        body = {"items": [{"queue": "q", "payload": "x" * 300_000}]}
        assert httpx.post(f"{server.url}/api/v1/push", json=body, timeout=2 * DEADLINE).status_code == 201
        assert memory(server) - before < 200_000_000


# -- many connections

SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
from pump.command.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Narrow(Served):
    """A server that may open only few files."""

    files = 1024

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", SERVER.format(files=self.files), *arguments]


def test_half_heads_without_end_keep_nobody_out(tmp_path: Path) -> None:
    front.raise_descriptor_limit()
    with Narrow(tmp_path) as server, ExitStack() as stack:
        for _ in range(1_100):
            stack.enter_context(connection(server)).sendall(HALF_A_HEAD)

        for number in range(20):
            begun = time.monotonic()
            assert httpx.get(f"{server.url}/health", timeout=DEADLINE).status_code == 200
            body = {"items": [{"queue": "q", "payload": number}]}
            assert httpx.post(f"{server.url}/api/v1/push", json=body, timeout=DEADLINE).status_code == 201
            assert time.monotonic() - begun < 10

        assert len(server.program.output) < 10_000


def test_more_consumers_than_files_wait_their_turn(tmp_path: Path) -> None:
    front.raise_descriptor_limit()
    with Narrow(tmp_path) as server, ExitStack() as stack:
        peers = [stack.enter_context(connection(server)) for _ in range(950)]
        for peer in peers:
            peer.sendall(asked("/api/v1/pop/queue/q?wait=true&timeout=3000", b"Connection: close"))

        answers = [statuses(said_until_end(peer)) for peer in peers]

        assert answers == [[204]] * 950
        assert server.program.output.count("all that the limit of open files allows") == 1
        assert httpx.get(f"{server.url}/health", timeout=DEADLINE).status_code == 200


def test_two_thousand_consumers_that_wait_are_answered(tmp_path: Path) -> None:
    if front.raise_descriptor_limit() < 2_400:
        pytest.skip("too few files may be open here")
    with Served(tmp_path) as server, ExitStack() as stack:
        peers = [stack.enter_context(connection(server)) for _ in range(2_000)]
        for peer in peers:
            peer.sendall(asked("/api/v1/pop/queue/q?wait=true&timeout=60000", b"Connection: close"))
        eventually(lambda: parked(server) == 2_000, DEADLINE)
        body = {"items": [{"queue": "q", "partition": str(number), "payload": number} for number in range(2_000)]}
        assert httpx.post(f"{server.url}/api/v1/push", json=body, timeout=DEADLINE).status_code == 201

        answers = [said_until_end(peer) for peer in peers]

    assert [statuses(each) for each in answers] == [[200]] * 2_000
    heard = [json.loads(each.partition(b"\r\n\r\n")[2])["messages"][0]["data"] for each in answers]
    assert sorted(heard) == list(range(2_000))


def parked(server: Served) -> int:
    found = re.findall(r"pump_queue_parked_consumers\{.*\} (\d+)", httpx.get(f"{server.url}/metrics/prometheus").text)
    return sum(map(int, found))


def test_the_soft_limit_of_open_files_is_raised() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)); "
        "from pump.queue.http.front import raise_descriptor_limit; print(raise_descriptor_limit(), "
        "resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )

    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert ended.stdout.split() == [str(2048 - front.RESERVED_DESCRIPTORS), "2048"]


# -- where it listens


def test_localhost_is_both_families(tmp_path: Path) -> None:
    families = {each[0] for each in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    with Served(tmp_path, "--host", "localhost") as server:
        urls = re.findall(r"http://\S+:\d+", server.program.output)

        assert len(urls) == len(families & {socket.AF_INET, socket.AF_INET6})
        assert [httpx.get(f"{url}/health").status_code for url in urls] == [200] * len(urls)


def test_a_port_of_one_family_in_use_is_said(served: Served, tmp_path: Path) -> None:
    ended = pump_run("queue", "serve", "--host", "localhost", "--port", str(served.port), folder=tmp_path)

    assert ended.returncode == 3
    assert "cannot listen on localhost" in ended.stderr
