"""The walks: a message from RabbitMQ in both pumps; a push, a pop and an ack through the queue's HTTP server."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from brokers.rabbitmq import RabbitMQ
from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.queue.sqlite_engine import SqliteEngine
from support.queue_listening import serving
from walk.tracer import Tracer, Walk

ROUNDS: Final = 20
"""How many walks are traced. They differ a little: now and then a timer is due, or a thread is faster than another."""
WARM_UP: Final = 4
"""How many messages go before, so that connections are open and caches are filled."""
DEADLINE_SECONDS: Final = 20.0
BATCHED_SECONDS: Final = 0.02
"""How long an acknowledgement is held back at most, to be sent together with others."""


@dataclass(frozen=True)
class PlaceOrder(Command):
    """The message."""

    sku: str
    quantity: int


handled = threading.Semaphore(0)


class Blocking(RequestHandler[PlaceOrder]):
    """A handler for the Reactor."""

    def handle(self, order: PlaceOrder) -> None:
        """Tell the main thread."""
        handled.release()


class Awaiting(RequestHandler[PlaceOrder]):
    """A handler for the Proactor."""

    async def handle(self, order: PlaceOrder) -> None:
        """Tell the main thread."""
        handled.release()


Walks = Sequence[Walk]
"""Walks of the same kind, the shortest first."""


def all_walks(broker: RabbitMQ) -> dict[str, Walks]:
    """All that are traced, by name."""
    return {
        "RabbitMQ, Reactor": rabbitmq_walk(broker, Blocking),
        "RabbitMQ, Proactor": rabbitmq_walk(broker, Awaiting),
        **http_walks(),
    }


def rabbitmq_walk(broker: RabbitMQ, handler: type) -> Walks:
    """From the frame that is read to the acknowledgement that is written, until the pump waits for the next message."""
    name = f"walk-{uuid4().hex[:8]}"
    tracer = Tracer(quiet_seconds=4 * BATCHED_SECONDS)
    dispatcher = Dispatcher(
        broker.url,
        handlers=[handler],
        subscriptions=[Subscription(PlaceOrder, topic=name, channel=name)],
        publications=[Publication(PlaceOrder, topic=name)],
    )
    with broker.connect() as connection:
        send = _sender(connection, dispatcher, name)
        with tracer.installed(), dispatcher:

            def one() -> None:
                send()
                if not handled.acquire(timeout=DEADLINE_SECONDS):
                    raise TimeoutError("the message was not handled")

            walks = [_walk(tracer, one) for _ in range(WARM_UP + ROUNDS)]
    return _sorted(walks[WARM_UP:])


def _sender(connection: Any, dispatcher: Dispatcher, queue: str) -> Callable[[], None]:
    """Sends copies of a message by bare pika, so that of pump only the consuming side runs."""
    channel = connection.channel()
    with dispatcher.publishing():
        dispatcher.post(PlaceOrder("tea", 2))
    _, properties, body = channel.basic_get(queue, auto_ack=True)

    def send() -> None:
        connection.process_data_events(0)
        channel.basic_publish("", queue, body, properties)

    return send


def http_walks() -> dict[str, Walks]:
    """From a request to its response: a push, a pop and an acknowledgement on a SQLite file."""
    with _asking() as (tracer, ask):
        popped: list[Any] = []
        item = {"queue": "walk", "payload": {"sku": "tea", "quantity": 2}}
        steps = {
            "HTTP, push": lambda: ask("POST", "/api/v1/push", {"items": [item]}),
            "HTTP, pop": lambda: popped.extend(ask("GET", "/api/v1/pop/queue/walk")["messages"]),
            "HTTP, ack": lambda: ask("POST", "/api/v1/ack", _settlement(popped.pop())),
        }
        rounds = [{name: _walk(tracer, step) for name, step in steps.items()} for _ in range(WARM_UP + ROUNDS)]
    return {name: _sorted(walks[name] for walks in rounds[WARM_UP:]) for name in steps}


def _settlement(message: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: message[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
    return {**named, "status": "completed"}


@contextmanager
def _asking() -> Iterator[tuple[Tracer, Callable[..., Any]]]:
    tracer = Tracer(quiet_seconds=BATCHED_SECONDS)
    with TemporaryDirectory() as folder, tracer.installed():
        engine = SqliteEngine(Path(folder) / "queue.db")
        with closing(engine), serving(engine) as url, closing(HTTPConnection(urlsplit(url).netloc)) as connection:

            def ask(method: str, path: str, body: object = None) -> Any:
                connection.request(method, path, None if body is None else json.dumps(body).encode())
                response = connection.getresponse()
                answer = response.read()
                if not 200 <= response.status < 300:
                    raise ValueError(f"{path} was answered {response.status}: {answer!r}")
                return json.loads(answer)

            yield tracer, ask


def _walk(tracer: Tracer, act: Callable[[], object]) -> Walk:
    tracer.begin()
    act()
    return tracer.end()


def _sorted(walks: Iterable[Walk]) -> Walks:
    return sorted(walks, key=lambda walk: (walk.calls, walk.switches))
