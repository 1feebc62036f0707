"""The contract on standard queues, from the side of an awaiting pump."""

import pytest

from pump.colour import Colour
from support.sqs_contract import SqsContract


@pytest.mark.long
class TestStandardAwaiting(SqsContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "awaiting"
