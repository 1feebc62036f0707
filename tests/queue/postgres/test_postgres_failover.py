"""A primary with a standby: what is wrong is said, and a failover loses nothing."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from brokers.postgres import Postgres, PostgresStandby
from brokers.waiting import wait_until
from support.programs import DEADLINE, pump_run
from support.queue_http import Served, told

READ_ONLY = "the database is read-only: after a failover the address leads to a standby server"


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def standby(primary: Postgres) -> Iterator[PostgresStandby]:
    with PostgresStandby(primary) as server:
        yield server


def health(server: Served) -> Any:
    return httpx.get(f"{server.url}/health", timeout=DEADLINE).json()


def push(server: Served, *names: str) -> int:
    items = [{"queue": "q", "payload": name, "transactionId": name} for name in names]
    return httpx.post(f"{server.url}/api/v1/push", json={"items": items}, timeout=DEADLINE).status_code


def test_a_server_in_front_of_a_standby_says_so(tmp_path: Path, primary: Postgres, standby: PostgresStandby) -> None:
    with Served(tmp_path, "--database", primary.url) as first:
        assert push(first, "1") == 201
    wait_until(lambda: has_caught_up(primary, standby), "the standby has everything")

    with Served(tmp_path, "--database", standby.url) as server:
        found = health(server)
        assert (found["status"], found["database"]) == ("unhealthy", "connected")
        assert found["problem"].startswith(READ_ONLY)
        assert [push(server, "2") for _ in range(5)] == [503] * 5
        assert httpx.get(f"{server.url}/api/v1/pop/queue/q", timeout=DEADLINE).status_code == 503
        assert server.program.output.count(READ_ONLY) == 1
        metrics = httpx.get(f"{server.url}/metrics/prometheus", timeout=DEADLINE).text
        assert 'pump_queue_unavailable_total{cause="read_only"}' in metrics
        looked = pump_run("queue", "status", "--database", standby.url, folder=tmp_path)
        assert (looked.returncode, READ_ONLY in looked.stdout) == (1, True), looked.stderr

        standby.promote()
        wait_until(lambda: push(server, "3") == 201, "it can be written to")
        wait_until(lambda: health(server)["status"] == "healthy", "it is well again")


def has_caught_up(primary: Postgres, standby: Postgres) -> bool:
    with primary.connect() as ahead, standby.connect() as behind:
        written = ahead.execute("select pg_current_wal_lsn()").fetchone()[0]
        done = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
        return bool(behind.execute(done, [written]).fetchone()[0])


class Traffic:
    """A producer and a consumer of a server, who go on through every refusal, and what was confirmed to them."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._ended = threading.Event()
        self.pushed: list[str] = []
        self.refused = 0
        self.handled: set[str] = set()

    def produce(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=DEADLINE) as client:
            while not self._ended.is_set():
                name = uuid4().hex
                body = {"items": [{"queue": "q", "payload": name, "transactionId": name}]}
                while client.post("/api/v1/push", json=body).status_code != 201:  # the same transaction id each time
                    self.refused += 1
                    time.sleep(0.01)
                self.pushed.append(name)
                time.sleep(0.005)  # the consumer has to keep up

    def consume(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=DEADLINE) as client:
            while not self._ended.is_set() or self.handled != set(self.pushed):
                self._consume_once(client)

    def _consume_once(self, client: httpx.Client) -> None:
        answer = client.get("/api/v1/pop/queue/q?batch=20&wait=true&timeout=200")
        if answer.status_code != 200:
            return
        told_of = [{**told(each), "status": "completed"} for each in answer.json()["messages"]]
        done = client.post("/api/v1/ack/batch", json={"acknowledgments": told_of})
        for each, settled in zip(
            answer.json()["messages"], done.json() if done.status_code == 200 else (), strict=False
        ):
            if settled["success"]:
                self.handled.add(each["data"])

    def end(self) -> None:
        self._ended.set()


def test_a_failover_loses_nothing_and_is_found_by_itself(
    tmp_path: Path, primary: Postgres, standby: PostgresStandby
) -> None:
    """The old primary goes on, but takes no writes any more: no connection breaks, and yet the new one is found."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://test@{hosts}/postgres?target_session_attrs=read-write"
    with ExitStack() as stack:
        server = stack.enter_context(Served(tmp_path, "--database", url))
        options = {"queue": "q", "options": {"leaseTime": 2}}
        assert httpx.post(f"{server.url}/api/v1/configure", json=options, timeout=DEADLINE).status_code == 200
        traffic, threads = Traffic(server), stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(traffic.end)
        working = [threads.submit(traffic.produce), threads.submit(traffic.produce), threads.submit(traffic.consume)]
        wait_until(lambda: len(traffic.handled) > 50, "there is traffic")

        primary.alter("default_transaction_read_only", "on")
        wait_until(lambda: traffic.refused > 5, "nothing can be written")
        wait_until(lambda: (health(server)["problem"] or "").startswith(READ_ONLY), "its health says why")
        wait_until(lambda: has_caught_up(primary, standby), "the standby has everything")
        before = len(traffic.pushed)
        standby.promote()
        wait_until(lambda: len(traffic.pushed) > before + 50, "it goes on with the new primary")
        wait_until(lambda: health(server)["status"] == "healthy", "it is well again")
        traffic.end()
        for each in working:
            each.result(2 * DEADLINE)

        assert primary.is_running
        assert traffic.handled == set(traffic.pushed)
        assert server.program.output.count("requests are refused, as the database cannot be used") <= 2
        with standby.connect() as connection:
            rows = connection.execute("select count(*) from message_pump.message").fetchone()
            assert rows[0] == len(traffic.pushed)
