"""Threads for blocking calls that awaiting code waits for.

Python joins the threads of its own executors when it ends. A request to a broker that hangs would then keep the
process alive, however short the grace. These threads are daemons: the process ends without waiting for them.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class CallThreads:
    """Up to `most` threads. A call that finds no idle thread starts one; calls begin in the order they came."""

    def __init__(self, most: int, name: str) -> None:
        self._most: Final = most
        self._name: Final = name
        self._changed: Final = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: Final[list[threading.Thread]] = []
        self._idle = 0
        self._closed = False

    def submit(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
    ) -> Future[Result]:
        """Have the function called on one of the threads; RuntimeError after `close`."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._calls.append((future, lambda: call(*args, **options)))
            if self._idle < len(self._calls) and len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._run, name=self._name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()
        return future

    def close(self) -> None:
        """Take no more calls. Calls that were submitted before are still made; `join` waits for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until all calls are made, after `close`."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            future, call = work
            del work
            if future.set_running_or_notify_cancel():
                _settle(future, call)
            del future, call  # an idle thread keeps no message and no error alive

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            while not self._calls and not self._closed:
                self._changed.wait()
            self._idle -= 1
            return self._calls.popleft() if self._calls else None


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
