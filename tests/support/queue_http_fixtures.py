"""Fixtures of the tests of the queue's server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pump.queue.engine import Engine
    from support.queue_http import InProcess, Served

Serving = Callable[..., "InProcess"]


@pytest.fixture
def file_engine(tmp_path: Path) -> "Iterator[Engine]":
    """The queue in a file of its own."""
    from pump.queue.sqlite.engine import SqliteEngine

    engine = SqliteEngine(tmp_path / "queue.db")
    yield engine
    engine.close()


@pytest.fixture
def http(file_engine: "Engine") -> "Iterator[InProcess]":
    """A server in this process."""
    from support.queue_http import InProcess

    with InProcess(file_engine) as server:
        yield server


@pytest.fixture
def serving(file_engine: "Engine") -> Iterator[Serving]:
    """Begins servers in this process with other options, or in front of another engine."""
    from support.queue_http import InProcess

    with ExitStack() as stack:

        def serve(engine: "Engine | None" = None, **options: Any) -> "InProcess":
            return stack.enter_context(InProcess(engine or file_engine, **options))

        yield serve


@pytest.fixture
def served(tmp_path: Path) -> "Iterator[Served]":
    """The server as a program, on a file of its own."""
    from support.queue_http import Served

    with Served(tmp_path) as server:
        yield server
