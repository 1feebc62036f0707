"""A disk that is really full: the cause is named, and what is stored can be handed out, settled and removed."""

import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from brokers.postgres import Postgres
from support.programs import DEADLINE, pump_run
from support.queue_http import Served, told
from support.small_disk import fill, small_disk
from support.waiting import eventually

FULL: Final = "the disk is full: make room on it"
BROKEN: Final = "the disk fails: see the log of the system"
DISK_MEGABYTES: Final = 60
PAYLOAD: Final = "x" * 20_000
INCOMPRESSIBLE: Final = os.urandom(20_000).hex()


def push(server: Served, number: int = 1, payload: str = PAYLOAD) -> int:
    items = [{"queue": "q", "payload": payload} for _ in range(number)]
    return httpx.post(f"{server.url}/api/v1/push", json={"items": items}, timeout=DEADLINE).status_code


def until_refused(server: Served, payload: str = PAYLOAD) -> int:
    """Push until a push is refused; returns how many messages were stored."""
    done, items = 0, [{"queue": "q", "payload": payload} for _ in range(10)]
    with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
        while (status := client.post("/api/v1/push", json={"items": items}).status_code) == 201:
            done += 10
    assert status == 503
    return done


def health(server: Served) -> Any:
    return httpx.get(f"{server.url}/health", timeout=DEADLINE).json()


def drained(server: Served) -> int:
    """Pop and settle until nothing is left, as a consumer that tries again after a refusal; returns how many."""
    done = 0
    with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:

        def settled(messages: list[Any]) -> bool:
            answer = client.post("/api/v1/ack/batch", json={"acknowledgments": [told(each) for each in messages]})
            return answer.status_code == 200 and all(each["success"] for each in answer.json())

        def nothing_is_left() -> bool:
            nonlocal done
            answer = client.get("/api/v1/pop/queue/q?batch=20")
            if answer.status_code == 200:
                messages = answer.json()["messages"]
                eventually(lambda: settled(messages), 2 * DEADLINE)
                done += len(messages)
            return answer.status_code == 204

        eventually(nothing_is_left, 4 * DEADLINE)
    return done


def says_why(server: Served, words: str) -> None:
    found = health(server)
    assert (found["status"], found["problem"]) == ("unhealthy", words)
    assert server.program.output.count(f"requests are refused, as the database cannot be used: {UNAVAILABLE}") == 1
    assert words in server.program.output


UNAVAILABLE: Final = "database connection unavailable"


# -- a file


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MEGABYTES) as folder:
        yield folder


def test_pushes_that_fill_the_disk_leave_room_to_drain_it(tmp_path: Path, disk: Path) -> None:
    with Served(tmp_path, "--database", f"sqlite:///{disk}/queue.db") as server:
        number = until_refused(server)
        says_why(server, FULL)

        assert drained(server) == number
        assert httpx.delete(f"{server.url}/api/v1/queues/q/clear", timeout=DEADLINE).status_code == 200
        eventually(lambda: push(server) == 201, 2 * DEADLINE)
        eventually(lambda: health(server)["status"] == "healthy", 2 * DEADLINE)

        assert until_refused(server) > number / 2, "what was freed within the file is used again"
        assert server.program.output.count("cannot watch") == 0


def test_what_others_fill_can_be_drained_too(tmp_path: Path, disk: Path) -> None:
    with Served(tmp_path, "--database", f"sqlite:///{disk}/queue.db") as server:
        for _ in range(10):
            assert push(server, 10) == 201
        eventually((disk / "queue.db-reserve").exists)
        junk = fill(disk)
        assert push(server) == 503
        looked = pump_run("queue", "status", "--json", "--database", f"sqlite:///{disk}/queue.db", folder=tmp_path)
        assert (looked.returncode, json.loads(looked.stdout)["problem"]) == (1, FULL)

        assert drained(server) == 100
        assert push(server) == 503
        says_why(server, FULL)
        assert len(server.program.output) < 5_000

        junk.unlink()
        eventually(lambda: push(server) == 201, 2 * DEADLINE)
        eventually((disk / "queue.db-reserve").exists)
        eventually(lambda: health(server)["status"] == "healthy", 2 * DEADLINE)


