"""Time, and every wait in the package: blocking or awaiting, on the machine's clock or on one that tests move."""

import asyncio
import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol


class Signal:
    """A flag that threads and tasks of any loop can wait for. Setting it wakes all of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may set it at any point
        self._set = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._keys = itertools.count()

    def is_set(self) -> bool:
        """Whether it has been set since it was last cleared."""
        return self._set

    def set(self) -> None:
        """Wake all waits. Waits that begin later end at once, until the signal is cleared."""
        with self._lock:
            self._set = True
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()

    def clear(self) -> None:
        """Let later waits wait again."""
        with self._lock:
            self._set = False

    def add_callback(self, callback: Callable[[], None]) -> int:
        """Call this once: when the signal is set, in the thread that sets it, or now if it is set. Returns a key."""
        with self._lock:
            key = next(self._keys)
            self._callbacks[key] = callback
            # `_set` is read last: if a signal handler interrupts and sets it, the callback is still called once.
            called = self._callbacks.pop(key, None) if self._set else None
        if called is not None:
            called()
        return key

    def remove_callback(self, key: int) -> None:
        """Remove a callback that was not called, by its key."""
        with self._lock:
            self._callbacks.pop(key, None)


class Clock(Protocol):
    """Tells the time and waits. All waiting in the package goes through one of these."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; they never go back."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Block until the signal is set (True) or the time is over (False)."""

    async def wait_async(self, signal: Signal, timeout: float | None) -> bool:
        """The same, awaited."""

    def alarm(self, delay: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` after the delay, from another thread; returns a function that cancels this."""

    def every(self, interval: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after each interval, from another thread, until the returned function is called."""

    def every_async(self, interval: float, act: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """The same, awaited in a task of the running loop."""


class _Agenda:
    """Callbacks by due time. Cancelled entries are removed together, once half of the entries are cancelled."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """The caller of a method holds this lock; the function that `add` returns takes it by itself."""
        self._entries: list[tuple[float, int]] = []
        self._rings: dict[int, Callable[[], None]] = {}
        self._keys = itertools.count()

    def __len__(self) -> int:
        return len(self._rings)

    def add(self, due: float, ring: Callable[[], None]) -> Callable[[], None]:
        key = next(self._keys)
        self._rings[key] = ring
        heapq.heappush(self._entries, (due, key))

        def cancel() -> None:
            with self.changed:
                self._rings.pop(key, None)
                if len(self._entries) > 2 * len(self._rings) + 64:
                    self._entries = [entry for entry in self._entries if entry[1] in self._rings]
                    heapq.heapify(self._entries)

        return cancel

    def first_due(self) -> float | None:
        while self._entries and self._entries[0][1] not in self._rings:
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def pop(self) -> Callable[[], None]:
        return self._rings.pop(heapq.heappop(self._entries)[1])


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._alarms = _AlarmThread()
        self._keeper = _KeeperThread(self._alarms)

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Block until the signal is set (True) or the time is over (False)."""
        if signal.is_set() or (timeout is not None and timeout <= 0):
            return signal.is_set()
        # A bare lock, not an Event: an Event is a condition, which makes a lock for every wait.
        gate = threading.Lock()
        gate.acquire()
        key = signal.add_callback(gate.release)
        if not gate.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            signal.remove_callback(key)
        return signal.is_set()

    async def wait_async(self, signal: Signal, timeout: float | None) -> bool:
        """The same, awaited."""
        if signal.is_set() or (timeout is not None and timeout <= 0):
            return signal.is_set()
        loop = asyncio.get_running_loop()
        return await _woken(signal, timeout, lambda delay, wake: loop.call_later(delay, wake).cancel)

    def alarm(self, delay: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` after the delay, from the clock's own thread; returns a function that cancels this."""
        return self._alarms.add(time.monotonic() + delay, ring)

    def every(self, interval: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after each interval, from the keeper's thread, until the returned function is called.

        All calls share one such thread; while one call takes long, another thread makes the others.
        """
        return self._keeper.every(interval, act)

    def every_async(self, interval: float, act: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """The same, awaited in a task of the running loop."""
        ended = Signal()

        async def repeat() -> None:
            while not await self.wait_async(ended, interval):
                with contextlib.suppress(Exception):  # one call that fails must not end the later ones
                    await act()

        task = asyncio.get_running_loop().create_task(repeat(), name="pump-keeper")

        def end(_task: object = task) -> None:  # the reference keeps the task from being collected while it runs
            ended.set()

        return end


class ManualClock:
    """A clock for tests: it stands still until it is moved.

    With `automatic=True` every wait moves it at once: for tests in which one thread does everything.
    """

    def __init__(self, start: float = 1_000_000.0, *, automatic: bool = False) -> None:
        self._now = start
        self._automatic = automatic
        self._agenda = _Agenda()
        self.waits: deque[float | None] = deque(maxlen=10_000)
        """The time-outs of all waits, in order, for tests to look at."""

    def monotonic(self) -> float:
        """Seconds since the start it was given."""
        return self._now

    def wall(self) -> float:
        """The same time."""
        return self._now

    def wait_for_sleepers(self, count: int, timeout: float = 5.0) -> None:
        """Block, in real time, until there are at least `count` waits and alarms: then it is safe to advance."""
        with self._agenda.changed:
            if not self._agenda.changed.wait_for(lambda: len(self._agenda) >= count, timeout):
                raise TimeoutError(f"{len(self._agenda)} of {count} waits began within {timeout} s")

    def advance(self, delay: float) -> None:
        """Move the time, and wake everything that comes due on the way, in the order of due times."""
        target = self._now + delay
        while True:
            with self._agenda.changed:
                due = self._agenda.first_due()
                if due is None or due > target:
                    self._now = max(self._now, target)
                    return
                self._now = max(self._now, due)
                ring = self._agenda.pop()
            ring()

    def wait(self, signal: Signal, timeout: float | None) -> bool:
        """Block until the signal is set (True) or the clock was moved by the timeout (False)."""
        if self._answered(signal, timeout):
            return signal.is_set()
        woken = threading.Event()
        key = signal.add_callback(woken.set)
        cancel = self.alarm(timeout, woken.set) if timeout is not None else lambda: None
        woken.wait()
        cancel()
        signal.remove_callback(key)
        return signal.is_set()

    async def wait_async(self, signal: Signal, timeout: float | None) -> bool:
        """The same, awaited."""
        if self._answered(signal, timeout):
            await asyncio.sleep(0)
            return signal.is_set()
        return await _woken(signal, timeout, self.alarm)

    def alarm(self, delay: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when the clock was moved by the delay, from the thread that moves it."""
        with self._agenda.changed:
            self._agenda.changed.notify_all()
            return self._agenda.add(self._now + delay, ring)

    def every(self, interval: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after each interval, from the thread that moves the time, until the result is called."""
        cancel: Callable[[], None]

        def ring() -> None:
            nonlocal cancel
            cancel = self.alarm(interval, ring)
            act()

        cancel = self.alarm(interval, ring)

        return lambda: cancel()  # noqa: PLW0108 - it cancels the latest alarm, not the first

    def every_async(self, interval: float, act: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """The same, awaited in a task of the running loop."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Future[None]] = set()

        def begin() -> None:
            task = asyncio.ensure_future(act(), loop=loop)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return self.every(interval, lambda: _soon(loop, begin))

    def _answered(self, signal: Signal, timeout: float | None) -> bool:
        self.waits.append(timeout)
        if signal.is_set() or (timeout is not None and timeout <= 0):
            return True
        if self._automatic and timeout is not None:
            self.advance(timeout)
            return True
        return False


ALARM_IDLE_SECONDS: Final = 5.0
"""An alarm thread that has nothing to call for this long ends; the next alarm starts a new thread."""


class _AlarmThread:
    """One thread that calls alarms when they are due. It runs only while there are alarms."""

    def __init__(self) -> None:
        self._agenda = _Agenda()
        self._runs = False

    def add(self, due: float, ring: Callable[[], None]) -> Callable[[], None]:
        with self._agenda.changed:
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="pump-alarms", daemon=True).start()
            cancel = self._agenda.add(due, ring)
            if self._agenda.first_due() == due:
                self._agenda.changed.notify()
            return cancel

    def _run(self) -> None:
        while (ring := self._next()) is not None:
            with contextlib.suppress(Exception):  # an alarm that fails must not end the later ones
                ring()

    def _next(self) -> Callable[[], None] | None:
        with self._agenda.changed:
            while (due := self._agenda.first_due()) is None or due > time.monotonic():
                wait = ALARM_IDLE_SECONDS if due is None else due - time.monotonic()
                if not self._agenda.changed.wait(wait) and due is None and not len(self._agenda):
                    self._runs = False
                    return None
            return self._agenda.pop()


class _KeeperCall:
    """One call on a keeper's thread, and whether another thread has replaced that thread meanwhile."""

    is_over = False
    has_other_thread = False


KEEPER_PATIENCE: Final = 0.1
"""When one call has taken this many seconds, another thread makes the calls that come due."""


class _KeeperThread:
    """One thread that makes repeated calls, as long as there are any.

    A call may wait for a broker that does not answer. Another thread then takes over, so that no other call waits, and
    the first thread ends with its call.
    """

    def __init__(self, alarms: _AlarmThread) -> None:
        self._agenda: Final = _Agenda()
        self._alarms: Final = alarms
        self._watched = False
        """Whether a thread waits for the next due time, or will as soon as its call has ended."""

    def every(self, interval: float, act: Callable[[], None]) -> Callable[[], None]:
        ended = Signal()
        cancel: Callable[[], None]

        def again() -> None:
            nonlocal cancel
            with self._agenda.changed:
                if not ended.is_set():
                    cancel = self._add(time.monotonic() + interval, ring)

        def ring() -> None:
            with contextlib.suppress(Exception):  # one call that fails must not end the later ones
                act()
            again()

        def end() -> None:
            with self._agenda.changed:
                ended.set()
                cancel()
                self._agenda.changed.notify()

        again()
        return end

    def _add(self, due: float, ring: Callable[[], None]) -> Callable[[], None]:
        cancel = self._agenda.add(due, ring)
        if not self._watched:
            self._watch()
        elif self._agenda.first_due() == due:
            self._agenda.changed.notify()
        return cancel

    def _watch(self) -> None:
        self._watched = True
        threading.Thread(target=self._run, name="pump-keeper", daemon=True).start()

    def _run(self) -> None:
        while (ring := self._next()) is not None:
            call = _KeeperCall()
            end_patience = self._alarms.add(time.monotonic() + KEEPER_PATIENCE, partial(self._replace, call))
            ring()
            end_patience()
            with self._agenda.changed:
                call.is_over = True
                if call.has_other_thread:
                    return

    def _replace(self, call: "_KeeperCall") -> None:
        with self._agenda.changed:
            if not call.is_over:
                call.has_other_thread = True
                self._watch()

    def _next(self) -> Callable[[], None] | None:
        with self._agenda.changed:
            while True:
                due = self._agenda.first_due()
                if due is None:
                    self._watched = False
                    return None
                if due <= time.monotonic():
                    return self._agenda.pop()
                self._agenda.changed.wait(due - time.monotonic())


async def _woken(
    signal: Signal, timeout: float | None, alarm: Callable[[float, Callable[[], None]], Callable[[], None]]
) -> bool:
    """Wait until the signal is set (True) or the alarm has rung (False)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        _soon(loop, finish)

    key = signal.add_callback(wake)
    cancel = alarm(timeout, wake) if timeout is not None else lambda: None
    try:
        await done
    finally:
        cancel()
        signal.remove_callback(key)
    return signal.is_set()


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there any more
        loop.call_soon_threadsafe(act)
