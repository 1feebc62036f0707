"""The transports, each on a broker that runs: those whose messages outlive the process, for what outlives it as well.

A test that is for others too names them: `@pytest.mark.parametrize("url", [...], indirect=True)`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

BROKERS = ("quorum", "classic", "nats", "streams", "lists", "sqlite", "postgres")

OTHERS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "memory": ("tmp_path", lambda folder: f"memory://{folder.name}"),
    "kafka": ("kafka_broker", lambda broker: broker.url),
    "mqtt": ("mosquitto", lambda broker: f"mqtt://127.0.0.1:{broker.port}?version=5"),
    "servicebus": ("servicebus", lambda broker: broker.url),
    "sessions": ("servicebus", lambda broker: broker.url.replace("servicebus", "servicebus+sessions", 1)),
    "sqs": ("sqs_server", lambda broker: broker.url_for("sqs", broker.port)),
    "fifo": ("sqs_server", lambda broker: broker.url_for("sqs+fifo", broker.port)),
    "pubsub": ("pubsub_server", lambda broker: broker.url),
}
"""The fixture of each other transport, and its URL."""


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Its address."""
    kind = request.param
    if kind in OTHERS:
        fixture, url_of = OTHERS[kind]
        return url_of(request.getfixturevalue(fixture))
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
