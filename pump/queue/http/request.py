"""One request while it is answered: what it asks, who asks, and whether its client is still there."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.types import Message

from pump.clock import Clock, Signal
from pump.queue.errors import QueueError
from pump.queue.http.state import ClientDisconnected, ServerState
from pump.queue.wire import queries
from pump.queue.wire.queries import Query

log: Final = logging.getLogger("pump.queue")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LARGEST_BODY_BYTES: Final = 10_000_000
BODY_SECONDS: Final = 30.0
"""The whole body of a request has to arrive within this time."""

_TOO_LARGE: Final = f"a request carries at most {LARGEST_BODY_BYTES} bytes"


class BodyTooLarge(QueueError):  # noqa: N818 - it says what is wrong
    """The body of a request is larger than the server takes."""


class BodyTooSlow(QueueError):  # noqa: N818 - it says what is wrong
    """The body of a request takes longer to arrive than the server waits."""


class QueueRequest:
    """One request to the queue."""

    def __init__(self, state: ServerState, request: Request, producer: str | None) -> None:
        self.state: Final = state
        self.batched: Final = state.batched
        self.engine: Final = state.engine
        self.metrics: Final = state.metrics
        self.producer: Final = producer
        """The name of the token that it came with."""
        self._request: Final = request
        self._pieces: Final[list[bytes]] = []
        self._size = 0

    @property
    def names(self) -> Mapping[str, str]:
        """The parameters in its path."""
        return self._request.path_params

    def query(self, kind: type[Query]) -> Query:
        """The parameters behind the question mark."""
        return queries.read_query(self._request.scope["query_string"], kind)

    async def call(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """The result of a function of the engine, called on a thread."""
        return await self.batched.call(function, *args, **options)

    async def body(self) -> bytes:
        """The whole body; raises BodyTooLarge or BodyTooSlow as early as possible."""
        length = self._request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > LARGEST_BODY_BYTES:
            raise BodyTooLarge(_TOO_LARGE)
        arrived = self._arrived()  # most bodies have arrived together with their head
        if arrived is None or not self._is_last(arrived):
            await _within(BODY_SECONDS, self.state.clock, self._receive_rest())
        return b"".join(self._pieces)

    def is_disconnected(self) -> bool:
        """Whether the client has gone, as far as is known."""
        arrived = self._arrived()
        return arrived is not None and arrived["type"] == "http.disconnect"

    async def wait_until_disconnected(self) -> None:
        """Wait until the client has gone."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass  # the next request of a connection that sends several at once

    def _arrived(self) -> Message | None:
        """The next message, if it has arrived already: one step of `receive` that does not wait."""
        waiting = self._request.receive().__await__()
        try:
            next(waiting)
        except StopIteration as end:
            message: Message = end.value
            return message
        waiting.close()
        return None

    async def _receive_rest(self) -> None:
        while not self._is_last(await self._request.receive()):
            pass

    def _is_last(self, message: Message) -> bool:
        """Keep a piece of the body; whether it was the last one."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size > LARGEST_BODY_BYTES:
            raise BodyTooLarge(_TOO_LARGE)
        self._pieces.append(piece)
        return not message.get("more_body", False)


async def _within(seconds: float, clock: Clock, work: Coroutine[object, object, None]) -> None:
    """Wait for the work; it is cancelled, with BodyTooSlow, when the clock says that the time is over."""
    task, ended = asyncio.ensure_future(work), Signal()
    task.add_done_callback(lambda _: ended.set())
    try:
        if not await clock.wait_async(ended, seconds):
            raise BodyTooSlow(f"the body of a request comes within {seconds:g} seconds")
        await task
    finally:
        task.cancel()
