"""Fixtures for every test to ask for by name."""

from contextlib import suppress

import pytest

pytest.register_assert_rewrite("brokers", "support", "pump.testing.contract", "pump.testing.driver")

pytest_plugins = ["brokers.fixtures", "support.pump_fixtures", "support.queue_http_fixtures", "support.measuring"]

LONGEST = (
    "chaos/test_scorecard",
    "test_servicebus_contract",
    "test_nats_contract",
    "test_sqs_faults",
    "test_redis_contract",
    "test_postgres_contract",
    "test_killers",
    "test_rabbitmq_contract",
    "spark/test_source",
    "test_pubsub",
    "_budget",
    "_faults",
    "_chaos",
    "spark/",
    "test_server_many_queues",
    "test_mqtt_stop",
    "test_operations_page",
    "test_examples",
    "_contract",
)
"""Parts of the names of the files that take longest. They begin first, so that no one of them is alone at the end."""
LOGGED_LINES = 12
"""How much of the log of a test that was run again the summary shows."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; a file keeps the order of its tests."""

    def place(item: pytest.Item) -> int:
        file, _, _ = item.nodeid.partition("::")
        return next((at for at, part in enumerate(LONGEST) if part in file), len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in a line each which tests were run again, and why; then the end of what each had logged."""
    for report in terminalreporter.stats.get("rerun", ()):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = f"{crash.path}:{crash.lineno}: {crash.message.splitlines()[0]}" if crash else report.longrepr
        terminalreporter.write_line(f"RERUN {report.nodeid}: {str(why)[:500]}")
        for line in report.caplog.splitlines()[-LOGGED_LINES:]:
            terminalreporter.write_line(f"    {line[:300]}")


def pytest_sessionfinish() -> None:
    """Save what was covered now: a worker that takes long to end is killed, and would save nothing."""
    with suppress(ModuleNotFoundError):
        from coverage import Coverage

        measuring = Coverage.current()
        if measuring is not None:
            measuring.save()
