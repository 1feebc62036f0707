"""If the database is gone or code fails, every request is answered, nothing leaks, nothing is half done."""

import threading
from typing import Any

import pytest

from pump.queue.errors import QueueUnavailable
from pump.queue.http.routes import ROUTES
from support.queue_http import InProcess, data, told
from support.queue_http_fixtures import Serving

SECRET = 'ERROR: relation "pump.message" violates constraint; INSERT INTO message VALUES ($1)'
MESSAGE = {"transactionId": "t", "partitionId": "5a3e1f3e-0000-4000-8000-000000000000"}
BODIES: dict[str, object] = {
    "/api/v1/push": {"items": [{"queue": "q"}]},
    "/api/v1/ack": MESSAGE,
    "/api/v1/ack/batch": {"acknowledgments": [MESSAGE]},
    "/api/v1/transaction": {"operations": [{"type": "ack", **MESSAGE}]},
    "/api/v1/configure": {"queue": "q"},
    "/api/v1/traces": {**MESSAGE, "data": 1},
    "/api/v1/dlq/redrive": {"ids": ["x"]},
    "/api/v1/consumer-groups/{group}/subscription": {"subscriptionTimestamp": "2026-01-01"},
}
SEEK = {"toEnd": True}
WITHOUT_DATABASE = {
    "/health": 503,
    "/metrics": 200,
    "/metrics/prometheus": 200,
    "/openapi.json": 200,
    "/api/v1/stats/refresh": 200,
}


class Broken:
    """An engine whose every call raises until it is repaired."""

    def __init__(self, engine: Any, error: Exception) -> None:
        self._engine = engine
        self.error: Exception | None = error

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        def call(*args: Any, **options: Any) -> Any:
            if self.error is None or name == "close":
                return method(*args, **options)
            if name == "healthy" and isinstance(self.error, QueueUnavailable):
                return False
            raise self.error

        return call


def path_of(entry: Any) -> str:
    path: str = entry.path
    for name in entry.parameters:
        path = path.replace(f"{{{name}}}", "x")
    return path


def body_of(entry: Any) -> object:
    return SEEK if entry.path.endswith("/seek") else BODIES.get(entry.path)


@pytest.mark.requirement("Q-69", "Z-10", "Z-14")
@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: f"{entry.method} {entry.path}")
def test_without_its_database_every_route_says_so(serving: Serving, file_engine: Any, entry: Any) -> None:
    http = serving(Broken(file_engine, QueueUnavailable(SECRET)))

    answer = http.ask(entry.method, path_of(entry), json=body_of(entry))

    if entry.path in WITHOUT_DATABASE:
        assert answer.status == WITHOUT_DATABASE[entry.path]
    else:
        assert answer.status == 503
        assert answer.json == {"success": False, "error": "database connection unavailable"}
    assert b"INSERT" not in answer.body


@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: f"{entry.method} {entry.path}")
def test_a_defect_is_answered_without_a_word_of_the_database(serving: Serving, file_engine: Any, entry: Any) -> None:
    http = serving(Broken(file_engine, RuntimeError(SECRET)))

    answer = http.ask(entry.method, path_of(entry), json=body_of(entry))

    assert b"INSERT" not in answer.body
    if entry.path.startswith("/api/v1/pop/"):
        assert (answer.status, answer.error) == (503, "database connection unavailable")
    elif entry.path not in WITHOUT_DATABASE:
        assert (answer.status, answer.error) == (500, "internal error")


def test_who_waits_is_told_of_an_outage(serving: Serving, file_engine: Any) -> None:
    http = serving(Broken(file_engine, QueueUnavailable(SECRET)))

    answer = http.get("/api/v1/pop/queue/q?wait=true&timeout=20000")

    assert (answer.status, answer.error) == (503, "database connection unavailable")


@pytest.mark.requirement("Q-72", "Z-14")
def test_what_was_pushed_in_an_outage_is_not_kept(serving: Serving, file_engine: Any) -> None:
    engine = Broken(file_engine, QueueUnavailable(SECRET))
    http = serving(engine)
    refused = http.post("/api/v1/push", {"items": [{"queue": "q", "payload": "lost?"}]})

    engine.error = None
    http.push("q", "kept")

    assert refused.status == 503
    assert http.get("/health").status == 200
    assert data(http.pop("q", batch=10)) == ["kept"]


def test_maintenance_goes_on_after_an_outage(serving: Serving, file_engine: Any) -> None:
    from pump.clock import ManualClock

    class Watched(Broken):
        def __init__(self, engine: Any) -> None:
            super().__init__(engine, QueueUnavailable(SECRET))
            self.tried = threading.Semaphore(0)

        def maintain(self) -> float:
            self.tried.release()
            if self.error is not None:
                raise self.error
            found: float = self._engine.maintain()
            return found

    clock, engine = ManualClock(), Watched(file_engine)
    serving(engine, clock=clock)

    for error in (QueueUnavailable(SECRET), RuntimeError(SECRET), None):
        engine.error = error
        clock.wait_for_sleepers(1)
        clock.advance(60)
        assert engine.tried.acquire(timeout=10)
    clock.wait_for_sleepers(1)


@pytest.mark.requirement("Z-10")
def test_what_a_consumer_could_not_be_told_of_goes_back(http: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    from pump.queue.wire import replies as wire_replies

    http.push("q", 1)

    def broken(*_: Any) -> bytes:
        raise RuntimeError(SECRET)

    with monkeypatch.context() as broken_for_now:
        broken_for_now.setattr(wire_replies, "popped", broken)
        answer = http.get("/api/v1/pop/queue/q")

    assert answer.status == 503
    [again] = http.pop("q")
    assert (again["data"], again["retries"], again["crashes"]) == (1, 0, 0)
    assert http.settle(again)["success"]
    assert told(again)["leaseId"]
