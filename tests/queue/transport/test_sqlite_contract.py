"""The contract on the durable queue in a SQLite file, from a blocking and from an awaiting pump."""

from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from pump.colour import Colour
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport import consumer as queue_consumer
from pump.queue.transport.envelope import START
from pump.queue.vocabulary import Push
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.sqlite import SqliteTransport


@pytest.mark.requirement("R-41", "B-24", "B-32", "B-33")
class TestSqlite(TransportContract):
    silence_seconds = 0.25
    delay_seconds = 0.6
    lease_seconds = 0.7

    @pytest.fixture
    def transport(self, tmp_path: Path) -> Transport:
        return SqliteTransport(tmp_path / "queue.db")

    @pytest.fixture(autouse=True)
    def _hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue_consumer, "LOOK_SECONDS", 0.1)

    def in_another_process(self, transport: Transport) -> str:
        assert isinstance(transport, SqliteTransport)
        return (
            f"from pump.transports.sqlite import SqliteTransport\ntransport = SqliteTransport({str(transport.path)!r})"
        )

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        assert isinstance(transport, SqliteTransport)
        body = START + b'000009","header":{"id":[]}}'
        with closing(SqliteEngine(transport.path)) as engine:
            engine.push([Push(topic, body)])
        return body


class TestSqliteInOrder(TestSqlite):
    ordered = True

    @pytest.fixture(params=["blocking", pytest.param("awaiting", marks=pytest.mark.long)])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)
