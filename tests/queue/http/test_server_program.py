"""`pump queue serve`: what it needs, what it refuses, and how it ends; over real connections."""

import importlib.abc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from pump.queue.http.command import open_engine
from support.programs import DEADLINE, pump_run
from support.queue_http import Served, data, told
from support.waiting import eventually

TOKEN = "0123456789abcdef"


def push(server: Served, queue: str, *payloads: object) -> None:
    body = {"items": [{"queue": queue, "payload": payload} for payload in payloads]}
    assert httpx.post(f"{server.url}/api/v1/push", json=body).status_code == 201


def pop(server: Served, queue: str, **query: Any) -> list[Any]:
    answer = httpx.get(f"{server.url}/api/v1/pop/queue/{queue}", params=query, timeout=DEADLINE)
    assert answer.status_code in {200, 204}, answer.text
    return answer.json()["messages"] if answer.content else []


def parked(server: Served) -> int:
    lines = httpx.get(f"{server.url}/metrics/prometheus").text.splitlines()
    found = [line for line in lines if line.startswith("pump_queue_parked_consumers{")]
    return sum(int(line.rpartition(" ")[2]) for line in found)


def connection(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)


def request(path: str, extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{extra}\r\n".encode()


# -- beginning


def test_what_was_pushed_outlives_the_program(served: Served) -> None:
    push(served, "q", {"a": 1})
    served.program.send(signal.SIGKILL)
    served.program.ends()

    served.begin_again()

    assert data(pop(served, "q")) == [{"a": 1}]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - nothing is bound
def test_it_does_not_listen_to_others_without_tokens(tmp_path: Path, host: str) -> None:
    ended = pump_run("queue", "serve", "--host", host, "--port", "0", folder=tmp_path)

    assert ended.returncode == 2
    assert "there have to be tokens" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--database", "mysql://x"], 2, "--database takes sqlite:///"),
        (["--database", "sqlite://host/x"], 2, "a file's URL is sqlite:///relative.db"),
        (["--database", "postgresql://x@127.0.0.1/x?pool_size=0"], 2, "pool_size has to be at least 1, not 0"),
        (["--database", "postgresql://x@127.0.0.1/x?listen_url=x"], 2, "listen_url is not the address of a PostgreSQL"),
        (["--database", "postgresql://x@127.0.0.1/x?nothing=1"], 2, "has an option that nobody knows"),
        (["--tokens", "none.txt"], 2, "none.txt cannot be read"),
        (["--port", "70000"], 2, "is not a port"),
        (["--keys", "keys.txt"], 2, "keys.txt, line 1"),
        ([], 2, "queue --help"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, arguments: list[str], status: int, why: str) -> None:
    (tmp_path / "keys.txt").write_text("one not-hexadecimal\n")

    ended = pump_run("queue", *(["serve", "--port", "0", *arguments] if arguments else []), folder=tmp_path)

    assert ended.returncode == status
    assert why in ended.stderr


def test_a_port_in_use_is_said_in_a_line(served: Served, tmp_path: Path) -> None:
    ended = pump_run("queue", "serve", "--port", str(served.port), folder=tmp_path)

    assert ended.returncode == 3
    assert f"cannot listen on 127.0.0.1, port {served.port}" in ended.stderr


def test_tokens_come_from_a_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens.txt").write_text(f"# ours\nann write {TOKEN}\n")
    (tmp_path / "tokens.txt").chmod(stat.S_IRUSR)
    with Served(tmp_path, "--tokens", "tokens.txt") as server:
        by_file = [httpx.get(f"{server.url}/api/v1/pop/queue/q", headers=each).status_code for each in headers()]
    monkeypatch.setenv("PUMP_QUEUE_TOKENS", f"ann write {TOKEN}")
    with Served(tmp_path) as server:
        by_environment = [httpx.get(f"{server.url}/api/v1/pop/queue/q", headers=each).status_code for each in headers()]
        said = server.program.output

    assert by_file == by_environment == [401, 204]
    assert TOKEN not in said


def headers() -> list[dict[str, str]]:
    return [{}, {"Authorization": f"Bearer {TOKEN}"}]


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_its_extra_it_names_the_extra(tmp_path: Path, missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from pump.command.cli import main; "
        "sys.exit(main(['queue', 'serve', '--port', '0']))"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ended.returncode == 3
    assert "pip install 'message-pump[server]'" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_other_commands_need_no_extra(tmp_path: Path) -> None:
    program = (
        "import sys; from pump.command.cli import main; main(['describe', '--settlement']); "
        "sys.exit(any(name.split('.')[0] in {'starlette', 'uvicorn', 'psycopg'} for name in sys.modules))"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr


@pytest.mark.requirement("Q-64")
def test_payloads_are_encrypted_with_the_last_key_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "keys.txt").write_text(f"old {'00' * 32}\nnew {'01' * 32}\n")
    with Served(tmp_path, "--keys", "keys.txt") as server:
        configured = {"queue": "q", "options": {"encryptionEnabled": True}}
        assert httpx.post(f"{server.url}/api/v1/configure", json=configured).status_code == 200
        push(server, "q", "a secret that nobody should see")

        assert data(pop(server, "q")) == ["a secret that nobody should see"]

    assert all(b"a secret that nobody" not in file.read_bytes() for file in tmp_path.iterdir())


def test_old_clients_may_settle_without_their_lease_where_that_is_allowed(tmp_path: Path) -> None:
    outcomes = []
    for options in ([], ["--lenient"]):
        with Served(tmp_path, "--database", f"sqlite:///{len(options)}.db", *options) as server:
            push(server, "q", 1)
            body = {**told(pop(server, "q")[0]), "leaseId": None}
            outcomes.append(httpx.post(f"{server.url}/api/v1/ack", json=body).json()[0]["success"])

    assert outcomes == [False, True]


def test_groups_may_have_to_be_known(tmp_path: Path) -> None:
    with Served(tmp_path, "--known-groups") as server:
        push(server, "q", 1)

        assert httpx.get(f"{server.url}/api/v1/pop/queue/q?consumerGroup=typo").status_code == 404


# -- ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_those_who_wait_are_answered(served: Served, number: signal.Signals) -> None:
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(pop, served, "q", wait="true", timeout="60000") for _ in range(2)]
        eventually(lambda: parked(served) == 2)
        begun = time.monotonic()

        served.program.send(number)

        assert [each.result(DEADLINE) for each in waiting] == [[], []]
    assert served.program.ends() == 0
    assert time.monotonic() - begun < 5


def test_what_is_under_way_is_finished_first(served: Served) -> None:
    with connection(served) as slow:
        body = b'{"items":[{"queue":"q","payload":1}]}'
        slow.sendall(
            b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:10]
        )
        eventually(lambda: httpx.get(f"{served.url}/health").status_code == 200)
        served.program.send(signal.SIGTERM)
        slow.sendall(body[10:])
        answer = slow.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 201")
    served.program.ends()
    served.begin_again()
    assert data(pop(served, "q")) == [1]


