"""What the tests of the SQS transports are made with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pump import Dispatcher
from support.redis_works import Works


@pytest.fixture(params=["sqs", "sqs+fifo"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Either kind of queue in turn, as a URL says it."""
    return str(request.param)


@pytest.fixture(params=["reactor", "proactor"])
def awaiting(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "proactor")


@pytest.fixture
def works(tmp_path: Path) -> Works:
    return Works(tmp_path)


@pytest.fixture
def running() -> Iterator[Callable[[Dispatcher], Dispatcher]]:
    """Start dispatchers; they are stopped after the test."""
    with ExitStack() as stack:
        yield stack.enter_context
