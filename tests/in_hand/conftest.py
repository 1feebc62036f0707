"""Every transport whose messages outlive the process, for tests of what outlives the process as well."""

from pathlib import Path

import pytest

BROKERS = ("quorum", "classic", "nats", "streams", "lists", "sqlite", "postgres")


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each durable transport in turn, on a broker that runs."""
    kind = request.param
    if kind in {"quorum", "classic"}:
        return f"{request.getfixturevalue('rabbitmq').url}?queue_type={kind}"
    if kind == "nats":
        return str(request.getfixturevalue("nats_server").url)
    if kind in {"streams", "lists"}:
        scheme = "redis+list" if kind == "lists" else "redis"
        return f"{scheme}://127.0.0.1:{request.getfixturevalue('redis_server').port}/0"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/queue.db"
    return f"{request.getfixturevalue('postgres_url')}?schema=test_{tmp_path.name[-30:].replace('-', '_')}"