# -- connections


@pytest.mark.requirement("Z-10")
def test_a_consumer_whose_connection_breaks_while_it_waits_takes_nothing(served: Served) -> None:
    with connection(served) as broken:
        broken.sendall(request("/api/v1/pop/queue/q?wait=true&timeout=60000"))
        eventually(lambda: parked(served) == 1)
    eventually(lambda: parked(served) == 0)

    push(served, "q", "here")

    [message] = pop(served, "q")
    assert (message["data"], message["deliveries"]) == ("here", 1)


@pytest.mark.requirement("Z-10")
def test_a_consumer_that_does_not_read_its_reply_and_goes_loses_nothing(served: Served) -> None:
    for _ in range(9):
        push(served, "q", "x" * 900_000)
    with connection(served) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.sendall(request("/api/v1/pop/queue/q?batch=9"))
        assert deaf.recv(12) == b"HTTP/1.1 200"
        eventually(lambda: deaf_is_full(deaf))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    again = pop(served, "q", batch="9", wait="true", timeout="20000")

    assert [(len(each["data"]), each["retries"], each["crashes"]) for each in again] == [(900_000, 0, 0)] * 9
    assert httpx.get(f"{served.url}/metrics").json()["counters"]["pump_queue_returned_messages_total"] == 9


def deaf_is_full(deaf: socket.socket) -> bool:
    """Whether the client's buffers are full: nothing more arrives while nobody reads."""
    before = len(deaf.recv(10_000_000, socket.MSG_PEEK))
    time.sleep(0.05)
    return before == len(deaf.recv(10_000_000, socket.MSG_PEEK))


