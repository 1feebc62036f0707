"""Decides which leases to renew together, ten in one request.

A channel asks for each message alone. Then others that the channel asks for regularly are renewed with it.
"""

import threading
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class LeaseRounds(Generic[Key]):
    """The messages of one consumer whose leases are being renewed. Any thread may use it; it is given the time."""

    def __init__(self, lease: float, most: int) -> None:
        """`lease` is how long one lasts, in seconds; `most` is how many fit in one request."""
        self._fresh: Final = lease / 6
        """How long after a renewal no other one is needed."""
        self._regular: Final = lease / 2
        """A message that was not asked for in this time is not renewed with others any more."""
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._asked: Final[dict[Key, float]] = {}
        """When each was last asked for or received; oldest first."""
        self._renewed: Final[dict[Key, float]] = {}

    def begins(self, keys: Sequence[Key], now: float) -> None:
        """Note messages that were received: their leases begin."""
        with self._lock:
            self._asked.update(dict.fromkeys(keys, now))

    def ends(self, key: Key) -> None:
        """Forget a message that is settled or lost."""
        with self._lock:
            self._asked.pop(key, None)
            self._renewed.pop(key, None)

    def asked(self, key: Key, now: float) -> Sequence[Key]:
        """The messages to renew together with this one; none if it was just renewed together with another."""
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
        """Note messages that were renewed by a request that began at that time."""
        with self._lock:
            self._renewed.update({key: now for key in keys if key in self._asked})

    def _is_due(self, key: Key, now: float) -> bool:
        """Whether its last renewal, or its arrival, was long enough ago."""
        return now - self._renewed.get(key, self._asked[key]) >= self._fresh
