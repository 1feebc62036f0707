"""Keys are changed on several servers in the documented order while messages flow: none waits, none is passed over."""

import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

pytest.importorskip("cryptography")

from support.programs import DEADLINE, pump_run
from support.queue_http import Served, told
from support.waiting import eventually

OLD, NEW, WRONG = (f"{name} {digits * 32}\n" for name, digits in (("old", "01"), ("new", "02"), ("new", "03")))
PASSED_OVER: Final = "are passed over"
MOST_WAITING: Final = 20
AGAIN: Final = "tokens and keys were read again"


class Site:
    """Two servers of one database, each with its own file of keys, and traffic through both."""

    def __init__(self, folder: Path, database: str, stack: ExitStack) -> None:
        self.database = database
        self._folders = [folder / name for name in ("one", "two")]
        self.servers: list[Served] = []
        self._ended = threading.Event()
        self.pushed: list[str] = []
        self.handled: set[str] = set()
        for each in self._folders:
            each.mkdir()
            (each / "keys").write_text(OLD)
            self.servers.append(stack.enter_context(Served(each, "--database", database, "--keys", "keys")))
        stack.callback(self._ended.set)

    def have(self, server: int, keys: str) -> None:
        """Give a server these keys, and wait until it has read them."""
        said = self.servers[server].program.output.count(AGAIN)
        (self._folders[server] / "keys").write_text(keys)
        self.servers[server].program.send(signal.SIGHUP)
        self.servers[server].program.says(AGAIN, said + 1)

    def produce(self, server: int) -> None:
        number = 0
        with httpx.Client(base_url=self.servers[server].url, timeout=DEADLINE) as client:
            while not self._ended.is_set():
                name = f"{server}-{number}"
                eventually(lambda: len(self.pushed) < len(self.handled) + MOST_WAITING or self._ended.is_set())
                body = {"items": [{"queue": "q", "payload": name}]}
                assert client.post("/api/v1/push", json=body).status_code == 201
                self.pushed.append(name)
                number += 1

    def consume(self, server: int) -> None:
        with httpx.Client(base_url=self.servers[server].url, timeout=DEADLINE) as client:
            while not self._ended.is_set() or len(self.handled) < len(self.pushed):
                answer = client.get("/api/v1/pop/queue/q?batch=5&wait=true&timeout=200")
                for each in answer.json()["messages"] if answer.status_code == 200 else ():
                    assert (each["deliveries"], each["retries"], each["crashes"]) == (1, 0, 0)
                    assert client.post("/api/v1/ack", json=told(each)).json()[0]["success"]
                    self.handled.add(each["data"])

    def flows(self) -> None:
        """Wait until messages that were pushed from now on have gone through."""
        before = len(self.handled)
        eventually(lambda: len(self.handled) > before + 15)

    def end(self) -> None:
        self._ended.set()

    @property
    def output(self) -> str:
        return "".join(each.program.output for each in self.servers)


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    database = f"sqlite:///{tmp_path}/queue.db"
    if request.param == "postgres":
        database = f"{request.getfixturevalue('postgres_url')}?schema=keys_{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        made = Site(tmp_path, database, stack)
        options = {"ordered": False, "encryptionEnabled": True}
        body = {"queue": "q", "options": options}
        assert httpx.post(f"{made.servers[0].url}/api/v1/configure", json=body, timeout=DEADLINE).status_code == 200
        yield made


def test_keys_change_in_the_documented_order_while_messages_flow(site: Site) -> None:
    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(act, server) for act in (site.produce, site.consume) for server in (0, 1)]
        try:
            for keys in (NEW + OLD, OLD + NEW):  # to open with, then to seal with
                for server in (0, 1):
                    site.flows()
                    site.have(server, keys)
            site.flows()
        finally:
            site.end()
        for each in working:
            each.result(2 * DEADLINE)
    for server in (0, 1):  # nothing is left that the old key sealed but messages that are completed
        site.have(server, NEW)

    assert site.handled == set(site.pushed)
    assert PASSED_OVER not in site.output, "a message that is passed over waits a second"


def test_in_the_wrong_order_messages_flow_through_the_other_server(site: Site) -> None:
    """The first server seals with a key that the second one does not have yet."""
    site.have(0, OLD + NEW)
    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(act, server) for act in (site.produce, site.consume) for server in (0, 1)]
        try:
            site.flows()
            site.servers[1].program.says("sealed with the key 'new'")
            warnings = httpx.get(f"{site.servers[1].url}/health", timeout=DEADLINE).json()["warnings"]
            assert [each for each in warnings if "'new'" in each]
            site.have(1, OLD + NEW)
            site.flows()
        finally:
            site.end()
        for each in working:
            each.result(2 * DEADLINE)

    assert site.handled == set(site.pushed)
    assert site.servers[1].program.output.count(PASSED_OVER) <= 1


def test_a_wrong_key_under_a_known_id_is_noticed_at_the_start_and_at_sighup(site: Site, tmp_path: Path) -> None:
    site.have(0, OLD + NEW)
    (tmp_path / "wrong").write_text(OLD + WRONG)

    options = ("--port", "0", "--database", site.database, "--keys", "wrong")
    ended = pump_run("queue", "serve", *options, folder=tmp_path)

    assert ended.returncode == 2
    assert "the key 'new' is not the one with which the messages in the database were sealed" in ended.stderr
    assert "03" * 32 not in ended.stderr

    (tmp_path / "two" / "keys").write_text(OLD + WRONG)
    site.servers[1].program.send(signal.SIGHUP)
    site.servers[1].program.says("tokens and keys stay as they were: the key 'new' is not the one")


@pytest.mark.parametrize("empty", ["", "# none yet\n", "\n\n"])
def test_an_empty_file_of_keys_is_refused_at_the_start_and_at_sighup(tmp_path: Path, empty: str) -> None:
    (tmp_path / "keys").write_text(OLD)
    with Served(tmp_path, "--keys", "keys") as server:
        (tmp_path / "keys").write_text(empty)
        server.program.send(signal.SIGHUP)
        server.program.says("tokens and keys stay as they were: keys has no key")
        body = {"queue": "q", "options": {"encryptionEnabled": True}}
        assert httpx.post(f"{server.url}/api/v1/configure", json=body, timeout=DEADLINE).status_code == 200

    ended = pump_run("queue", "serve", "--port", "0", "--keys", "keys", folder=tmp_path)

    assert ended.returncode == 2
    assert "keys has no key" in ended.stderr


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# ours\n{OLD}{NEW}{WRONG}")

    ended = pump_run("queue", "serve", "--port", "0", "--keys", "keys", folder=tmp_path)

    assert ended.returncode == 2
    assert "line 4: the key 'new' is there twice" in ended.stderr
