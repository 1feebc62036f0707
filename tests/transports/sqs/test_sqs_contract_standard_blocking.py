"""The contract on standard queues, from the side of a blocking pump."""

import pytest

from pump.colour import Colour
from support.sqs_contract import SqsContract


class TestStandardBlocking(SqsContract):
    @pytest.fixture
    def colour(self) -> Colour:
        return "blocking"