def test_a_backup_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, disk: Path) -> None:
    with Served(tmp_path) as server:
        assert push(server, 100) == 201
        junk = fill(disk)

        ended = pump_run("queue", "backup", str(disk / "copy.db"), folder=tmp_path)

        assert ended.returncode == 3
        assert FULL in ended.stderr
        assert [each.name for each in disk.iterdir()] == ["junk"]
        junk.unlink()
        assert pump_run("queue", "backup", str(disk / "copy.db"), folder=tmp_path).returncode == 0
        assert push(server) == 201


NARROW: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
from pump.command.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Narrow(Served):
    """A server whose files may not grow beyond a size: the nearest to a full disk that needs no rights."""

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", NARROW.format(size=2_000_000), *arguments]


def test_a_file_that_may_not_grow_is_said_and_works_again_when_it_may(tmp_path: Path) -> None:
    with Narrow(tmp_path) as server:
        number = until_refused(server)
        says_why(server, BROKEN)
        assert httpx.get(f"{server.url}/api/v1/messages?queue=q", timeout=DEADLINE).status_code == 200

        def takes_no_more() -> bool:
            """A checkpoint makes room in the log of changes, until the file itself may not grow either."""
            nonlocal number
            statuses = [push(server, 10) for _ in range(5)]
            number += 10 * statuses.count(201)
            return statuses == [503] * 5

        eventually(takes_no_more, 2 * DEADLINE)
        infinite = resource.RLIM_INFINITY
        resource.prlimit(server.program.pid, resource.RLIMIT_FSIZE, (infinite, infinite))
        eventually(lambda: push(server) == 201, 2 * DEADLINE)

        assert drained(server) == number + 1
        eventually(lambda: health(server)["status"] == "healthy", 2 * DEADLINE)


# -- PostgreSQL


@pytest.fixture
def tablespace(own_postgres: Postgres) -> Iterator[Path]:
    """The folder of the tablespace `small`, on a disk of its own."""
    with small_disk(own_postgres.folder / "small", 16) as folder:
        yield own_postgres.own(folder / "tables")


def test_a_full_disk_of_postgresql_is_said_and_drained_once_there_is_room(
    tmp_path: Path, tablespace: Path, own_postgres: Postgres
) -> None:
    junk = tablespace.with_name("junk")
    junk.write_bytes(b"x" * 4_000_000)
    with own_postgres.connect() as connection:
        connection.execute(f"create tablespace small location '{tablespace}'")
    url = f"{own_postgres.url}?schema=small_disk&options=-c%20default_tablespace%3Dsmall"
    try:
        with Served(tmp_path, "--database", url) as server:
            number = until_refused(server, INCOMPRESSIBLE)
            says_why(server, FULL)
            refused = httpx.get(f"{server.url}/api/v1/pop/queue/q", timeout=DEADLINE)
            assert (refused.status_code, refused.json()["error"]) == (503, f"{UNAVAILABLE}: {FULL}")
            looked = httpx.get(f"{server.url}/api/v1/status", timeout=DEADLINE)
            assert (looked.status_code, looked.json()["messages"]["total"]) == (200, number)

            junk.unlink()

            assert drained(server) == number
            assert httpx.delete(f"{server.url}/api/v1/queues/q/clear", timeout=DEADLINE).status_code == 200
            eventually(lambda: push(server) == 201, 4 * DEADLINE)
            eventually(lambda: health(server)["status"] == "healthy", 4 * DEADLINE)
    finally:
        with own_postgres.connect() as connection:
            connection.execute("drop schema if exists small_disk cascade")
            connection.execute("drop tablespace small")


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter: PostgreSQL may run as another one."""
    folder = Path(tempfile.mkdtemp(prefix="pump-disk-"))
    folder.chmod(0o755)
    yield folder
    folder.rmdir()


def test_postgresql_that_has_filled_the_disk_of_its_log_too_loses_nothing(
    tmp_path: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end by itself then: the page says to keep a file that can be removed."""
    with small_disk(public_folder, 130) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with Postgres() as postgres:
            (disk / "to-remove").write_bytes(b"x" * 40_000_000)
            with Served(tmp_path, "--database", postgres.url) as server:
                number = until_refused(server, INCOMPRESSIBLE)
                refused = httpx.get(f"{server.url}/api/v1/pop/queue/q", timeout=DEADLINE)
                assert (refused.status_code, UNAVAILABLE in refused.json()["error"]) == (503, True)

                (disk / "to-remove").unlink()
                postgres.restart()

                assert drained(server) == number
                eventually(lambda: push(server) == 201, 4 * DEADLINE)
                eventually(lambda: health(server)["status"] == "healthy", 4 * DEADLINE)
