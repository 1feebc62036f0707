"""One request while it is answered: what it asks, who asks, and how its answer goes out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pump.clock import Clock, Signal
from pump.queue.batching.batched_engine import Desk
from pump.queue.engine import Engine
from pump.queue.errors import QueueError
from pump.queue.http.metrics import Metrics
from pump.queue.wire import requests as wire
from pump.queue.wire.replies import dump

log: Final = logging.getLogger("pump.queue")

LARGEST_BODY_BYTES: Final = 10_000_000
BODY_SECONDS: Final = 30.0
"""So long the whole body of a request may take to come."""

_TOO_LARGE: Final = f"a request carries at most {LARGEST_BODY_BYTES} bytes"
_TURNS: Final = 2
"""So many turns the loop takes until it has noticed whose connection is broken."""

Found = TypeVar("Found")


class TooLarge(QueueError):  # noqa: N818 - it says what is wrong
    """A request carries more than the server takes."""


class TooSlow(QueueError):  # noqa: N818 - it says what is wrong
    """The body of a request takes longer to come than the server waits."""


class HungUp(Exception):  # noqa: N818 - it says what happened
    """Whoever asked is not there any more: nobody is to be answered."""


class House:
    """What all requests of one server share."""

    def __init__(self, engine: Engine, *, clock: Clock, create_groups: bool = True) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
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
        """All that it carries; TooLarge or TooSlow as soon as it is. Most have come with their head."""
        length = self._request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > LARGEST_BODY_BYTES:
            raise TooLarge(_TOO_LARGE)
        body = _Body()
        if not body.complete(self._come()):
            try:
                await _within(BODY_SECONDS, self.house.clock, self._rest(body))
            except TimeoutError:
                raise TooSlow(f"the body of a request comes within {BODY_SECONDS:g} seconds") from None
        return body.whole()

    async def _rest(self, body: "_Body") -> None:
        while not body.complete(await self._request.receive()):
            pass

    def hung_up(self) -> bool:
        """Whether whoever asked has gone, as far as is known."""
        come = self._come()
        return come is not None and come["type"] == "http.disconnect"

    def _come(self) -> Message | None:
        """What has come and was not received; None where that would have to be waited for."""
        waiting = self._request.receive().__await__()
        try:
            next(waiting)
        except StopIteration as come:
            message: Message = come.value
            return message
        waiting.close()
        return None

    async def until_hung_up(self) -> None:
        """Wait until whoever asks has gone."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass  # the next request of a connection that sends several at once


class _Body:
    """What has come of a body."""

    def __init__(self) -> None:
        self._pieces: Final[list[bytes]] = []
        self._size = 0

    def complete(self, message: Message | None) -> bool:
        """Take what has come; whether that was all."""
        if message is None:
            return False
        if message["type"] == "http.disconnect":
            raise HungUp
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size > LARGEST_BODY_BYTES:
            raise TooLarge(_TOO_LARGE)
        self._pieces.append(piece)
        return not message.get("more_body", False)

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)


async def _within(seconds: float, clock: Clock, work: Coroutine[Any, Any, None]) -> None:
    """Wait for the work; a TimeoutError ends it when the clock says so."""
    task, over = asyncio.ensure_future(work), Signal()
    task.add_done_callback(lambda _: over.set())
    try:
        if not await clock.wait_async(over, seconds):
            raise TimeoutError
        await task
    finally:
        task.cancel()


def _end(limit: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # all has come meanwhile
        limit.reschedule(0)


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

    def __init__(self, body: bytes, gone: Callable[[], bool], take_back: Callable[[], Awaitable[None]]) -> None:
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
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return not self._gone()
