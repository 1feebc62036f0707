"""The queue's server, its consumers and its database are killed under load: every confirmed message is settled.

The short form is part of every run; `pytest -m long tests/queue/http/test_queue_chaos.py` kills twenty times over
twenty thousand messages.
"""

import itertools
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import httpx
import pytest

from brokers.postgres import Postgres
from pump.queue.http.command import open_engine
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, State
from support import queue_http_worker
from support.programs import Program
from support.queue_http import Served
from support.waiting import eventually

pytestmark = pytest.mark.requirement("Z-01", "Z-08", "Z-12", "Z-14")

WORKER = Path(queue_http_worker.__file__)
WORKERS = 2
PARTITIONS = 4
PATIENCE = 120.0


class Producer:
    """Pushes messages whose ids were minted before the first try, each batch until it is confirmed."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        self._url: Final = url
        self._queue: Final = queue
        self.ids: Final = [f"order-{number}" for number in range(count)]
        self.confirmed: Final[set[str]] = set()
        self.refused: Final[list[str]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE)

    def _produce(self) -> None:
        with httpx.Client(base_url=self._url, timeout=10) as client:
            for batch in _batched(self.ids, 25):
                while not self._end.is_set() and not self._pushed(client, batch):
                    self._end.wait(0.05)  # the server or its database cannot be reached: try again soon

    def _pushed(self, client: httpx.Client, batch: Sequence[str]) -> bool:
        items = [
            {"queue": self._queue, "partition": str(int(each[-1]) % PARTITIONS), "transactionId": each, "payload": each}
            for each in batch
        ]
        try:
            answer = client.post("/api/v1/push", json={"items": items})
        except httpx.HTTPError:
            return False
        if answer.status_code != 201:
            self.refused.append(f"{answer.status_code} {answer.text}"[:200])
            return False
        self.confirmed.update(
            each["transaction_id"] for each in answer.json() if each["status"] in {"queued", "duplicate"}
        )
        return True


def _batched(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Site:
    """A server on a database and its consumers, all of which can be killed."""

    def __init__(self, server: Served, database: str, queue: str, stack: ExitStack) -> None:
        self.server: Final = server
        self.queue: Final = queue
        self._database: Final = database
        self._stack: Final = stack
        self._workers: Final = [self._worker() for _ in range(WORKERS)]
        self._next: Final = itertools.cycle(range(WORKERS))

    def kill_server(self) -> None:
        self.server.begin_again()

    def kill_consumer(self) -> None:
        number = next(self._next)
        self._workers[number].__exit__(None, None, None)
        self._workers[number] = self._worker()

    def _worker(self) -> Program:
        command = [sys.executable, str(WORKER), self.server.url, self.queue]
        worker = self._stack.enter_context(Program(command, WORKER.parent.parent))
        worker.says("working")
        return worker

    @contextmanager
    def looked_at(self) -> Iterator[Callable[[], Counter[str]]]:
        """The state of every stored message, read from the database and not from the server."""
        engine = open_engine(self._database)

        def states() -> Counter[str]:
            found: Counter[str] = Counter()
            for start in itertools.count(0, 1000):
                page = engine.stored(Filter(queue=self.queue, limit=1000, offset=start))
                for each in page:
                    found[each.states.get(DEFAULT_GROUP, State.PENDING)] += 1
                if len(page) < 1000:
                    return found
            raise AssertionError  # count never ends

        try:
            yield states
        finally:
            engine.close()


def survives(site: Site, count: int, victims: Sequence[Callable[[], None]]) -> None:
    """Kill one process after another under load, and check that in the end every message was settled."""
    configured = httpx.post(
        f"{site.server.url}/api/v1/configure",
        json={"queue": site.queue, "options": {"leaseTime": queue_http_worker.LEASE_SECONDS, "retryLimit": 50}},
    )
    assert configured.is_success, configured.text
    with Producer(site.server.url, site.queue, count) as producer:
        for number, kill in enumerate(victims, 1):
            least = number * count // (len(victims) + 1)
            eventually(lambda least=least: len(producer.confirmed) >= least, PATIENCE)  # type: ignore[misc]
            kill()
        eventually(lambda: len(producer.confirmed) == count, PATIENCE)

    with site.looked_at() as states:
        eventually(lambda: states()[State.COMPLETED] == count, PATIENCE)
    assert all(answer.startswith("503 ") for answer in producer.refused), json.dumps(producer.refused[:3])


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Site]:
    with Served(tmp_path) as server, ExitStack() as stack:
        yield Site(server, f"sqlite:///{tmp_path / 'queue.db'}", "orders", stack)


@pytest.fixture
def on_postgres(tmp_path: Path, own_postgres: Postgres) -> Iterator[Site]:
    with Served(tmp_path, "--database", own_postgres.url) as server, ExitStack() as stack:
        yield Site(server, own_postgres.url, f"orders-{uuid4().hex[:8]}", stack)


def test_on_sqlite_nothing_is_lost_when_the_server_and_consumers_are_killed(on_sqlite: Site) -> None:
    survives(on_sqlite, 1_000, [on_sqlite.kill_server, on_sqlite.kill_consumer, on_sqlite.kill_server])


def test_on_postgres_nothing_is_lost_when_server_consumers_and_database_are_killed(
    on_postgres: Site, own_postgres: Postgres
) -> None:
    survives(on_postgres, 1_000, [on_postgres.kill_server, on_postgres.kill_consumer, _killing(own_postgres)])


@pytest.mark.long
def test_on_sqlite_nothing_is_lost_by_twenty_kills(on_sqlite: Site) -> None:
    survives(on_sqlite, 20_000, [on_sqlite.kill_server, on_sqlite.kill_consumer] * 10)


@pytest.mark.long
def test_on_postgres_nothing_is_lost_by_twenty_kills(on_postgres: Site, own_postgres: Postgres) -> None:
    victims = [on_postgres.kill_server, on_postgres.kill_consumer, _killing(own_postgres), _killing(own_postgres)]
    survives(on_postgres, 20_000, victims * 5)


def _killing(database: Postgres) -> Callable[[], None]:
    def kill() -> None:
        database.kill()
        database.start()

    return kill
