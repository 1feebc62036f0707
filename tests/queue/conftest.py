"""Fixtures for the engines of the durable queue; each test has a database of its own."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pump.queue.engine import Engine
from pump.queue.sqlite.engine import SqliteEngine
from support.queue_rig import Rig

EngineMaker = Callable[..., Engine]


@pytest.fixture(params=["sqlite", "postgres"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineMaker]:
    """Makes engines on one database; they are closed after the test."""
    open_engine = on_sqlite(tmp_path) if request.param == "sqlite" else on_postgres(request)
    with ExitStack() as stack:

        def make(**options: Any) -> Engine:
            engine = open_engine(options)
            stack.callback(engine.close)
            return engine

        yield make


def on_sqlite(folder: Path) -> Callable[[dict[str, Any]], Engine]:
    """The engine on a file."""
    return lambda options: SqliteEngine(folder / "queue.db", **options)


def on_postgres(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], Engine]:
    """The engine on a server, in a schema of its own."""
    try:
        from pump.queue.postgres.engine import PostgresEngine
    except ModuleNotFoundError as missing:
        pytest.skip(f"there is no {missing.name}")
    url: str = request.getfixturevalue("postgres_url")
    schema = f"test_{uuid.uuid4().hex[:16]}"
    return lambda options: PostgresEngine(url, schema=schema, **options)


@pytest.fixture
def engine(make_engine: EngineMaker) -> Engine:
    return make_engine()


@pytest.fixture
def rig(engine: Engine) -> Rig:
    """An ordered queue without a retry delay."""
    rig = Rig(engine)
    rig.configure()
    return rig


@pytest.fixture
def loose(engine: Engine) -> Rig:
    """An unordered queue without a retry delay."""
    rig = Rig(engine, ordered=False)
    rig.configure()
    return rig


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def either(request: pytest.FixtureRequest, engine: Engine) -> Rig:
    """A queue of each kind, without a retry delay."""
    rig = Rig(engine, ordered=request.param)
    rig.configure()
    return rig
