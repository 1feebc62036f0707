"""What a consumer has to say to its broker and need not say at once: acknowledgements go together, and go soon."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from pump.clock import Clock
from pump.errors import PumpError

Key = TypeVar("Key")
Word = TypeVar("Word")

MOST: Final = 64
LONGEST_SECONDS: Final = 0.02
"""So many wait for company, and for so long."""


class Unsaid(Generic[Key, Word]):
    """What is to be said, by what it is about. From any thread.

    `say` takes all of it and says it, now; what it could not say it puts back, and raises.
    """

    def __init__(self, clock: Clock, say: Callable[[], object], *, again: float, most: int = MOST) -> None:
        """`again` is the seconds after which what could not be said is said again."""
        self._clock: Final = clock
        self._say: Final = say
        self._again: Final = again
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._words: dict[Key, Word] = {}
        self._since = 0.0
        self._timed = False
        self._closed = False

    def note(self, words: Callable[[], Iterable[tuple[Key, Word]]]) -> bool:
        """Have these said within 20 ms; False, and they are not made, if what waits has to be said first."""
        with self._lock:
            if not self._words:
                self._since = self._clock.monotonic()
            elif len(self._words) >= self._most:
                return False
            for key, word in words():
                self._words.setdefault(key, word)
        self._say_within(LONGEST_SECONDS)
        return True

    def take(self, more: Mapping[Key, Word] | None = None) -> dict[Key, Word]:
        """All that is to be said, and more; it is the caller's to say now."""
        with self._lock:
            words, self._words = self._words, {}
        for key, word in (more or {}).items():
            words.setdefault(key, word)
        return words

    def put_back(self, words: Mapping[Key, Word]) -> None:
        """Nobody knows whether these were heard: they are said again, which changes nothing if they were."""
        with self._lock:
            self._words = {**words, **self._words}
        self._say_within(self._again)

    def close(self) -> None:
        """Say nothing by itself any more."""
        self._closed = True

    def _say_within(self, seconds: float) -> None:
        if not self._timed:
            self._timed = True
            self._clock.alarm(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timed = False  # before the look at what there is, so that what comes after it is timed anew
        if self._closed or not self._words:
            return
        left = self._since + LONGEST_SECONDS - self._clock.monotonic()
        if left > 0:  # others have been said since
            self._say_within(left)
            return
        try:
            self._say()
        except PumpError:  # it was put back, and is said again; whoever has a call under way is told
            self._say_within(self._again)
