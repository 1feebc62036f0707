"""The fixtures of the tests of the RabbitMQ transport."""

import pytest

from brokers.rabbitmq import RabbitMQ


@pytest.fixture
def rabbitmq(own_rabbitmq: RabbitMQ) -> RabbitMQ:
    """The broker that may be restarted, for all tests here: one broker starts faster than two."""
    return own_rabbitmq


@pytest.fixture(params=["reactor", "proactor"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["quorum", "classic"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)
