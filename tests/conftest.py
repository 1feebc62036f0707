"""Fixtures for every test to ask for by name."""

from contextlib import suppress

import pytest

pytest.register_assert_rewrite("brokers", "support", "pump.testing.contract", "pump.testing.driver")

pytest_plugins = ["brokers.fixtures", "support.pump_fixtures", "support.queue_http_fixtures"]


def pytest_sessionfinish() -> None:
    """Save what was covered now: a worker that takes long to end is killed, and would save nothing."""
    with suppress(ModuleNotFoundError):
        from coverage import Coverage

        measuring = Coverage.current()
        if measuring is not None:
            measuring.save()
