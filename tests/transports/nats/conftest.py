"""Fixtures of the tests of NATS: each kind of pump, the shared server, and a connection to observe it."""

from collections.abc import Iterator

import pytest

from brokers.nats import Nats
from pump.transports.nats import NatsTransport
from support.nats_wire import BOTH, Wire, name
from support.pumps import Kind


@pytest.fixture(params=BOTH, ids=[kind.name for kind in BOTH])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of pump in turn."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def module_nats_server() -> Iterator[Nats]:
    """A second server for each module: stopping one takes longer the more streams it has."""
    with Nats() as server:
        yield server


@pytest.fixture
def own_nats_server(module_nats_server: Nats) -> Nats:
    """The second server, running whatever the last test did to it."""
    module_nats_server.revive()
    return module_nats_server


@pytest.fixture
def wire(nats_server: Nats) -> Iterator[Wire]:
    """A connection of the test's own to the shared server."""
    with Wire(nats_server.url) as wire:
        yield wire


@pytest.fixture
def transport(nats_server: Nats) -> NatsTransport:
    """The shared server."""
    return NatsTransport(nats_server.url)


@pytest.fixture
def topic() -> str:
    """A subject that nobody uses; its stream and its durable get the same name."""
    return name()
