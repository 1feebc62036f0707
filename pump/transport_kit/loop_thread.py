"""An event loop on a thread of its own, for blocking callers of awaiting code."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from pump.clock import Signal

Result = TypeVar("Result")

_END_A_LOOP: Final = (SystemExit, KeyboardInterrupt)
"""A task that raises one of these ends its loop, by asyncio's rule. Here whoever awaits it gets it, as any error."""


class LoopThread:
    """A running loop, from construction until it is closed."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        """The loop. From other threads call only its `call_soon_threadsafe`."""
        self.ended: Final = Signal()
        """Set when the thread has ended."""
        self._lock: Final = threading.Lock()
        self._closed = False
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start the work on the loop; RuntimeError if that is closed."""
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise RuntimeError(f"{self._thread.name} is closed")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the work on the loop and wait for its result. If the wait is interrupted, the work goes on."""
        return self.submit(work).result()

    def stop(self) -> None:
        """Ask the thread to cancel what still runs and to end; `ended` says when it has."""
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
            while not self._closed:  # a handler, too, may have stopped the loop that it runs on
                with suppress(*_END_A_LOOP):
                    self.loop.run_forever()
            while tasks := asyncio.all_tasks(self.loop):  # ending one task may have started another
                for task in tasks:
                    task.cancel()
                with suppress(*_END_A_LOOP):
                    self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            with suppress(*_END_A_LOOP):
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
        finally:
            self.ended.set()
