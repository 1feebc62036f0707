"""The state that all requests of one server share, and one request while it is being answered."""

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from pump.clock import Clock, Signal
from pump.errors import PumpError
from pump.queue.batching.batched_engine import BatchedEngine
from pump.queue.causes import NO_ANSWER
from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.http.body_room import SMALL_BODY_BYTES, BodyReader, BodyRoom
from pump.queue.http.metrics import Metrics
from pump.queue.http.outages import Outages
from pump.queue.wire import queries
from pump.queue.wire.queries import Query

log: Final = logging.getLogger("pump.queue")

Result = TypeVar("Result")

LARGEST_BODY_BYTES: Final = 10_000_000
ANSWER_SECONDS: Final = 8.0
"""How long /health waits for the database: longer than the engine waits for a connection."""
PROBE_SECONDS: Final = 5.0
"""The shortest time between two test writes of /health."""
BODY_SECONDS: Final = 30.0
"""The whole body of a request has to arrive within this time."""

_NO_ROOM: Final = "the server is reading too many large bodies: try again"
_CLOSE: Final[Mapping[str, str]] = {"Connection": "close"}
_GO_AWAY: Final[Mapping[str, str]] = {"Connection": "close", "Retry-After": "1"}
_TOO_LARGE: Final = f"a request may have at most {LARGEST_BODY_BYTES} bytes"


class ClientDisconnected(Exception):  # noqa: N818 - it says what happened
    """The client has disconnected: nobody would receive a reply."""


class ServerState:
    """The engine of one server, its metrics and its waiting consumers. For the loop's thread."""

    def __init__(self, engine: Engine, *, clock: Clock, create_groups: bool = True) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self.batched: Final = BatchedEngine(engine)
        self.metrics: Final = Metrics()
        self.create_groups: Final = create_groups
        self.bodies: Final = BodyRoom(clock)
        self.outages: Final = Outages(clock, self.metrics)
        self.closing = False
        self._problem = ("", -math.inf)
        self._probe: asyncio.Task[None] | None = None
        self._ping: asyncio.Task[bool] | None = None
        self._pinged = -math.inf
        self._waiting: Final[set[asyncio.Task[Any]]] = set()

    async def answers(self) -> bool | None:
        """Whether the database answers now; None if it hangs. It is asked once, however many want to know."""
        if self._ping is None:
            self._ping, self._pinged = asyncio.create_task(self._is_healthy()), self.clock.monotonic()
        ping = self._ping
        in_time = await self._ended(ping, self._pinged + ANSWER_SECONDS - self.clock.monotonic())
        return ping.result() if in_time else None

    async def problem(self, *, answers: bool | None) -> str:
        """Why requests are refused; "" if none is. Tested at most every few seconds: it costs a write."""
        if answers is None:
            return NO_ANSWER.words
        words, tried = self._problem
        if self.clock.monotonic() - tried > PROBE_SECONDS or not (answers or words):
            if self._probe is None:
                self._probe = asyncio.create_task(self._why_not())
            if not await self._ended(self._probe, ANSWER_SECONDS):  # the others who ask wait for the same test
                return NO_ANSWER.words
            words, _ = self._problem
        return words or self.outages.lasting()

    async def _is_healthy(self) -> bool:
        try:
            return await self.batched.call(self.engine.healthy)
        except PumpError:
            return False
        finally:
            self._ping = None

    async def _why_not(self) -> None:
        try:
            words = await self.batched.call(self.engine.problem)
        except PumpError as error:
            words = error.cause.words if isinstance(error, QueueUnavailable) else str(error)
        self._problem, self._probe = (words, self.clock.monotonic()), None

    async def _ended(self, task: "asyncio.Task[Any]", seconds: float) -> bool:
        """Whether the task ends in time; it goes on in any case."""
        ended = Signal()
        if seconds > 0 and not task.done():
            task.add_done_callback(lambda _: ended.set())
            await self.clock.wait_async(ended, seconds)
        return task.done()

    def stop_waiting(self) -> None:
        """Answer every consumer that waits for messages, and let none wait from now on."""
        self.closing = True
        for task in self._waiting:
            task.cancel()

    async def wait_for(
        self, work: Coroutine[Any, Any, Result], disconnected: Coroutine[Any, Any, None]
    ) -> Result | None:
        """The result of the work; None if the server closes first, ClientDisconnected if `disconnected` ends first."""
        task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected)
        self._waiting.add(task)
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return None if task.cancelled() else task.result()
            task.cancel()
            with suppress(asyncio.CancelledError):
                return await task  # it ended before the cancel: messages that it popped must not be lost
            raise ClientDisconnected
        finally:
            self._waiting.discard(task)
            task.cancel()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch


