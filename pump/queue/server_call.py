"""One request while it is answered: what it asks, who asks, and how its answer goes out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pump.queue import wire
from pump.queue.desk import Desk
from pump.queue.engine import Engine
from pump.queue.errors import QueueError
from pump.queue.server_metrics import Metrics
from pump.queue.wire_replies import dump

log: Final = logging.getLogger("pump.queue")

LARGEST_BODY_BYTES: Final = 10_000_000

Found = TypeVar("Found")


class TooLarge(QueueError):  # noqa: N818 - it says what is wrong
    """A request carries more than the server takes."""


class HungUp(Exception):  # noqa: N818 - it says what happened
    """Whoever asked is not there any more: nobody is to be answered."""


class House:
    """What all requests of one server share."""

    def __init__(self, engine: Engine, *, create_groups: bool = True) -> None:
        self.engine: Final = engine
        self.desk: Final = Desk(engine)
        self.metrics: Final = Metrics()
        self.create_groups: Final = create_groups
        self.closing = False
        self._waiting: Final[set[asyncio.Task[Any]]] = set()

    def send_home(self) -> None:
        """Answer all who wait for messages, and let nobody wait any longer. For the loop's thread."""
        self.closing = True
        for task in self._waiting:
            task.cancel()

    async def wait_for(self, work: Coroutine[Any, Any, Found], gone: Coroutine[Any, Any, None]) -> Found | None:
        """What the work comes to; None where the server closes first. HungUp as soon as `gone` ends."""
        task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone)
        self._waiting.add(task)
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            return await self._outcome(task)
        finally:
            self._waiting.discard(task)
            task.cancel()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _outcome(self, task: "asyncio.Task[Found]") -> Found | None:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                return await task  # it was quicker: what it has taken is not to be lost
            raise HungUp
        if task.cancelled():
            return None
        return task.result()


class Call:
    """One request."""

    def __init__(self, house: House, request: Request, producer: str | None) -> None:
        self.house: Final = house
        self.desk: Final = house.desk
        self.engine: Final = house.engine
        self.metrics: Final = house.metrics
        self.producer: Final = producer
        self._request: Final = request

    @property
    def names(self) -> Mapping[str, str]:
        """The parts of its path that stand for something."""
        return self._request.path_params

    def query(self) -> dict[str, str]:
        """What stands behind the question mark."""
        return wire.query(self._request.scope["query_string"])

    async def body(self) -> bytes:
        """All that it carries, or TooLarge as soon as it is."""
        length = self._request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > LARGEST_BODY_BYTES:
            raise TooLarge(f"a request carries at most {LARGEST_BODY_BYTES} bytes")
        chunks, size = list[bytes](), 0
        try:
            async for chunk in self._request.stream():
                size += len(chunk)
                if size > LARGEST_BODY_BYTES:
                    raise TooLarge(f"a request carries at most {LARGEST_BODY_BYTES} bytes")
                chunks.append(chunk)
        except ClientDisconnect:
            raise HungUp from None
        return b"".join(chunks)

    async def hung_up(self) -> bool:
        """Whether whoever asked has gone, as far as is known."""
        return await self._request.is_disconnected()

    async def until_hung_up(self) -> None:
        """Wait until whoever asks has gone."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass  # the next request of a connection that sends several at once


def reply(tree: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return json_bytes(dump(tree), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is JSON already."""
    return Response(body, status, headers, "application/json")


def refusal(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says why not."""
    return reply({"success": False, "error": text}, status, headers)


def nothing() -> Response:
    """There is nothing to say, so there is no body."""
    return Response(status_code=204)


class Handing(Response):
    """An answer that hands over what nobody else can get meanwhile: where it cannot be sent, that is taken back."""

    def __init__(
        self, body: bytes, gone: Callable[[], Awaitable[bool]], take_back: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(body, 200, None, "application/json")
        self._gone: Final = gone
        self._take_back: Final = take_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102 - as ASGI has it
        if await self._is_there(send):
            await send({"type": "http.response.body", "body": self.body[-1:], "more_body": False})
        else:
            await self._take_back()

    async def _is_there(self, send: Send) -> bool:
        """Send all but the last byte: who has gone until then cannot have read it, and who has read it may go."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in (self.body[:-1], b""):  # before the second one is sent, most of the first one has gone
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except OSError:
            return False
        return not await self._gone()
