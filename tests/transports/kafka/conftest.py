"""What the tests of the Kafka transport are made with."""

from pathlib import Path

import pytest

from brokers.kafka import Kafka
from support.kafka_works import Works


@pytest.fixture
def works(tmp_path: Path, kafka_broker: Kafka) -> Works:
    return Works(tmp_path, kafka_broker.url)
