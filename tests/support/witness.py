"""Knows whether the machine left a test and its server the time that they need; without it leases are rightly lost."""

import threading
import time
from collections.abc import Callable
from typing import Final, Self


class Witness:
    """Asks a server again and again, and knows the longest time that one turn took."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask: Final = ask
        self._over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)
        self.longest_seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.05):
            self._ask()
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - last)
            last = now
