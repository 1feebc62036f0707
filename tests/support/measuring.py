"""Which programs of the tests have their coverage measured: measuring takes a third of their time."""

from collections.abc import Iterator

import pytest

from brokers.peer import NOT_MEASURED

COVERED_ELSEWHERE = ("tests/chaos/", "tests/in_hand/", "tests/spark/", "tests/test_bed/", "tests/transports/")
"""Where programs run only what tests cover without them."""


@pytest.fixture(autouse=True, scope="module")
def programs_that_are_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """In some folders the programs that a test starts are not measured; what it does itself is."""
    with pytest.MonkeyPatch.context() as environment:
        if request.node.nodeid.startswith(COVERED_ELSEWHERE):
            for name, value in NOT_MEASURED.items():
                environment.setenv(name, value)
        yield
