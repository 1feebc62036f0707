"""Clients that mean harm: they do not read replies, ask thousands of things at once, send signals in storms."""

import json
import os
import re
import signal
import socket
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from pump.clock import ManualClock
from pump.queue.http import front
from pump.queue.http.connection import Stage
from support.programs import DEADLINE, PUMP, Program
from support.queue_http import Served
from support.waiting import eventually

CLOSED: Final = (BrokenPipeError, ConnectionResetError, TimeoutError)
LARGE: Final = "x" * 900_000


def connection(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)


def asked(path: str, *more: bytes) -> bytes:
    return b"\r\n".join([b"GET %s HTTP/1.1" % path.encode(), b"Host: 127.0.0.1", *more]) + b"\r\n\r\n"


def memory(server: Served, which: str = "VmHWM") -> int:
    """The most memory that the server has had, or what it has now (VmRSS), in bytes."""
    status = Path(f"/proc/{server.program.pid}/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def refused(server: Served, why: str) -> int:
    text = httpx.get(f"{server.url}/metrics/prometheus", timeout=4 * DEADLINE).text
    found = re.search(rf'refused_connections_total\{{why="{why}"\}} (\d+)', text)
    return int(found[1]) if found else 0


def push_large(server: Served, number: int) -> None:
    for _ in range(number):
        body = {"items": [{"queue": "q", "payload": LARGE}]}
        assert httpx.post(f"{server.url}/api/v1/push", json=body, timeout=DEADLINE).status_code == 201


# -- replies that nobody reads


def deaf(server: Served, stack: ExitStack) -> socket.socket:
    """A client with the smallest buffer."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(DEADLINE)
    made.connect(("127.0.0.1", server.port))
    return stack.enter_context(made)


class Sending:
    """Stands for a connection whose client does not read its reply."""

    phase = Stage.SENDING

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.ended = False

    def end(self) -> None:
        self.ended = True

    too_slow = end


def test_who_has_not_read_for_the_longest_time_makes_way() -> None:
    clock, why = ManualClock(), list[str]()
    door = front.Front(clock, why.append, most=100)
    connections = [Sending(10_000_000) for _ in range(9)]
    for each in connections[:8]:
        door.entered(each)  # type: ignore[arg-type]
        clock.advance(1.0)
    door.entered(connections[8])  # type: ignore[arg-type]

    door.end_slow()

    assert [each.ended for each in connections] == [True] * 3 + [False] * 6, "64 MB are left"
    assert why == ["unread"] * 3
    for each in connections[:3]:
        door.left(each)  # type: ignore[arg-type]
    door.end_slow()
    assert [each.ended for each in connections[3:]] == [False] * 6
    clock.advance(front.SEND_SECONDS + 1)
    door.end_slow()
    assert [each.ended for each in connections] == [True] * 9


def test_who_has_only_begun_to_read_is_given_a_second() -> None:
    clock = ManualClock()
    door = front.Front(clock, lambda _: None, most=100)
    connections = [Sending(10_000_000) for _ in range(20)]
    for each in connections:
        door.entered(each)  # type: ignore[arg-type]

    door.end_slow()
    young = [each.ended for each in connections]
    clock.advance(1.5)
    door.end_slow()

    assert not any(young)
    assert sum(each.ended for each in connections) == 14


@pytest.mark.long
def test_replies_that_nobody_reads_are_bounded_together(tmp_path: Path) -> None:
    with Served(tmp_path) as server, ExitStack() as stack:
        push_large(server, 11)
        messages = httpx.get(f"{server.url}/api/v1/pop/queue/q?batch=11", timeout=DEADLINE).json()["messages"]
        for each in messages:
            body = {**{name: each[name] for name in ("transactionId", "partitionId", "leaseId")}, "status": "dlq"}
            assert httpx.post(f"{server.url}/api/v1/ack", json=body, timeout=DEADLINE).status_code == 200
        before = memory(server)

        for _ in range(16):  # 10 MB for each
            deaf(server, stack).sendall(asked("/api/v1/dlq?limit=100"))

        eventually(lambda: refused(server, "unread") > 5, 4 * DEADLINE)
        page = httpx.get(f"{server.url}/api/v1/dlq?limit=100", timeout=2 * DEADLINE).json()
        assert len(page["messages"]) == 11
        eventually(lambda: memory(server, "VmRSS") - before < 250_000_000, 4 * DEADLINE)


HURRIED: Final = """
import sys
from pump.queue.http import front
front._LIMITS = {**front._LIMITS, front.Stage.SENDING: 1.0}
from pump.command.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Hurried(Served):
    """A server that gives a client one second to read a reply, instead of `SEND_SECONDS`."""

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", HURRIED, *arguments]


def test_who_does_not_read_its_messages_in_time_loses_them_to_others(tmp_path: Path) -> None:
    assert front._LIMITS[Stage.SENDING] == front.SEND_SECONDS == 60
    with Hurried(tmp_path) as server, ExitStack() as stack:
        push_large(server, 9)
        slow = deaf(server, stack)
        slow.sendall(asked("/api/v1/pop/queue/q?batch=9"))
        assert slow.recv(12) == b"HTTP/1.1 200"

        path = f"{server.url}/api/v1/pop/queue/q?batch=9&wait=true&timeout=20000"
        messages = httpx.get(path, timeout=DEADLINE).json()["messages"]

        assert [(each["retries"], each["crashes"]) for each in messages] == [(0, 0)] * 9
        assert refused(server, "slow") == 1


def test_a_reply_that_is_read_slowly_but_in_time_comes_whole(tmp_path: Path) -> None:
    with Served(tmp_path) as server, ExitStack() as stack:
        push_large(server, 9)
        slow = deaf(server, stack)
        slow.sendall(asked("/api/v1/pop/queue/q?batch=9", b"Connection: close"))
        heard = b"".join(iter(lambda: slow.recv(20_000), b""))

    assert len(json.loads(heard.partition(b"\r\n\r\n")[2])["messages"]) == 9


# -- requests without end


def test_requests_without_end_on_one_connection_cost_no_memory(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        httpx.get(f"{server.url}/health")
        before = memory(server)
        with connection(server) as peer, ThreadPoolExecutor(1) as threads:

            def hear() -> int:
                heard = 0
                with suppress(*CLOSED):
                    while piece := peer.recv(65_536):
                        heard += piece.count(b"HTTP/1.1 404")
                return heard

            hearing = threads.submit(hear)
            many = asked("/none") * 5_000
            with suppress(*CLOSED):
                for _ in range(4):
                    peer.sendall(many)
                peer.sendall(asked("/none", b"Connection: close"))
            answered = hearing.result(4 * DEADLINE)

        assert answered == 20_001
        assert memory(server) - before < 30_000_000


def test_requests_without_end_whose_replies_nobody_reads_cost_no_memory(tmp_path: Path) -> None:
    with Served(tmp_path) as server, ExitStack() as stack:
        httpx.get(f"{server.url}/health")
        before = memory(server)
        many = asked("/openapi.json") * 20_000
        for _ in range(20):
            peer = deaf(server, stack)
            peer.settimeout(0.3)
            with suppress(*CLOSED):
                peer.sendall(many)

        assert httpx.get(f"{server.url}/health", timeout=DEADLINE).status_code == 200
        assert memory(server) - before < 60_000_000


# -- signals

ANN, BOB, EVE = "a" * 16, "b" * 16, "e" * 16


def test_a_storm_of_sighups_ends_with_the_last_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann write {ANN}\nbob write {BOB}\n")
    with Served(tmp_path, "--tokens", "tokens") as server, ThreadPoolExecutor(4) as threads:
        ended = threading.Event()

        def ask() -> Counter[int]:
            """With a token that is always there."""
            found: Counter[int] = Counter()
            with httpx.Client(headers={"Authorization": f"Bearer {ANN}"}, timeout=DEADLINE) as client:
                while not ended.is_set():
                    found[client.get(f"{server.url}/api/v1/pop/queue/q").status_code] += 1
            return found

        asking = [threads.submit(ask) for _ in range(3)]
        for number in range(500):
            other = f"bob write {BOB}" if number % 2 else f"eve write {EVE}"
            (tmp_path / "next").write_text(f"ann write {ANN}\n{other}\n")
            (tmp_path / "next").rename(tokens)
            server.program.send(signal.SIGHUP)
        (tmp_path / "next").write_text(f"ann write {ANN}\n")
        (tmp_path / "next").rename(tokens)
        server.program.send(signal.SIGHUP)

        def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.get(f"{server.url}/api/v1/pop/queue/q", headers=headers, timeout=DEADLINE).status_code

        eventually(lambda: (status(BOB), status(EVE)) == (401, 401))
        ended.set()
        found = sum((each.result(DEADLINE) for each in asking), Counter[int]())
        assert set(found) == {204}
        assert (status(ANN), status(BOB), status(EVE)) == (204, 401, 401)
        server.program.send(signal.SIGTERM)
        assert server.program.ends() == 0


def test_a_slow_reading_does_not_bring_back_what_a_later_one_removed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann write {ANN}\n")
    with Served(tmp_path, "--tokens", "tokens") as server:

        def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.get(f"{server.url}/api/v1/pop/queue/q", headers=headers, timeout=DEADLINE).status_code

        tokens.unlink()
        os.mkfifo(tokens)
        server.program.send(signal.SIGHUP)
        with tokens.open("w") as slow:  # now the first reading has begun, and waits
            (tmp_path / "next").write_text(f"bob write {BOB}\n")
            (tmp_path / "next").rename(tokens)
            server.program.send(signal.SIGHUP)
            for _ in range(20):  # time enough for a second reading, if one came
                assert status(BOB) in {204, 401}
            slow.write(f"ann write {ANN}\n")
        server.program.says("tokens and keys were read again", 2)

        assert (status(ANN), status(BOB)) == (401, 204)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_amidst_a_storm_of_sighups_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "tokens").write_text(f"ann write {ANN}\n")
    with Served(tmp_path, "--tokens", "tokens") as server:
        for _ in range(100):
            server.program.send(signal.SIGHUP)
        server.program.send(number)
        assert server.program.ends() == 0


class At(Served):
    """A server that sends itself a signal at one point of its code."""

    code: str

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", AT.format(code=self.code), *arguments]


AT: Final = """
import logging, os, signal, sys
from pump.command.cli import main
from pump.queue.sqlite.engine import SqliteEngine
{code}
sys.exit(main(sys.argv[1:]))
"""
LISTENING: Final = """
def sends(record):
    if "listening" in record.msg:
        os.kill(os.getpid(), signal.{name})
    return True

logging.getLogger("pump.queue").addFilter(sends)
"""
CLOSING: Final = """
close = SqliteEngine.close

def closes(self):
    os.kill(os.getpid(), signal.SIGHUP)
    close(self)

SqliteEngine.close = closes
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_end_as_soon_as_it_listens_ends_it_in_good_order(tmp_path: Path, name: str) -> None:
    class AtOnce(At):
        code = LISTENING.format(name=name)

    with AtOnce(tmp_path) as server:
        assert server.program.ends() == 0


def test_a_sighup_at_the_very_end_does_not_kill_it(tmp_path: Path) -> None:
    class AtTheEnd(At):
        code = CLOSING

    with AtTheEnd(tmp_path) as server:
        server.program.send(signal.SIGTERM)
        assert server.program.ends() == 0


def test_a_sighup_before_it_listens_is_not_forgotten(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    os.mkfifo(tokens)
    with Program([*PUMP, "queue", "serve", "--port", "0", "--tokens", "tokens"], tmp_path) as program:
        with tokens.open("w") as first:  # it reads, and waits
            tokens.unlink()
            tokens.write_text(f"bob write {BOB}\n")
            program.send(signal.SIGHUP)
            first.write(f"ann write {ANN}\n")
        program.says("tokens and keys were read again")
        place = program.output.rpartition("listening on ")[2].split()[0]

        asked = [{"Authorization": f"Bearer {each}"} for each in (ANN, BOB)]
        url = f"{place}/api/v1/pop/queue/q"
        assert [httpx.get(url, headers=each, timeout=DEADLINE).status_code for each in asked] == [401, 204]
