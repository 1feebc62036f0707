"""Fixtures of the tests of pumps: each kind of pump in turn, and benches that are closed after the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.pumps import KINDS, Bench, Body, Kind

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
