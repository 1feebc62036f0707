import pytest

from support.pipelines import Harness


@pytest.fixture(params=["blocking", "awaiting"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(request.param)
