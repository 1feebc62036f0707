"""Acknowledging together is faster on any disk: one call and one commit of the database serve all of them."""

import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from brokers.proxy import Direction, Proxy
from pump.queue.engine import Engine
from pump.queue.options import QueueOptions
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import Leased, PopRequest, Push, Settlement

MESSAGES = 400


class Cost(NamedTuple):
    """The cost of a call that makes others wait."""

    round_trips: int
    commits: int


class Wire(Proxy):
    """A proxy to PostgreSQL, which counts how often the server is ready for the next query."""

    def __init__(self, to_port: int) -> None:
        self._rest: dict[socket.socket, bytes] = defaultdict(bytes)
        self.round_trips = 0
        self.commits = 0
        super().__init__(to_port)

    async def _send(self, target: socket.socket, data: memoryview, direction: Direction) -> None:
        if direction == "to_client":
            self._rest[target] = self._counted(self._rest[target] + bytes(data))
        await super()._send(target, data, direction)

    def _counted(self, data: bytes) -> bytes:
        """Count the complete messages; returns the rest of the bytes."""
        if data.startswith(b"N") and data[1:2] in {b"", b"N", b"R"}:  # no encryption here, before all else
            return self._counted(data[1:]) if data[1:] else b""
        while len(data) >= 5 and len(data) > (length := int.from_bytes(data[1:5])):
            if data[:1] == b"Z":
                self.round_trips += 1
                self.commits += data[5:6] == b"I"
            data = data[length + 1 :]
        return data


@contextmanager
def on_postgres(server: Postgres) -> Iterator[tuple[Engine, Callable[[], Cost]]]:
    from pump.queue.postgres.engine import PostgresEngine

    with Wire(server.port) as wire:
        engine = PostgresEngine(wire.url(server.url), schema=f"test_{uuid4().hex[:16]}")
        with closing(engine):
            yield engine, lambda: Cost(wire.round_trips, wire.commits)


@contextmanager
def on_sqlite(folder: Path) -> Iterator[tuple[Engine, Callable[[], Cost]]]:
    with closing(SqliteEngine(folder / "queue.db")) as engine:
        said: list[str] = []
        engine._connections.reading().connection.set_trace_callback(said.append)
        yield engine, lambda: Cost(0, said.count("COMMIT"))


@pytest.fixture(params=["sqlite", "postgres"])
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, Callable[[], Cost]]]:
    """An engine, and the cost of all its calls so far."""
    place: Any = on_sqlite(tmp_path) if request.param == "sqlite" else on_postgres(request.getfixturevalue("postgres"))
    with place as found:
        yield found


def held_by(engine: Engine) -> list[Leased]:
    """Messages under one lease; some others were acknowledged before, so that nothing is done for the first time."""
    engine.configure("orders", QueueOptions(ordered=True))
    engine.push([Push("orders", b"tea") for _ in range(MESSAGES)])
    held = list(engine.pop(PopRequest(queue="orders", limit=MESSAGES)).messages)
    for _ in range(5):
        acknowledge(engine, [held.pop(0)])
    return held


def acknowledge(engine: Engine, messages: Sequence[Leased]) -> None:
    done = engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages])
    assert all(each.success for each in done)


@pytest.mark.requirement("Q-24")
def test_a_hundred_acknowledgements_together_cost_as_many_round_trips_and_commits_as_one(
    counted: tuple[Engine, Callable[[], Cost]],
) -> None:
    engine, cost = counted
    held = held_by(engine)
    before = cost()

    acknowledge(engine, held[:1])
    between = cost()
    acknowledge(engine, held[1:101])
    after = cost()

    assert [now - then for then, now in zip(between, after, strict=True)] == [
        now - then for then, now in zip(before, between, strict=True)
    ]


@pytest.mark.requirement("Q-25")
def test_one_acknowledgement_is_one_commit_and_at_most_one_round_trip(
    counted: tuple[Engine, Callable[[], Cost]],
) -> None:
    engine, cost = counted
    held = held_by(engine)
    before = cost()

    acknowledge(engine, held[:1])

    after = cost()
    assert after.commits - before.commits == 1
    assert after.round_trips - before.round_trips <= 1
