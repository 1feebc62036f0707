"""Fixtures of the tests of pumps: each kind of pump in turn, and what is closed after the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pump import Dispatcher
from support.pumps import KINDS, Bench, Body, Kind
from support.works import Works

Pumping = Callable[..., Bench]


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of pump in turn."""
    found: Kind = request.param
    return found


@pytest.fixture
def pumping(kind: Kind, benches: ExitStack) -> Pumping:
    """Makes a bench whose one handler, in the pump's colour, has this body, these attributes and these options."""

    def make(body: Body, *attributes: Any, **options: Any) -> Bench:
        handler = kind.handler(body, *attributes)
        return benches.enter_context(Bench(handler, **{**kind.options, **options}))

    return make


@pytest.fixture
def explicitly(kind: Kind, benches: ExitStack) -> Pumping:
    """The same with a handler that settles its messages itself: the body is given a delivery."""

    def make(body: Body, **options: Any) -> Bench:
        return benches.enter_context(Bench(kind.explicit(body), **{**kind.options, **options}))

    return make


@pytest.fixture
def benches() -> Iterator[ExitStack]:
    """Closes everything that is entered into it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["reactor", "proactor"])
def awaiting(request: pytest.FixtureRequest) -> bool:
    """Whether the pump awaits: first not, then yes."""
    return bool(request.param == "proactor")


@pytest.fixture
def works(tmp_path: Path) -> Works:
    """A channel with jobs to do."""
    return Works(tmp_path)


@pytest.fixture
def running() -> Iterator[Callable[[Dispatcher], Dispatcher]]:
    """Start dispatchers; they are stopped after the test."""
    with ExitStack() as stack:
        yield stack.enter_context
