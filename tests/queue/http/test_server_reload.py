"""The settings of `pump queue serve`: options, tokens and keys that change while it runs, a log of requests."""

import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from pump.queue.http.command import open_engine, postgres_address
from pump.queue.sqlite.room import Room
from pump.queue.sqlite.watch import Election
from support.programs import pump_run
from support.queue_http import InProcess, Served
from support.queue_http_fixtures import Serving
from support.waiting import eventually

ANN, BOB = "0123456789abcdef", "fedcba9876543210"


def status(server: Served, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{server.url}/api/v1/pop/queue/q", headers=headers).status_code


def test_tokens_are_read_again_at_sighup(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"ann write {ANN}\n")
    with Served(tmp_path, "--tokens", "tokens.txt") as server:
        assert (status(server, ANN), status(server, BOB)) == (204, 401)

        tokens.write_text(f"bob write {BOB}\n")
        server.program.send(signal.SIGHUP)
        server.program.says("tokens and keys were read again")
        assert (status(server, ANN), status(server, BOB)) == (401, 204)

        for wrong in ("", "bob owner fedcba9876543210\n"):
            tokens.write_text(wrong)
            server.program.send(signal.SIGHUP)
            server.program.says("tokens and keys stay as they were", 1 if not wrong else 2)
            assert (status(server, ANN), status(server, BOB)) == (401, 204)


def test_a_file_without_tokens_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("# none yet\n")

    ended = pump_run("queue", "serve", "--port", "0", "--tokens", "tokens.txt", folder=tmp_path)

    assert ended.returncode == 2
    assert "tokens.txt has no token" in ended.stderr


def test_keys_are_read_again_at_sighup(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    keys = tmp_path / "keys.txt"
    keys.write_text(f"one {'01' * 32}\n")
    with Served(tmp_path, "--keys", "keys.txt") as server:
        keys.write_text(f"one {'01' * 32}\ntwo {'02' * 32}\n")
        server.program.send(signal.SIGHUP)
        server.program.says("were read again")
        body = {"queue": "q", "options": {"encryptionEnabled": True}}
        assert httpx.post(f"{server.url}/api/v1/configure", json=body).status_code == 200
        push = {"items": [{"queue": "q", "payload": 1}]}
        assert httpx.post(f"{server.url}/api/v1/push", json=push).status_code == 201

        keys.write_text(f"two {'03' * 32}\n")
        server.program.send(signal.SIGHUP)
        server.program.says("the key 'two' is not the one")
        assert httpx.get(f"{server.url}/api/v1/pop/queue/q").json()["messages"][0]["data"] == 1

    with sqlite3.connect(tmp_path / "queue.db") as database:
        ((payload,),) = database.execute("SELECT payload FROM message").fetchall()
    database.close()
    assert payload[1:4] == b"two"


def test_requests_are_logged_where_that_is_asked_for(tmp_path: Path) -> None:
    with Served(tmp_path, "--access-log") as server:
        httpx.get(f"{server.url}/api/v1/pop/queue/a%2Fb?consumerGroup=private")
        said = server.program.says("/api/v1/pop/queue/a%2Fb")

    assert re.search(r"pump\.queue\.access: 127\.0\.0\.1 GET /api/v1/pop/queue/a%2Fb 204 \d+\.\d ms", said)
    assert "private" not in said


def test_the_largest_message_can_be_set(tmp_path: Path) -> None:
    with Served(tmp_path, "--max-message", "2000000") as server:
        sizes = [
            httpx.post(
                f"{server.url}/api/v1/push", json={"items": [{"queue": "q", "payload": "x" * size}]}, timeout=30
            ).status_code
            for size in (1_500_000, 2_000_000)
        ]

    assert sizes == [201, 400]
    ended = pump_run("queue", "serve", "--max-message", "9000000", folder=tmp_path)
    assert "from 1 to 8000000" in ended.stderr


@pytest.mark.parametrize("origin", ["*", "https://a/b", "a.example"])
def test_an_origin_that_no_browser_sends_is_refused(tmp_path: Path, origin: str) -> None:
    ended = pump_run("queue", "serve", "--allow-origin", origin, folder=tmp_path)

    assert ended.returncode == 2
    assert "is not an origin" in ended.stderr


def test_an_origin_may_end_with_a_slash(tmp_path: Path) -> None:
    with Served(tmp_path, "--allow-origin", "https://App.example/") as server:
        answer = httpx.get(f"{server.url}/metrics", headers={"Origin": "https://app.example"})

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("mode", ["from_beginning", "earliest", "", "all"])
def test_any_other_mode_of_subscription_is_all(http: InProcess, mode: str) -> None:
    http.push("q", 1)

    assert [each["data"] for each in http.pop("q", consumerGroup="g", subscriptionMode=mode)] == [1]


def test_a_push_to_an_encrypted_queue_without_a_key_is_a_wrong_request(serving: Serving, tmp_path: Path) -> None:
    sealing = pytest.importorskip("pump.queue.sealing")
    pytest.importorskip("cryptography")
    keyed = open_engine(f"sqlite:///{tmp_path}/queue.db", keys=sealing.Sealing({"one": bytes(32)}))
    try:
        serving(keyed).post("/api/v1/configure", {"queue": "q", "options": {"encryptionEnabled": True}})
    finally:
        keyed.close()

    answer = serving().post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})

    assert (answer.status, answer.error) == (400, "the queue is encrypted, and there is no key")


# -- options of the URL


def test_the_url_has_the_options_of_the_queue(postgres_url: str) -> None:
    mark = "&" if "?" in postgres_url else "?"
    url = f"{postgres_url}{mark}schema=url_options&pool_size=3&listen_url={postgres_url.replace('?', '%3F')}"
    engine = open_engine(url)
    engine.close()

    assert repr(engine) == "PostgresEngine(schema='url_options')"
    address, options = postgres_address(f"{url}&sslmode=disable")
    assert address.endswith("?sslmode=disable")
    assert (options["schema"], options["pool_size"]) == ("url_options", 3)


def test_a_file_has_its_options_too(tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/queue.db?synchronous=NORMAL").close()

    ended = pump_run("queue", "serve", "--database", "sqlite:///queue.db?pool=3", folder=tmp_path)
    assert "do not know pool" in ended.stderr
    assert [each.name for each in tmp_path.iterdir() if each.name == "queue.db?synchronous=NORMAL"] == []


# -- soon


@pytest.mark.parametrize("wait", [1, 2])
def test_what_waits_too_long_is_given_up_soon(tmp_path: Path, wait: int) -> None:
    with Served(tmp_path, "--sweep-interval", "0.5") as server:
        options = {"maxWaitTimeSeconds": wait}
        assert httpx.post(f"{server.url}/api/v1/configure", json={"queue": "q", "options": options}).status_code == 200
        push = {"items": [{"queue": "q", "payload": 1}]}
        assert httpx.post(f"{server.url}/api/v1/push", json=push).status_code == 201
        pushed = time.monotonic()

        eventually(lambda: httpx.get(f"{server.url}/api/v1/dlq").json()["total"] == 1, 30)

        assert time.monotonic() - pushed > wait - 0.1


# -- owners of the files


def test_files_are_their_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        engine = open_engine(f"sqlite:///{tmp_path}/queue.db")
        engine.healthy()
        assert Election(tmp_path / "queue.db").won()
        Room(tmp_path / "queue.db", reserve=True).keep()
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        engine.close()
    finally:
        os.umask(before)

    assert {"queue.db", "queue.db-wal", "queue.db-reserve", "queue.db-checkpoint"} <= set(modes)
    assert set(modes.values()) == {0o600}
