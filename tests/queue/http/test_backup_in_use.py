"""Backups of a queue in use, made and restored as the page for operators says."""

import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import httpx

from brokers.postgres import Postgres
from pump.queue.engine import Engine
from pump.queue.http.command import open_engine
from pump.queue.vocabulary import Filter
from support.programs import DEADLINE, pump_run
from support.queue_http import Served, told
from support.tree import ROOT
from support.waiting import eventually

PAGE: Final = (ROOT / "docs" / "queue-operations.md").read_text("utf-8")
OF_THE_PAGE: Final = "postgresql://queue@db/queue"


class Traffic:
    """Producers and a consumer of one server; the names of what was confirmed to them so far."""

    def __init__(self, server: Served) -> None:
        self._url = server.url
        self._ended = threading.Event()
        self.pushed: list[str] = []
        self.done: list[str] = []

    def produce(self, name: str) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=DEADLINE) as client:
            while not self._ended.is_set():
                names = [f"{name}-{number}-{index}" for index in range(5)]
                items = [{"queue": "q", "payload": each, "transactionId": each} for each in names]
                assert client.post("/api/v1/push", json={"items": items}).status_code == 201
                self.pushed += names
                number += 1
                time.sleep(0.01)  # a few hundred messages a second are enough

    def consume(self) -> None:
        with httpx.Client(base_url=self._url, timeout=DEADLINE) as client:
            while not self._ended.is_set():
                answer = client.get("/api/v1/pop/queue/q?batch=3")
                for each in answer.json()["messages"] if answer.status_code == 200 else ():
                    assert client.post("/api/v1/ack", json=told(each)).json()[0]["success"]
                    self.done.append(each["data"])

    @contextmanager
    def flowing(self) -> Iterator[None]:
        with ThreadPoolExecutor(3) as threads:
            working = [
                threads.submit(self.produce, "a"),
                threads.submit(self.produce, "b"),
                threads.submit(self.consume),
            ]
            try:
                eventually(lambda: len(self.done) > 50 and len(self.pushed) > len(self.done) + 50)
                yield
                seen = len(self.pushed)
                eventually(lambda: len(self.pushed) > seen + 20)
            finally:
                self._ended.set()
            for each in working:
                each.result(DEADLINE)


def states(engine: Engine) -> dict[str, str]:
    """The state of each message."""
    return {each.transaction_id: str(*each.states.values()) for each in engine.stored(Filter(limit=1_000_000))}


def check(found: dict[str, str], before: tuple[set[str], set[str]], after: tuple[set[str], set[str]]) -> None:
    """What was confirmed before the backup is in it, as it was; and nothing is in it that never was."""
    pushed, done = before
    assert pushed <= found.keys() <= after[0]
    completed = {name for name, state in found.items() if state == "completed"}
    assert done <= completed <= after[1]


def test_a_file_in_use_is_copied_and_restored(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        traffic = Traffic(server)
        with traffic.flowing():
            before = set(traffic.pushed), set(traffic.done)
            made = pump_run("queue", "backup", "friday.db", folder=tmp_path)
        after = set(traffic.pushed), set(traffic.done)
        server.program.send(signal.SIGTERM)
        assert server.program.ends() == 0
    assert made.returncode == 0, made.stderr
    restored = pump_run("queue", "restore", "friday.db", "--replace", folder=tmp_path)
    assert restored.returncode == 0, restored.stderr

    with closing(open_engine(f"sqlite:///{tmp_path}/queue.db")) as engine:
        found = states(engine)
        check(found, before, after)
    with closing(open_engine(f"sqlite:///{tmp_path}/friday.db")) as engine:
        assert states(engine) == found
    works(tmp_path, f"sqlite:///{tmp_path}/queue.db", found)


def test_postgresql_in_use_is_dumped_and_restored_as_the_page_says(tmp_path: Path, own_postgres: Postgres) -> None:
    dump, restore = re.findall(r"^    (pg_(?:dump|restore) .*)$", PAGE, re.MULTILINE)
    with own_postgres.connect() as connection:
        for name in ("queue", "again"):
            connection.execute(f"drop database if exists {name}")
            connection.execute(f"create database {name}")
    database, again = own_postgres.url_for(database="queue"), own_postgres.url_for(database="again")
    with Served(tmp_path, "--database", database) as server:
        traffic = Traffic(server)
        with traffic.flowing():
            before = set(traffic.pushed), set(traffic.done)
            run(own_postgres, dump.replace(OF_THE_PAGE, database), tmp_path)
        after = set(traffic.pushed), set(traffic.done)

    run(own_postgres, restore.replace(OF_THE_PAGE, again), tmp_path)

    with closing(open_engine(again)) as engine:
        found = states(engine)
        check(found, before, after)
    works(tmp_path, again, found)


def run(server: Postgres, command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    subprocess.run([server.program(program), *arguments], cwd=folder, check=True, timeout=DEADLINE, capture_output=True)


def works(folder: Path, database: str, found: dict[str, str]) -> None:
    """A server goes on with it: duplicates of what is restored are seen, and new messages are stored."""
    with Served(folder, "--database", database) as server:
        waiting = [name for name, state in found.items() if state == "pending"]
        items = [{"queue": "q", "payload": 0, "transactionId": name} for name in (waiting[0], "new")]
        answer = httpx.post(f"{server.url}/api/v1/push", json={"items": items}, timeout=DEADLINE).json()
        assert [each["status"] for each in answer] == ["duplicate", "queued"]
        answer = httpx.get(f"{server.url}/api/v1/messages?queue=q&status=pending&limit=1", timeout=DEADLINE).json()
        assert [each["transactionId"] for each in answer["messages"]] == ["new"]
