"""The contract on the test bed's Pub/Sub, from a blocking pump's side."""

import pytest

from pump.colour import Colour
from support.pubsub_contract import PubSubContract


class TestBlocking(PubSubContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "blocking"


class TestBlockingStreaming(TestBlocking):
    streaming = True
