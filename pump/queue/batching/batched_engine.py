"""An engine for awaiting callers: merges small calls that arrive together; waiting for messages needs no thread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, ParamSpec, TypeAlias, TypeVar

from pump.clock import Clock, SystemClock
from pump.errors import PumpError
from pump.queue.batching.task_batcher import TaskBatcher
from pump.queue.batching.wait_line import WaitLine
from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.vocabulary import PopRequest, PopResult, Push, Pushed, Settled, Settlement, Status
from pump.telemetry import log

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

THREADS: Final = 8
MOST_LISTENED: Final = 256
"""Up to this number of queues, listening goes on even while no task waits for their messages."""


LineKey: TypeAlias = tuple[str | None, str, bool | None, bool, float | str]


def line_key(request: PopRequest) -> LineKey:
    """The values that must be equal in two requests for their callers to wait in the same line."""
    return request.partition, request.group, request.ordered, request.create_group, request.subscribe_from


class QueueWaiters:
    """All tasks that wait for messages of one queue, and the listener that wakes them."""

    def __init__(self) -> None:
        self.lines: Final[dict[LineKey, WaitLine]] = {}
        self.starting: Final = asyncio.Lock()
        self.end_listening: Callable[[], None] | None = None

    def wake(self) -> None:
        """Wake one task in each line."""
        for line in list(self.lines.values()):
            line.wake()


class BatchedEngine:
    """One engine for many tasks of one loop. Its calls return and raise the same as the engine's calls.

    At most `threads` calls of the engine run at a time, plus one batch of pushes and one of settlements.
    """

    def __init__(self, engine: Engine, *, threads: int = THREADS, clock: Clock | None = None) -> None:
        self._engine: Final = engine
        self._clock: Final = SystemClock() if clock is None else clock
        self._threads: Final = ThreadPoolExecutor(threads, thread_name_prefix="queue-engine")
        self._batch_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="queue-batch")
        self._pushes: Final = TaskBatcher[Push, Pushed](
            lambda items: self._on(self._batch_threads, engine.push, items),
            lambda items: self.call(engine.push, items),
            lambda push: len(push.payload),
        )
        self._settlements: Final = TaskBatcher[Settlement, Settled](
            lambda items: self._on(self._batch_threads, engine.settle, items),
            lambda items: self.call(engine.settle, items),
        )
        self._waiters: Final[dict[str, QueueWaiters]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._closed = False

    # -- what producers and consumers do

    async def push(self, items: Sequence[Push]) -> list[Pushed]:
        """As `Engine.push`; small pushes that arrive together are stored together."""
        return list(await self._pushes.do(items))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """As `Engine.settle`; small settlements that arrive together are carried out together."""
        return list(await self._settlements.do(settlements))

    async def pop(self, request: PopRequest, wait_seconds: float = 0.0) -> PopResult:
        """As `Engine.pop`; waits up to `wait_seconds` for a message. If cancelled, it gives back what it has leased."""
        if wait_seconds <= 0:
            return await self._take(request)
        until = self._clock.monotonic() + wait_seconds
        async with self._line(request) as (waiters, line):
            return await self._wait(request, until, waiters, line)

    async def release(self, request: PopRequest, result: PopResult) -> None:
        """Give back messages whose consumer has gone; no attempt is counted."""
        await self.call(self._give_back, request, result)

    async def call(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """Call a blocking function on a thread. If this is cancelled, the function still runs to its end."""
        return await self._on(self._threads, function, *args, **options)

    async def close(self) -> None:
        """Let waiting calls return with nothing, finish running calls, and end. The engine stays open."""
        self._closing = True
        for waiters in self._waiters.values():
            for line in waiters.lines.values():
                line.dismiss()
        await self._pushes.finish()
        await self._settlements.finish()
        self._closed = True
        ending = list(self._waiters.values())
        self._waiters.clear()
        await asyncio.to_thread(self._end, ending)

    # -- waiting for messages

    async def _wait(self, request: PopRequest, until: float, waiters: QueueWaiters, line: WaitLine) -> PopResult:
        result, ticket = PopResult(), line.ticket()
        if not line.is_empty and not await line.wait_turn(ticket, until):
            return result
        while not self._closing:
            result = await self._look(request, line)
            if result.messages:
                line.found()
                break
            if await self._listen(request.queue, waiters) or line.missed(result.due_in):
                continue
            if not await line.wait_turn(ticket, until):
                break
        return result

    async def _look(self, request: PopRequest, line: WaitLine) -> PopResult:
        try:
            return await self._take(request)
        except asyncio.CancelledError:
            line.wake()
            raise
        except Exception:  # an outage is raised in each waiting task in turn, not in all at once
            line.missed(None)
            raise

    async def _take(self, request: PopRequest) -> PopResult:
        return await self._or_undo(partial(self._give_back, request), self._engine.pop, request)

    def _give_back(self, request: PopRequest, result: PopResult) -> None:
        if request.auto_ack or not result.messages:
            return
        settlements = [
            Settlement(each.transaction_id, each.partition_id, each.lease_id, Status.RETRY, request.group)
            for each in result.messages
        ]
        try:
            self._engine.settle(settlements)
        except PumpError as error:
            log.warning("queue %s: %d messages come again later: %s", request.queue, len(settlements), error)
        else:
            self._on_loop(lambda: self._wake(request.queue))

    @asynccontextmanager
    async def _line(self, request: PopRequest) -> AsyncIterator[tuple[QueueWaiters, WaitLine]]:
        self._loop = asyncio.get_running_loop()
        waiters = self._waiters.setdefault(request.queue, QueueWaiters())
        line = waiters.lines.setdefault(line_key(request), WaitLine(self._clock, self._on_loop))
        line.users += 1
        try:
            yield waiters, line
        finally:
            line.users -= 1
            if not line.users:
                line.end()
                waiters.lines.pop(line_key(request), None)
                self._leave(request.queue, waiters)

    def _leave(self, queue: str, waiters: QueueWaiters) -> None:
        """End listening to a queue without waiters only if there are too many: a caller who waited soon waits again."""
        if waiters.lines or (waiters.end_listening is not None and len(self._waiters) <= MOST_LISTENED):
            return
        self._waiters.pop(queue, None)
        if waiters.end_listening is not None:
            self._threads.submit(waiters.end_listening)

    async def _listen(self, queue: str, waiters: QueueWaiters) -> bool:
        """Start listening; True if this call started it: a message that came before was not notified."""
        async with waiters.starting:
            if waiters.end_listening is not None:
                return False
            on_ready = partial(self._on_loop, waiters.wake)
            try:
                waiters.end_listening = await self._or_undo(lambda end: end(), self._engine.listen, queue, on_ready)
            except PumpError as error:
                log.warning("queue %s is polled once a second, as listening failed: %s", queue, error)
                return False
            return True

    def _wake(self, queue: str) -> None:
        if queue in self._waiters:
            self._waiters[queue].wake()

    # -- threads

    async def _on(
        self,
        threads: ThreadPoolExecutor,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        self._must_be_open()
        call = partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(threads, call)

    async def _or_undo(
        self,
        undo: Callable[[Result], None],
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """As `call`; if cancelled, `undo` gets the result that no caller receives."""
        self._must_be_open()
        future = self._threads.submit(function, *args, **options)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(partial(self._undo, undo))
            raise

    def _undo(self, undo: Callable[[Result], None], future: Future[Result]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        try:
            self._threads.submit(undo, future.result())
        except RuntimeError:  # the threads have ended meanwhile
            undo(future.result())

    def _must_be_open(self) -> None:
        if self._closed:
            raise QueueUnavailable("the queue is closing")

    def _on_loop(self, act: Callable[[], None]) -> None:
        """Run the function on the loop; called from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits there any more
                self._loop.call_soon_threadsafe(act)

    def _end(self, ending: Sequence[QueueWaiters]) -> None:
        for waiters in ending:
            if waiters.end_listening is not None:
                waiters.end_listening()
        self._batch_threads.shutdown()
        self._threads.shutdown()
