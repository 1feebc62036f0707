"""The front of an engine for awaiting callers: what comes together goes in one call, and waiting costs no thread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, ParamSpec, TypeVar

from pump.clock import Clock, SystemClock
from pump.errors import PumpError
from pump.queue.batching.task_batcher import Merger
from pump.queue.batching.wait_line import Line
from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.vocabulary import Push, Pushed, Settled, Settlement, Status, Taken, Want
from pump.telemetry import log

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

THREADS: Final = 8
MOST_BELLS: Final = 256
"""So many queues are listened to even while nobody waits for their messages."""


class _Kind(NamedTuple):
    """What has to be alike in two wants that may wait in one line."""

    partition: str | None
    group: str
    ordered: bool | None
    create_group: bool
    subscribe_from: float | str


def _kind(want: Want) -> _Kind:
    return _Kind(want.partition, want.group, want.ordered, want.create_group, want.subscribe_from)


class _Hall:
    """All who wait for messages of one queue, and the bell that wakes them."""

    def __init__(self) -> None:
        self.lines: Final[dict[_Kind, Line]] = {}
        self.opening: Final = asyncio.Lock()
        self.end: Callable[[], None] | None = None

    def ring(self) -> None:
        for line in list(self.lines.values()):
            line.ring()


class Desk:
    """One engine for many tasks of one loop. Its calls return and raise what the engine's do.

    `threads` calls of the engine go on at a time, besides one merged push and one merged settlement.
    """

    def __init__(self, engine: Engine, *, threads: int = THREADS, clock: Clock | None = None) -> None:
        self._engine: Final = engine
        self._clock: Final = SystemClock() if clock is None else clock
        self._threads: Final = ThreadPoolExecutor(threads, thread_name_prefix="queue-desk")
        self._merged: Final = ThreadPoolExecutor(2, thread_name_prefix="queue-merged")
        self._pushes: Final = Merger[Push, Pushed](
            lambda items: self._on(self._merged, engine.push, items),
            lambda items: self.call(engine.push, items),
            lambda push: len(push.payload),
        )
        self._settlements: Final = Merger[Settlement, Settled](
            lambda items: self._on(self._merged, engine.settle, items), lambda items: self.call(engine.settle, items)
        )
        self._halls: Final[dict[str, _Hall]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._closed = False

    # -- what producers and consumers do

    async def push(self, items: Sequence[Push]) -> list[Pushed]:
        """As the engine's; small ones that come together are stored together."""
        return list(await self._pushes.do(items))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """As the engine's; small ones that come together are carried out together."""
        return list(await self._settlements.do(settlements))

    async def pop(self, want: Want, wait_seconds: float = 0.0) -> Taken:
        """As the engine's; where nothing is ready, wait so long for it. Cancelled, it gives back what it has taken."""
        if wait_seconds <= 0:
            return await self._take(want)
        until = self._clock.monotonic() + wait_seconds
        async with self._line(want) as (hall, line):
            return await self._wait(want, until, hall, line)

    async def release(self, want: Want, taken: Taken) -> None:
        """Give back, uncounted, what was popped for somebody who is not there any more."""
        await self.call(self._give_back, want, taken)

    async def call(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """What the function returns, which may block. Cancelled, it goes on to its end."""
        return await self._on(self._threads, function, *args, **options)

    async def close(self) -> None:
        """Let those who wait return with nothing, finish what is under way, and end. The engine stays open."""
        self._closing = True
        for hall in self._halls.values():
            for line in hall.lines.values():
                line.dismiss()
        await self._pushes.finish()
        await self._settlements.finish()
        self._closed = True
        halls = list(self._halls.values())
        self._halls.clear()
        await asyncio.to_thread(self._end, halls)

    # -- waiting for messages

    async def _wait(self, want: Want, until: float, hall: _Hall, line: Line) -> Taken:
        taken, ticket = Taken(), line.ticket()
        if not line.is_empty and not await line.park(ticket, until):
            return taken
        while not self._closing:
            taken = await self._look(want, line)
            if taken.messages:
                line.found()
                break
            if await self._listen(want.queue, hall) or line.missed(taken.due_in):
                continue
            if not await line.park(ticket, until):
                break
        return taken

    async def _look(self, want: Want, line: Line) -> Taken:
        try:
            return await self._take(want)
        except asyncio.CancelledError:
            line.ring()
            raise
        except Exception:  # an outage is told to everybody in turn, and not to all at once
            line.missed(None)
            raise

    async def _take(self, want: Want) -> Taken:
        return await self._or_undo(partial(self._give_back, want), self._engine.pop, want)

    def _give_back(self, want: Want, taken: Taken) -> None:
        if want.auto_ack or not taken.messages:
            return
        settlements = [
            Settlement(each.transaction_id, each.partition_id, each.lease_id, Status.RETRY, want.group)
            for each in taken.messages
        ]
        try:
            self._engine.settle(settlements)
        except PumpError as error:
            log.warning("queue %s: %d messages come again later: %s", want.queue, len(settlements), error)
        else:
            self._soon(lambda: self._ring(want.queue))

    @asynccontextmanager
    async def _line(self, want: Want) -> AsyncIterator[tuple[_Hall, Line]]:
        self._loop = asyncio.get_running_loop()
        hall = self._halls.setdefault(want.queue, _Hall())
        line = hall.lines.setdefault(_kind(want), Line(self._clock, self._soon))
        line.users += 1
        try:
            yield hall, line
        finally:
            line.users -= 1
            if not line.users:
                line.end()
                hall.lines.pop(_kind(want), None)
                self._leave(want.queue, hall)

    def _leave(self, queue: str, hall: _Hall) -> None:
        """A bell is kept where there are not too many: whoever waited will soon wait again."""
        if hall.lines or (hall.end is not None and len(self._halls) <= MOST_BELLS):
            return
        self._halls.pop(queue, None)
        if hall.end is not None:
            self._threads.submit(hall.end)

    async def _listen(self, queue: str, hall: _Hall) -> bool:
        """Whether the bell was hung up just now, so that what came before it was not heard."""
        async with hall.opening:
            if hall.end is not None:
                return False
            ring = partial(self._soon, hall.ring)
            try:
                hall.end = await self._or_undo(_call, self._engine.listen, queue, ring)
            except PumpError as error:
                log.warning("queue %s is looked at once a second, as its bell is out of order: %s", queue, error)
                return False
            return True

    def _ring(self, queue: str) -> None:
        if queue in self._halls:
            self._halls[queue].ring()

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
        """As `call`; cancelled, what it returns to nobody is undone."""
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
        except RuntimeError:  # the desk has closed meanwhile
            undo(future.result())

    def _must_be_open(self) -> None:
        if self._closed:
            raise QueueUnavailable("the queue is closing")

    def _soon(self, act: Callable[[], None]) -> None:
        """Do it on the loop, from whichever thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits there any more
                self._loop.call_soon_threadsafe(act)

    def _end(self, halls: Sequence[_Hall]) -> None:
        for hall in halls:
            if hall.end is not None:
                hall.end()
        self._merged.shutdown()
        self._threads.shutdown()


def _call(end: Callable[[], None]) -> None:
    end()
