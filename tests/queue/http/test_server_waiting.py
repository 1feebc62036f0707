"""Long polls and consumers that disconnect: nobody waits too long, and no message is lost to a gone consumer."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pump.queue.vocabulary import PopRequest, PopResult
from support.queue_http import InProcess, data
from support.queue_http_fixtures import Serving
from support.waiting import eventually


def scope(path: str, query: str = "") -> dict[str, Any]:
    """A GET request in the form in which an ASGI server passes it on."""
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 5000),
        "root_path": "",
    }


class Peer:
    """A consumer at the other end of a connection, which a test can close at any time."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.on_send: Callable[[Mapping[str, Any]], None] = lambda _message: None
        self._begun = False
        self._gone = threading.Event()
        self._wake: Callable[[], object] = lambda: None

    def hang_up(self) -> None:
        self._gone.set()
        self._wake()

    async def receive(self) -> Mapping[str, Any]:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        if not self._gone.is_set():
            await woken.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        self.on_send(message)
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def parked(http: InProcess) -> int:
    """The number of consumers that wait at this moment."""
    text = http.get("/metrics/prometheus").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("pump_queue_parked_consumers{")]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


def uncounted(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The data of the messages; checks that no attempt was counted."""
    assert [(each["retries"], each["crashes"]) for each in messages] == [(0, 0)] * len(messages)
    return data(messages)


@pytest.mark.requirement("Q-59")
@pytest.mark.parametrize("milliseconds", [300, 700])
def test_a_consumer_waits_as_long_as_it_says(http: InProcess, milliseconds: int) -> None:
    begun = time.monotonic()

    answer = http.get("/api/v1/pop/queue/q", params={"wait": "true", "timeout": str(milliseconds)})

    assert (answer.status, answer.body) == (204, b"")
    assert abs(time.monotonic() - begun - milliseconds / 1000) <= 0.2


@pytest.mark.requirement("Q-59")
def test_a_push_wakes_who_waits(http: InProcess) -> None:
    waiting = http.begin("GET", "/api/v1/pop/queue/q?wait=true&timeout=20000")
    eventually(lambda: parked(http) == 1)

    http.push("q", "here")
    pushed = time.monotonic()

    assert data(waiting.result(10).json["messages"]) == ["here"]
    assert time.monotonic() - pushed < 0.1


@pytest.mark.requirement("Q-59")
def test_a_message_wakes_one_of_many_and_the_others_wait_on(http: InProcess) -> None:
    waiting = [http.begin("GET", "/api/v1/pop/queue/q?wait=true&timeout=20000") for _ in range(20)]
    eventually(lambda: parked(http) == 20)

    for number in range(20):
        http.push("q", number, partition=str(number))

    assert sorted(data([message for each in waiting for message in each.result(10).json["messages"]])) == list(
        range(20)
    )


def test_who_does_not_wait_is_answered_at_once(http: InProcess) -> None:
    begun = time.monotonic()

    assert http.get("/api/v1/pop/queue/q?timeout=20000").status == 204

    assert time.monotonic() - begun < 5


@pytest.mark.requirement("Z-10")
def test_a_consumer_that_hangs_up_while_it_waits_takes_nothing(http: InProcess) -> None:
    peer = Peer()
    request = http.raw(scope("/api/v1/pop/queue/q", "wait=true&timeout=20000"), peer.receive, peer.send)
    eventually(lambda: parked(http) == 1)

    peer.hang_up()
    request.result(10)
    http.push("q", "here")

    assert parked(http) == 0
    assert uncounted(http.pop("q", wait="true", timeout=10_000)) == ["here"]


def test_a_consumer_that_has_hung_up_before_takes_nothing(http: InProcess) -> None:
    http.push("q", "here")
    peer = Peer()
    peer._begun = True
    peer.hang_up()

    http.raw(scope("/api/v1/pop/queue/q"), peer.receive, peer.send).result(10)

    assert [each["deliveries"] for each in http.pop("q")] == [1]


@pytest.mark.requirement("Z-10")
@pytest.mark.parametrize("how", ["silently", "with an error"])
def test_what_cannot_be_sent_goes_back_uncounted(http: InProcess, how: str) -> None:
    http.push("q", 1, 2)
    peer = Peer()

    def break_off(_message: Mapping[str, Any]) -> None:
        peer.hang_up()
        if how == "with an error":
            raise BrokenPipeError

    peer.on_send = break_off

    http.raw(scope("/api/v1/pop/queue/q", "batch=2"), peer.receive, peer.send).result(10)

    assert uncounted(http.pop("q", batch=2)) == [1, 2]
    assert http.get("/metrics").json["counters"]["pump_queue_returned_messages_total"] == 2


@pytest.mark.parametrize("payload", [1, "x" * 200_000])
def test_who_goes_with_the_last_byte_has_the_message(http: InProcess, payload: object) -> None:
    http.push("q", payload)
    peer = Peer()
    received = 0

    def read(message: Mapping[str, Any]) -> None:
        nonlocal received
        received += len(message.get("body", b""))
        lengths = [int(value) for each in peer.sent[:1] for name, value in each["headers"] if name == b"content-length"]
        if received in lengths:
            peer.hang_up()

    peer.on_send = read

    http.raw(scope("/api/v1/pop/queue/q"), peer.receive, peer.send).result(10)

    assert received > len(str(payload))
    assert http.pop("q") == []
    assert http.get("/metrics").json["counters"]["pump_queue_returned_messages_total"] == 0


class Slow:
    """An engine whose pop waits until it is allowed to go on."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.popping = threading.Event()
        self.allowed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def pop(self, want: PopRequest) -> PopResult:
        self.popping.set()
        assert self.allowed.wait(10)
        taken: PopResult = self._engine.pop(want)
        return taken


@pytest.mark.parametrize("query", ["", "wait=true&timeout=20000"])
def test_what_is_taken_while_a_consumer_hangs_up_goes_back(serving: Serving, file_engine: Any, query: str) -> None:
    slow = Slow(file_engine)
    http = serving(slow)
    http.push("q", "here")
    peer = Peer()
    request = http.raw(scope("/api/v1/pop/queue/q", query), peer.receive, peer.send)
    assert slow.popping.wait(10)

    peer.hang_up()
    slow.allowed.set()
    request.result(10)

    assert uncounted(http.pop("q", wait="true", timeout=10_000)) == ["here"]


def test_those_who_wait_are_answered_when_the_server_closes(http: InProcess) -> None:
    waiting = [http.begin("GET", f"/api/v1/pop/queue/{queue}?wait=true&timeout=60000") for queue in "ab"]
    eventually(lambda: parked(http) == 2)

    http.on_loop(http.server.stop_waiting)

    assert [each.result(10).status for each in waiting] == [204, 204]
    assert http.get("/api/v1/pop/queue/a?wait=true&timeout=60000").status == 204
    assert http.get("/health").json["server"] == "closing"


def test_a_pipelined_request_does_not_end_the_wait(http: InProcess) -> None:
    peer = Peer()
    first = peer.receive
    calls = 0

    async def receive() -> Mapping[str, Any]:
        nonlocal calls
        calls += 1
        return {"type": "http.request", "body": b"", "more_body": False} if calls < 4 else await first()

    request = http.raw(scope("/api/v1/pop/queue/q", "wait=true&timeout=20000"), receive, peer.send)
    eventually(lambda: parked(http) == 1)

    http.push("q", "here")
    request.result(10)

    assert peer.status == 200
