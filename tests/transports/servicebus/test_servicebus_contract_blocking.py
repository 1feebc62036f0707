"""The contract, blocking: on topics with subscriptions, and as a long form on queues."""

from typing import cast

import pytest

from pump.colour import Colour
from support.servicebus_contract import QueuesContract, SessionsContract, TopicsContract


class TestBlockingTopics(TopicsContract):
    @pytest.fixture(params=["blocking"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


@pytest.mark.long
class TestBlockingQueues(QueuesContract):
    @pytest.fixture(params=["blocking"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


class TestBlockingSessions(SessionsContract):
    @pytest.fixture(params=["blocking"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)
