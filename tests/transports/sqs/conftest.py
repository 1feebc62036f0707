"""What the tests of the SQS transports are made with."""

import pytest


@pytest.fixture(params=["sqs", "sqs+fifo"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Either kind of queue in turn, as a URL says it."""
    return str(request.param)
