"""What all requests of one server share."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from pump.clock import Clock
from pump.queue.batching.batched_engine import BatchedEngine
from pump.queue.engine import Engine
from pump.queue.http.metrics import Metrics

Result = TypeVar("Result")


class ClientDisconnected(Exception):  # noqa: N818 - it says what happened
    """The client has gone: there is nobody to answer."""


class ServerState:
    """The engine of one server, its metrics, and its consumers that wait. For the loop's thread."""

    def __init__(self, engine: Engine, *, clock: Clock, create_groups: bool = True) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self.batched: Final = BatchedEngine(engine)
        self.metrics: Final = Metrics()
        self.create_groups: Final = create_groups
        self.closing = False
        self._waiting: Final[set[asyncio.Task[Any]]] = set()

    def stop_waiting(self) -> None:
        """Answer every consumer that waits for messages, and let none wait any longer."""
        self.closing = True
        for task in self._waiting:
            task.cancel()

    async def wait_for(
        self, work: Coroutine[Any, Any, Result], disconnected: Coroutine[Any, Any, None]
    ) -> Result | None:
        """The result of the work; None where the server closes first, ClientDisconnected where `disconnected` ends."""
        task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected)
        self._waiting.add(task)
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return None if task.cancelled() else task.result()
            task.cancel()
            with suppress(asyncio.CancelledError):
                return await task  # it ended before it was cancelled: what it has popped must not be lost
            raise ClientDisconnected
        finally:
            self._waiting.discard(task)
            task.cancel()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
