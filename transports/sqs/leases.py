"""Which leases to renew together: those of a channel's messages are renewed ten at a time, not one by one.

A channel asks for each message alone. Whoever is asked for takes along others that are asked for as regularly.
"""

import threading
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class LeaseRounds(Generic[Key]):
    """The messages of one consumer whose leases are being renewed. From any thread; it knows no clock."""

    def __init__(self, lease: float, most: int) -> None:
        """`lease` is how long one lasts, in seconds; `most` is how many fit in one request."""
        self._fresh: Final = lease / 6
        """For so long after a renewal another one is not needed."""
        self._regular: Final = lease / 2
        """Who was not asked for in so long a time is not asked for any more."""
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._asked: Final[dict[Key, float]] = {}
        """When each was asked for, or received, last; oldest first."""
        self._renewed: Final[dict[Key, float]] = {}

    def begins(self, keys: Sequence[Key], now: float) -> None:
        """These were received: their leases begin."""
        with self._lock:
            self._asked.update(dict.fromkeys(keys, now))

    def ends(self, key: Key) -> None:
        """It is settled, or lost."""
        with self._lock:
            self._asked.pop(key, None)
            self._renewed.pop(key, None)

    def asked(self, key: Key, now: float) -> Sequence[Key]:
        """What to renew in one request now that this one is asked for; nothing if it was taken along just now."""
        with self._lock:
            self._asked.pop(key, None)
            self._asked[key] = now
            if now - self._renewed.get(key, -self._fresh - now - 1.0) < self._fresh:
                return ()
            together = [key]
            for other, asked in list(self._asked.items()):
                if now - asked > self._regular:
                    del self._asked[other]
                    self._renewed.pop(other, None)
                elif other != key and self._is_due(other, now) and len(together) < self._most:
                    together.append(other)
            return together

    def renewed(self, keys: Sequence[Key], now: float) -> None:
        """These were renewed by a request that began then."""
        with self._lock:
            self._renewed.update({key: now for key in keys if key in self._asked})

    def _is_due(self, key: Key, now: float) -> bool:
        """Whether it would be asked for soon: received a while ago, or renewed a while ago."""
        return now - self._renewed.get(key, self._asked[key]) >= self._fresh
