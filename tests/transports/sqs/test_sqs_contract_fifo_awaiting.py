"""The contract on FIFO queues, from the side of an awaiting pump."""

import pytest

from pump.colour import Colour
from support.sqs_contract import FifoContract


class TestFifoAwaiting(FifoContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "awaiting"
