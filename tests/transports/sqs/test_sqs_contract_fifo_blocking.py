"""The contract on FIFO queues, from the side of a blocking pump."""

import pytest

from pump.colour import Colour
from support.sqs_contract import FifoContract


@pytest.mark.long
class TestFifoBlocking(FifoContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "blocking"
