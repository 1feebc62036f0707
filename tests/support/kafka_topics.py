"""Topics with as many partitions as a test asks for: the broker within the client library has no request for them."""

from collections.abc import Sequence

import pytest

from brokers.kafka import Kafka
from pump.transports.kafka.topics import Topics


def created_by(broker: Kafka, monkeypatch: pytest.MonkeyPatch, *, partitions: int) -> None:
    """From now on the broker is told by the test to create what the transport finds missing."""

    def create(_topics: Topics, names: Sequence[str], _what: str) -> None:
        for name in names:
            broker.tell("topic", name, partitions)

    monkeypatch.setattr(Topics, "_create", create)
