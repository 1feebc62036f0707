"""Slow bodies: each has a limited time, gets a reply, and delays no other request."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from typing import Any, Self

import pytest
import uvicorn

from pump.clock import Clock, ManualClock, SystemClock
from pump.queue.engine import Engine
from pump.queue.http import request as server_request
from pump.queue.http.request import BODY_SECONDS
from pump.queue.http.server import QueueServer
from support.programs import DEADLINE
from support.waiting import eventually

BODY = b'{"items":[{"queue":"q","payload":"here"}]}'
HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n" % len(BODY)
POP = b"GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
OF_THE_SERVER = 1
"""The number of waits on the clock without any request: that of maintenance."""


@contextmanager
def listening(engine: Engine, clock: Clock) -> Iterator[int]:
    """A server at a port of its own, with the clock of a test."""
    server = uvicorn.Server(uvicorn.Config(QueueServer(engine, clock=clock), lifespan="on", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            eventually(lambda: server.started)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(DEADLINE)
    assert not thread.is_alive()


class Peer:
    """A client that can send byte by byte."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, said: bytes) -> None:
        self._socket.sendall(said)

    def hear(self) -> bytes:
        """The next bytes of the reply."""
        return self._socket.recv(65_536)

    def hear_all(self) -> bytes:
        """All bytes until the server closes the connection; bytes that it did not read cause a reset."""
        heard: list[bytes] = []
        with suppress(ConnectionResetError):
            heard.extend(iter(self.hear, b""))
        return b"".join(heard)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; returns the status and the body of the reply."""
        self.say(request)
        with HTTPResponse(self._socket) as answer:
            answer.begin()
            return answer.status, answer.read()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def port(file_engine: Engine, clock: ManualClock) -> Iterator[int]:
    with listening(file_engine, clock) as found:
        clock.wait_for_sleepers(OF_THE_SERVER)
        yield found


@pytest.fixture
def peer(port: int) -> Iterator[Peer]:
    with Peer(port) as found:
        yield found


def waits(clock: ManualClock) -> int:
    """The number of waits on the clock at this moment."""
    return len(clock._agenda)


def refusal(answer: bytes) -> Any:
    """The text of a 408 reply, after which the connection is closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head.lower()
    assert b"content-type: application/json" in head.lower()
    return json.loads(body)


def popped(port: int) -> bytes:
    """The messages that can be popped; b"" if there are none."""
    with Peer(port) as other:
        return other.ask(POP)[1]


@pytest.mark.requirement("Z-10")
@pytest.mark.parametrize("come", [b"", BODY[:10]], ids=["nothing", "a part"])
def test_a_body_that_does_not_come_in_time_is_answered_and_its_connection_closed(
    port: int, peer: Peer, clock: ManualClock, come: bytes
) -> None:
    peer.say(HEAD + b"\r\n" + come)
    clock.wait_for_sleepers(OF_THE_SERVER + 1)

    clock.advance(BODY_SECONDS)

    error = {"success": False, "error": "the body of a request must arrive within 30 seconds"}
    assert refusal(peer.hear_all()) == error
    assert popped(port) == b""


def test_a_body_without_a_length_has_no_more_time(peer: Peer, clock: ManualClock) -> None:
    peer.say(b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
    clock.wait_for_sleepers(OF_THE_SERVER + 1)

    clock.advance(BODY_SECONDS)

    assert refusal(peer.hear_all())["success"] is False


def test_a_byte_now_and_then_buys_no_time(peer: Peer, clock: ManualClock) -> None:
    peer.say(HEAD + b"\r\n")
    clock.wait_for_sleepers(OF_THE_SERVER + 1)

    for byte in range(int(BODY_SECONDS)):
        peer.say(BODY[byte : byte + 1])
        clock.advance(1.0)

    assert refusal(peer.hear_all())["success"] is False


def test_a_body_that_comes_in_pieces_but_in_time_is_as_good_as_any(port: int, peer: Peer, clock: ManualClock) -> None:
    peer.say(HEAD + b"\r\n" + BODY[:10])
    clock.wait_for_sleepers(OF_THE_SERVER + 1)
    clock.advance(BODY_SECONDS - 1.0)

    status, _ = peer.ask(BODY[10:])

    assert status == 201
    assert b'"here"' in popped(port)
    eventually(lambda: waits(clock) == OF_THE_SERVER)


def test_a_connection_that_was_slow_once_is_as_good_as_any(peer: Peer, clock: ManualClock) -> None:
    for _ in range(2):
        peer.say(HEAD + b"\r\n")
        clock.wait_for_sleepers(OF_THE_SERVER + 1)
        clock.advance(BODY_SECONDS - 1.0)

        assert peer.ask(BODY)[0] == 201


def test_who_asks_before_it_sends_is_told_to_go_on(peer: Peer, clock: ManualClock) -> None:
    peer.say(HEAD + b"Expect: 100-continue\r\n\r\n")
    told = peer.hear()

    assert told.startswith(b"HTTP/1.1 100 ")
    assert peer.ask(BODY)[0] == 201


def test_who_hangs_up_amidst_its_body_leaves_nothing_behind(port: int, clock: ManualClock) -> None:
    with Peer(port) as gone:
        gone.say(HEAD + b"\r\n" + BODY[:-1])
        clock.wait_for_sleepers(OF_THE_SERVER + 1)

    eventually(lambda: waits(clock) == OF_THE_SERVER)
    assert popped(port) == b""


@pytest.mark.requirement("Z-11")
def test_many_slow_ones_hold_up_nobody(port: int, clock: ManualClock) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(Peer(port)) for _ in range(100)]
        for each in slow:
            each.say(HEAD + b"\r\n" + BODY[:1])
        clock.wait_for_sleepers(OF_THE_SERVER + len(slow))

        with Peer(port) as quick:
            begun = time.monotonic()
            assert quick.ask(HEAD + b"\r\n" + BODY)[0] == 201
            assert b'"here"' in quick.ask(POP)[1]
            assert time.monotonic() - begun < BODY_SECONDS / 2

        clock.advance(BODY_SECONDS)
        assert [refusal(each.hear_all())["success"] for each in slow] == [False] * len(slow)
    assert popped(port) == b""


@pytest.mark.requirement("Z-10")
def test_the_time_is_that_of_the_clock_on_the_wall(file_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_request, "BODY_SECONDS", 0.3)

    with listening(file_engine, SystemClock()) as port, Peer(port) as peer:
        begun = time.monotonic()
        peer.say(HEAD + b"\r\n")
        stop = trickle(peer)
        answer = peer.hear_all()
        stop()

    assert refusal(answer)["error"] == "the body of a request must arrive within 0.3 seconds"
    assert 0.3 <= time.monotonic() - begun < DEADLINE


def trickle(peer: Peer) -> Callable[[], None]:
    """Send a space from time to time, until stopped."""
    ended = threading.Event()

    def say() -> None:
        with suppress(OSError):
            while not ended.wait(0.05):
                peer.say(b" ")

    thread = threading.Thread(target=say)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()

    return stop


def test_every_route_that_takes_a_body_says_that_it_may_come_too_late(port: int) -> None:
    with Peer(port) as peer:
        _, body = peer.ask(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

    operations = [each for path in json.loads(body)["paths"].values() for each in path.values()]
    assert {"408" in each["responses"] for each in operations if "requestBody" in each} == {True}
