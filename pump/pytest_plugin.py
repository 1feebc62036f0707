"""The pytest plugin: fixtures for testing handlers and transports. It imports nothing until one of them is asked for.

It is loaded in every test run of every project that has this package, and before coverage begins to measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pump.clock import ManualClock
    from pump.testing.harness import PumpHarness
    from pump.transport_kit.protocol import Transport


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the contract's tests, and let pytest explain their assertions."""
    config.addinivalue_line("markers", "requirement(*ids): the requirements that the test proves")
    pytest.register_assert_rewrite("pump.testing.contract", "pump.testing.settlement", "pump.testing.driver")


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test moves it by `advance(seconds)`."""
    from pump.clock import ManualClock  # noqa: PLC0415 - lazily, as this module promises

    return ManualClock()


@pytest.fixture
def memory_transport(request: pytest.FixtureRequest) -> Transport:
    """An in-memory bus for this test alone, on `manual_clock` if the test uses that, else on real time."""
    from pump.testing.harness import memory_transport  # noqa: PLC0415 - lazily, as this module promises

    clock = request.getfixturevalue("manual_clock") if "manual_clock" in request.fixturenames else None
    return memory_transport(clock)


@pytest.fixture
def pump_harness() -> Iterator[type[PumpHarness]]:
    """`pump_harness(YourHandler, …)` makes a PumpHarness; what it opened is closed after the test."""
    from contextlib import ExitStack  # noqa: PLC0415 - lazily, as this module promises

    from pump.testing.harness import PumpHarness  # noqa: PLC0415 - lazily, as this module promises

    with ExitStack() as made:

        class ClosedHarness(PumpHarness):
            def _made(self) -> None:
                made.callback(self.close)

        yield ClosedHarness
