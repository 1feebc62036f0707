"""The contract on the broker within the client library, from a blocking pump's side."""

import pytest

from pump.colour import Colour
from support.kafka_contract import KafkaContract


class TestKafka(KafkaContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "blocking"