@pytest.mark.requirement("Z-10")
@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /a\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
    ids=["nonsense", "no host", "two hosts", "two lengths", "long path", "bytes in the path"],
)
def test_whatever_comes_is_answered_and_the_others_go_on(served: Served, said: bytes) -> None:
    with connection(served) as peer:
        peer.sendall(said)
        answer = peer.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_who_has_read_its_reply_may_go_at_once(served: Served) -> None:
    push(served, "q", *range(50))

    for _ in range(50):
        with connection(served) as hasty:
            hasty.sendall(request("/api/v1/pop/queue/q"))
            received = b""
            while not received.endswith(b"]}"):
                received += hasty.recv(65_536)
        message = json.loads(received.partition(b"\r\n\r\n")[2])["messages"][0]
        assert httpx.post(f"{served.url}/api/v1/ack", json=told(message)).json()[0]["success"] is True


def test_no_answer_waits_for_the_one_before_it_to_be_confirmed(served: Served) -> None:
    """It would take 40 ms each if the system held back a small packet until the last one was acknowledged."""
    times = []

    with connection(served) as peer:
        for _ in range(50):
            begun = time.monotonic()
            peer.sendall(request("/health"))
            received = b""
            while not received.endswith(b"}"):
                received += peer.recv(65_536)
            times.append(time.monotonic() - begun)

    assert median(times) < 0.03


def test_requests_sent_at_once_over_one_connection_are_answered_in_turn(served: Served) -> None:
    push(served, "q", 1, 2)
    path = "/api/v1/pop/queue/q?autoAck=true&wait=true&timeout=5000"

    with connection(served) as peer:
        peer.sendall(request(path) + request(path, "Connection: close\r\n"))
        answer = b"".join(iter(lambda: peer.recv(65_536), b""))

    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b'"data":1') < answer.index(b'"data":2')


@pytest.mark.requirement("Q-59")
def test_a_push_by_another_program_wakes_who_waits(served: Served, tmp_path: Path) -> None:
    with Served(tmp_path) as other, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pop, served, "q", wait="true", timeout="20000")
        eventually(lambda: parked(served) == 1)

        push(other, "q", "here")
        pushed = time.monotonic()

        [message] = waiting.result(DEADLINE)
        assert message["data"] == "here"
        assert time.monotonic() - pushed < 0.5
        body = {**told(message), "status": "completed"}
        assert httpx.post(f"{other.url}/api/v1/ack", json=body).json()[0]["success"] is True


# -- the URL of a database


def test_a_file_s_name_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///a%20b.db", f"sqlite:///{tmp_path}/c.db"):
        open_engine(url).close()

    assert {"a b.db", "c.db"} <= {each.name for each in tmp_path.iterdir()}


def test_postgresql_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from pump.errors import SetupError

    class Nothing(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name in {"psycopg", "pump.queue.postgres.engine"}:
                raise ImportError(f"there is no {name}", name="psycopg")

    for name in [each for each in sys.modules if each.startswith(("psycopg", "pump.queue.postgres.engine"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Nothing(), *sys.meta_path])

    with pytest.raises(SetupError, match=r"pip install 'message-pump\[postgres\]'"):
        open_engine("postgresql://nobody@127.0.0.1/nothing")


def test_the_database_may_stand_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMP_QUEUE_DATABASE", "sqlite:///other.db")

    with Served(tmp_path):
        assert (tmp_path / "other.db").exists()
    assert os.environ["PUMP_QUEUE_DATABASE"] == "sqlite:///other.db"
