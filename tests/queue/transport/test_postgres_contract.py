"""The contract on the durable queue in PostgreSQL, from a blocking and from an awaiting pump."""

import uuid
from contextlib import closing
from typing import Final, cast

import pytest

from brokers.postgres import Postgres
from pump.colour import Colour
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.transport import consumer as queue_consumer
from pump.queue.transport.envelope import START
from pump.queue.vocabulary import Push
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.postgres import PostgresTransport

SCHEMA: Final = f"contract_{uuid.uuid4().hex[:12]}"
"""One for all tests: their topics and channels have names of their own, and to make a schema takes long."""


@pytest.mark.requirement("R-41", "B-24", "B-32", "B-33")
class TestPostgres(TransportContract):
    """On a server that may be restarted."""

    broker: Postgres
    silence_seconds = 0.25
    delay_seconds = 0.6
    lease_seconds = 0.7

    @pytest.fixture(autouse=True)
    def _on(self, own_postgres: Postgres) -> None:
        self.broker = own_postgres

    @pytest.fixture
    def transport(self, _on: None) -> Transport:
        return PostgresTransport(self.broker.url, schema=SCHEMA)

    @pytest.fixture(autouse=True)
    def _hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue_consumer, "LOOK_SECONDS", 0.1)

    def in_another_process(self, transport: Transport) -> str:
        made = f"PostgresTransport({self.broker.url!r}, schema={SCHEMA!r})"
        return f"from pump.transports.postgres import PostgresTransport\ntransport = {made}"

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        body = START + b'000009","header":{"id":[]}}'
        with closing(PostgresEngine(self.broker.url, schema=SCHEMA)) as engine:
            engine.push([Push(topic, body)])
        return body

    def break_connection(self, transport: Transport) -> None:
        assert self.broker.kill_backends("message-pump%")

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()


class TestPostgresInOrder(TestPostgres):
    ordered = True

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)
