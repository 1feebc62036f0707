"""Acknowledgements that are sent in batches: a few milliseconds later, many in one call to the broker."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from pump.clock import Clock
from pump.errors import PumpError

Key = TypeVar("Key")
Ack = TypeVar("Ack")

MOST: Final = 64
"""The most acknowledgements in one batch, unless a consumer gives another number."""
LONGEST_SECONDS: Final = 0.02
"""The longest time that a batched acknowledgement waits to be sent."""


class AckBatch(Generic[Key, Ack]):
    """The pending acknowledgements of one consumer, by the key of their delivery. Any thread may use it.

    The function `send` takes all of them and sends them. If it fails, it puts back what it could not send, and raises.
    """

    def __init__(self, clock: Clock, send: Callable[[], object], *, retry_seconds: float, most: int = MOST) -> None:
        """`retry_seconds` is how long to wait before a failed send is tried again."""
        self._clock: Final = clock
        self._send: Final = send
        self._retry_seconds: Final = retry_seconds
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._pending: dict[Key, Ack] = {}
        self._since = 0.0
        self._timed = False
        self._closed = False

    def add(self, key: Key, ack: Ack) -> bool:
        """Have this sent within 20 ms. If the batch is full and must be sent first, add nothing and return False."""
        with self._lock:
            if not self._has_room():
                return False
            self._pending.setdefault(key, ack)
        self._send_within(LONGEST_SECONDS)
        return True

    def add_made(self, make: Callable[[], Iterable[tuple[Key, Ack]]]) -> bool:
        """The same for several acknowledgements together; `make` is called only if there is room."""
        with self._lock:
            if not self._has_room():
                return False
            for key, ack in make():
                self._pending.setdefault(key, ack)
        self._send_within(LONGEST_SECONDS)
        return True

    def take(self, more: Mapping[Key, Ack] | None = None) -> dict[Key, Ack]:
        """Remove and return all pending acknowledgements, merged with `more`; the caller must send them."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for key, ack in (more or {}).items():
            pending.setdefault(key, ack)
        return pending

    def put_back(self, acks: Mapping[Key, Ack]) -> None:
        """Keep unconfirmed acknowledgements, to send them again. To send one twice does no harm."""
        with self._lock:
            self._pending = {**acks, **self._pending}
        self._send_within(self._retry_seconds)

    def close(self) -> None:
        """Stop sending on a timer."""
        self._closed = True

    def _has_room(self) -> bool:
        if not self._pending:
            self._since = self._clock.monotonic()
        return len(self._pending) < self._most

    def _send_within(self, seconds: float) -> None:
        if not self._timed:
            self._timed = True
            self._clock.alarm(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timed = False  # cleared first, so that an acknowledgement added from now on starts a new timer
        if self._closed or not self._pending:
            return
        left = self._since + LONGEST_SECONDS - self._clock.monotonic()
        if left > 0:  # the batch that this timer was for has been sent, and a later one is pending
            self._send_within(left)
            return
        try:
            self._send()
        except PumpError:  # it was put back and is sent again; a caller that waits gets the error itself
            self._send_within(self._retry_seconds)
