"""Pika's I/O loop, driven by a thread of its own, or by those who wait for it: each change of thread costs time.

While somebody posts again and again, the thread rests, and who waits reads and writes; when nobody has done so for
a moment, or somebody waits who cannot, the thread goes on. So heartbeats are sent whatever those do.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from pika.adapters.select_connection import IOLoop

from pump.clock import Signal, SystemClock

REST_SECONDS: Final = 0.05
"""After so long without anybody who drives the loop, its own thread does."""
_clock: Final = SystemClock()


class DrivenLoop:
    """An I/O loop. Whoever drives it is the connection's thread as long as that lasts."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` is called with what the loop raises in the middle of its work, while it is driven."""
        self.io: Final = IOLoop()
        """Pika's own."""
        self._failed: Final = failed
        self._driving: Final = threading.Lock()
        """Held by the one who drives it: at first by its thread, before that has begun, and at last too."""
        self._driving.acquire()
        self._stopped = False
        self._wanted = False
        """Whether somebody else would drive it."""
        self._followers = 0
        """How many wait while another one drives."""
        self._counting: Final = threading.Lock()
        self._needed: Final = Signal()
        """Ends the rest of the thread."""
        self._drives = 0
        self._served: tuple[asyncio.AbstractEventLoop, int] | None = None

    # -- from any thread

    def call(self, act: Callable[[], None]) -> None:
        """Do something as the one who drives: at once, if nobody does now, or else soon."""
        if not self._driving.acquire(blocking=False):
            self.io.add_callback_threadsafe(act)
            return
        try:
            if self._stopped:
                return
            self._drives += 1
            act()
        finally:
            self._driving.release()
            self._hand_over()

    def wait(self, signal: Signal, timeout: float) -> bool:
        """Wait for the signal; drive meanwhile, if nobody else does."""
        deadline = _clock.monotonic() + timeout
        while not signal.is_set() and _clock.monotonic() < deadline and not self._stopped:
            if self._driving.acquire(blocking=False):
                self._drive_until(signal, deadline)
            else:
                self._follow(signal, deadline - _clock.monotonic())
        return signal.is_set() or _clock.wait(signal, deadline - _clock.monotonic())

    def _drive_until(self, signal: Signal, deadline: float) -> None:
        me = threading.get_ident()

        def look_up() -> None:
            if threading.get_ident() != me:  # it may be set by what another connection does
                self.io.add_callback_threadsafe(lambda: None)

        key = signal.add_callback(look_up)
        try:
            late = self.io.call_later(max(0.0, deadline - _clock.monotonic()), lambda: None)
            while not signal.is_set() and not self._stopped and _clock.monotonic() < deadline:
                self._turn()
            self.io.remove_timeout(late)
        except BaseException as error:  # interrupted in the middle of something: the connection is not to be trusted
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            signal.remove_callback(key)
            self._drives += 1
            self._driving.release()
            self._hand_over()

    def _follow(self, signal: Signal, timeout: float) -> None:
        with self._counting:
            self._followers += 1
        try:
            if not self._driving.locked():
                self._needed.set()
            _clock.wait(signal, timeout)
        finally:
            with self._counting:
                self._followers -= 1
            self._wanted = True
            if not self._stopped:
                self.io.add_callback_threadsafe(lambda: None)  # so that its thread looks up, and rests

    def _hand_over(self) -> None:
        if self._followers or self._stopped:
            self._needed.set()

    # -- from an event loop

    def serve(self) -> None:
        """Drive it from the running event loop too, from now on, whenever there is something to read or to write."""
        loop = asyncio.get_running_loop()
        self._wanted = True
        if self._served is not None or self._stopped:
            return
        poller: Any = getattr(getattr(self.io, "_poller", None), "_poll", None)
        if hasattr(poller, "fileno"):  # an epoll object: it can be waited for as a whole
            number = os.dup(poller.fileno())
            self._served = loop, number
            loop.add_reader(number, self._serve_once)

    def _serve_once(self) -> None:
        if not self._driving.acquire(blocking=False):
            return
        try:
            if not self._stopped:
                self.io.call_later(0, lambda: None)  # so that it does not wait
                self._turn()
        except Exception as error:  # pika's own trouble ends the connection, not the caller's loop
            self._fail(error)
        finally:
            self._drives += 1
            self._driving.release()
            self._hand_over()

    def leave(self) -> None:
        """Serve it no more, in the event loop that does."""
        served, self._served = self._served, None
        if served is not None:
            loop, number = served
            loop.remove_reader(number)
            os.close(number)

    def _leave_soon(self) -> None:
        served = self._served
        if served is not None:
            try:
                served[0].call_soon_threadsafe(self.leave)
            except RuntimeError:  # the event loop is closed
                self._served = None
                os.close(served[1])

    # -- as the one who drives

    def stop(self) -> None:
        """End `run`."""
        self._stopped = True
        self.io.stop()
        self._needed.set()

    def _turn(self) -> None:
        self.io.poll()
        self.io.process_timeouts()

    def _fail(self, error: BaseException) -> None:
        self._failed(
            error if isinstance(error, Exception) else InterruptedError("the thread that used it was interrupted")
        )
        self.stop()

    # -- its thread

    def run(self) -> None:
        """Drive it until it is stopped, but for the time in which others do. To be called once."""
        self.io.activate_poller()
        while not self._stopped:
            while not self._stopped and (self._followers or not self._wanted):
                self._turn()
            if not self._stopped:
                self._rest()
        self._leave_soon()
        self.io.deactivate_poller()

    def _rest(self) -> None:
        """Return when nobody else drives it any more, or somebody needs the thread."""
        self._wanted = False
        self._driving.release()
        while not self._stopped:
            self._needed.clear()
            drives = self._drives
            if not self._followers:
                _clock.wait(self._needed, REST_SECONDS)
            if self._followers or self._drives == drives:
                if self._driving.acquire(blocking=False):
                    return
                _clock.wait(self._needed, REST_SECONDS)  # somebody drives at present
        self._driving.acquire()  # those who drive look up, as it is stopped
