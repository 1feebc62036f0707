"""The queue's server for tests: in this process without a socket, or as a program of its own."""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from pump.queue.engine import Engine
from pump.queue.http.server import QueueServer
from pump.transport_kit.loop_thread import LoopThread
from support.programs import DEADLINE, PUMP, Program

LOOPBACK = "http://127.0.0.1"


class Answer:
    """What a request came to."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.body = response.content
        self.headers = response.headers

    @property
    def json(self) -> Any:
        """Its body, read."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Why not."""
        return str(self.json["error"])


class InProcess:
    """A server on a loop of its own, asked without a socket by blocking callers."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.server = QueueServer(engine, **options)
        self._thread = LoopThread("queue-server")
        self._opened = self.server.opened()
        self._thread.run(self._opened.__aenter__())
        transport = httpx.ASGITransport(self.server, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=LOOPBACK)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._client.aclose())
        self._thread.run(self._opened.__aexit__(None, None, None))
        self._thread.close()

    def begin(self, method: str, path: str, **options: Any) -> Future[Answer]:
        """Ask, and go on meanwhile."""
        return self._thread.submit(self._ask(method, path, options))

    def ask(self, method: str, path: str, **options: Any) -> Answer:
        """Ask, and wait for the answer."""
        return self.begin(method, path, **options).result(DEADLINE)

    def get(self, path: str, **options: Any) -> Answer:
        """GET."""
        return self.ask("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> Answer:
        """POST a tree, bytes as they are, or nothing at all."""
        return self.ask("POST", path, content=as_body(body), **options)

    def delete(self, path: str, **options: Any) -> Answer:
        """DELETE."""
        return self.ask("DELETE", path, **options)

    def push(self, queue: str, *payloads: object, **members: object) -> list[Any]:
        """Store these, and say what became of each."""
        items = [{"queue": queue, "payload": payload, **members} for payload in payloads]
        answer = self.post("/api/v1/push", {"items": items})
        assert answer.status == 201, answer.body
        found: list[Any] = answer.json
        return found

    def pop(self, queue: str, **query: object) -> list[Any]:
        """The messages that are ready."""
        answer = self.get(f"/api/v1/pop/queue/{queue}", params=query)
        assert answer.status in {200, 204}, answer.body
        return answer.json["messages"] if answer.status == 200 else []

    def settle(self, message: Mapping[str, Any], status: str = "completed", **members: object) -> Any:
        """Settle one message under the lease that it came with."""
        answer = self.post("/api/v1/ack", {**told(message), "status": status, **members})
        assert answer.status == 200, answer.body
        return answer.json[0]

    def on_loop(self, act: Any) -> None:
        """Call it on the server's own thread."""

        async def do() -> None:
            act()

        self._thread.run(do())

    def raw(self, scope: Mapping[str, Any], receive: Any, send: Any) -> Future[None]:
        """Ask as a server would ask the application, to see what it does when somebody hangs up."""
        return self._thread.submit(self.server(dict(scope), receive, send))

    async def _ask(self, method: str, path: str, options: Mapping[str, Any]) -> Answer:
        return Answer(await self._client.request(method, path, timeout=None, **options))


def as_body(body: object) -> bytes | None:
    """A tree in JSON; bytes and nothing as they are."""
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def told(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a settlement says of which message is meant."""
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}


def data(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the messages carry."""
    return [each["data"] for each in messages]


class Served:
    """`pump queue serve` as a program, which can be killed and begun again at the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._port = 0
        self.program = self._begin()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def port(self) -> int:
        """The same as a number."""
        return self._port

    def command(self, *arguments: str) -> list[str]:
        """How the program is called."""
        return [*PUMP, *arguments]

    def begin_again(self) -> None:
        """Start it anew, where it was; if it still runs, it is killed."""
        self.program.__exit__(None, None, None)
        self.program = self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.__exit__(kind, error, trace)

    def _begin(self) -> Program:
        command = self.command("queue", "serve", "--port", str(self._port), *self._options)
        program = Program(command, self._folder)
        try:
            said = program.says("listening on ")
        except BaseException:
            program.__exit__(None, None, None)
            raise
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found is not None
        self._port = int(found[1])
        return program