class QueueRequest:
    """One request to the queue."""

    def __init__(self, state: ServerState, request: Request, producer: str | None) -> None:
        self.state: Final = state
        self.batched: Final = state.batched
        self.call: Final = state.batched.call
        """Calls a function of the engine on a thread."""
        self.engine: Final = state.engine
        self.metrics: Final = state.metrics
        self.producer: Final = producer
        """The owner of the request's token; None without tokens."""
        self._request: Final = request
        self._pieces: Final[list[bytes]] = []
        self._size = 0
        self.body_reader: BodyReader | None = None
        """The reader of the body, if the body did not arrive together with the head."""

    def end_body(self, reader: BodyReader) -> None:
        """Give back the room of the body, after the request has been answered."""
        self._pieces.clear()
        self.state.bodies.leave(reader)

    @property
    def names(self) -> Mapping[str, str]:
        """The parameters in the path."""
        return self._request.path_params

    def query(self, kind: type[Query]) -> Query:
        """The query parameters."""
        return queries.read_query(self._request.scope["query_string"], kind)

    async def body(self) -> bytes:
        """The whole body; HTTPException as early as possible if it is too large or too slow."""
        text = self._request.headers.get("content-length", "")
        length = int(text) if text.isdecimal() else 0
        if length > LARGEST_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        arrived = self._arrived()  # most bodies have arrived together with their head
        if arrived is None or not self._is_last(arrived):
            await self._receive_rest(length)
        return b"".join(self._pieces)

    def is_disconnected(self) -> bool:
        """Whether the client is known to have disconnected."""
        arrived = self._arrived()
        return arrived is not None and arrived["type"] == "http.disconnect"

    async def wait_until_disconnected(self) -> None:
        """Wait until the client disconnects."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass  # a piece of the next request, on a connection that sends several at once

    def _arrived(self) -> Message | None:
        """The next ASGI message, if it has arrived already: runs one step of `receive`, without waiting."""
        waiting = self._request.receive().__await__()
        try:
            next(waiting)
        except StopIteration as end:
            message: Message = end.value
            return message
        waiting.close()
        return None

    async def _receive_rest(self, length: int) -> None:
        """Receive the rest of the body; HTTPException if it takes too long."""
        reader = self.body_reader = self.state.bodies.enter()
        task = asyncio.ensure_future(self._receive_all(reader, length))
        task.add_done_callback(lambda _: reader.makes_way.set())
        try:
            in_time = await self.state.clock.wait_async(reader.makes_way, BODY_SECONDS)
            if not task.done():
                if in_time:
                    raise HTTPException(503, _NO_ROOM, _GO_AWAY)
                raise HTTPException(408, f"the body of a request must arrive within {BODY_SECONDS:g} seconds", _CLOSE)
            await task
        finally:
            task.cancel()

    async def _receive_all(self, reader: BodyReader, length: int) -> None:
        """Take room for a body of known length before reading on; for another body, take room piece by piece."""
        if length > SMALL_BODY_BYTES:
            await self.state.bodies.take(reader, length)
        while not self._is_last(await self._request.receive()):
            if self._size > max(reader.held, SMALL_BODY_BYTES):
                await self.state.bodies.take(reader, self._size - reader.held)
        reader.is_complete = True

    def _is_last(self, message: Message) -> bool:
        """Keep a piece of the body; returns whether it was the last one."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size > LARGEST_BODY_BYTES:
            raise HTTPException(413, _TOO_LARGE)
        self._pieces.append(piece)
        return not message.get("more_body", False)
