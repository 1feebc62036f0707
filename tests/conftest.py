"""Fixtures for every test to ask for by name."""

import pytest

pytest.register_assert_rewrite("brokers", "support", "pump.testing.contract", "pump.testing.driver")

pytest_plugins = ["brokers.fixtures", "support.pump_fixtures", "support.queue_http_fixtures"]
