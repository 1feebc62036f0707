"""An event loop on a thread of its own, for blocking callers of awaiting code."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

from pump.clock import Signal

Result = TypeVar("Result")

_END_A_LOOP: Final = (SystemExit, KeyboardInterrupt)
"""By asyncio's rule, a task that raises one of these ends its loop. Here the caller gets it, as any other error."""


class _NotingLoop(asyncio.SelectorEventLoop):
    """A loop that notes its connections: a client that fails while it connects may leave one open."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: Final = WeakSet[asyncio.BaseTransport]()

    async def create_connection(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as asyncio has it
        """As any loop does."""
        connection, protocol = await super().create_connection(*args, **options)
        self._connections.add(connection)
        return connection, protocol

    async def cut_connections(self) -> None:
        """Close every connection that is still open, without sending what waits to be sent."""
        for connection in list(self._connections):
            if isinstance(connection, asyncio.WriteTransport) and not connection.is_closing():
                connection.abort()
        await asyncio.sleep(0)  # a transport closes its socket in the loop's next turn


class LoopThread:
    """A running loop, from construction until it is closed."""

    def __init__(self, name: str, *, ends_connections: bool = False) -> None:
        """With `ends_connections`, connections that a client leaves open are closed when the thread ends."""
        self.loop: Final = _NotingLoop() if ends_connections else asyncio.new_event_loop()
        """The loop. From other threads call only its `call_soon_threadsafe`."""
        self.ended: Final = Signal()
        """Set when the thread has ended."""
        self._lock: Final = threading.Lock()
        self._closed = False
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start the work on the loop; RuntimeError if the loop is closed."""
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise RuntimeError(f"{self._thread.name} is closed")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the work on the loop and wait for its result. If the wait is interrupted, the work goes on."""
        return self.submit(work).result()

    def stop(self) -> None:
        """Ask the thread to cancel all tasks and end; `ended` is set when it has ended."""
        with self._lock:
            stopped, self._closed = self._closed, True
        if not stopped:
            self.loop.call_soon_threadsafe(self.loop.stop)

    def close(self, timeout: float = 10.0) -> None:
        """The same, and wait. A thread that does not end in time runs until the process ends."""
        self.stop()
        self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._closed:  # a handler may have stopped the loop that it runs on
                with suppress(*_END_A_LOOP):
                    self.loop.run_forever()
            while tasks := asyncio.all_tasks(self.loop):  # ending one task may have started another
                for task in tasks:
                    task.cancel()
                with suppress(*_END_A_LOOP):
                    self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            with suppress(*_END_A_LOOP):
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            if isinstance(self.loop, _NotingLoop):
                self.loop.run_until_complete(self.loop.cut_connections())
            self.loop.close()
        finally:
            self.ended.set()
