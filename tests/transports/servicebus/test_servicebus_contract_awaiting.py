"""The contract, awaiting: on topics with subscriptions, and as a long form on queues."""

from typing import cast

import pytest

from pump.colour import Colour
from support.servicebus_contract import QueuesContract, SessionsContract, TopicsContract


class TestAwaitingTopics(TopicsContract):
    @pytest.fixture(params=["awaiting"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


@pytest.mark.long
class TestAwaitingQueues(QueuesContract):
    @pytest.fixture(params=["awaiting"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)


class TestAwaitingSessions(SessionsContract):
    @pytest.fixture(params=["awaiting"])
    def colour(self, request: pytest.FixtureRequest) -> Colour:
        return cast("Colour", request.param)
