"""The contract on the test bed's Pub/Sub, from an awaiting pump's side."""

import pytest

from pump.colour import Colour
from support.pubsub_contract import PubSubContract


class TestAwaiting(PubSubContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "awaiting"


class TestAwaitingStreaming(TestAwaiting):
    streaming = True
