"""Ids that sort by the time they were made (UUID version 7), so that an index of them grows at its end."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from pump.queue.vocabulary import Push

COUNTER_BITS: Final = 12


class IdGenerator:
    """Makes ids; within one process they rise, even within a millisecond or when the clock is put back."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def many(self, count: int) -> list[str]:
        """`count` ids, in rising order."""
        stamp = int(time.time() * 1000) << COUNTER_BITS
        with self._lock:
            first = max(stamp, self._last + 1)
            self._last = first + count - 1
        tails = os.urandom(8 * count).hex()
        return [as_uuid(first + index, tails[16 * index : 16 * index + 16]) for index in range(count)]


def as_uuid(stamp: int, tail: str) -> str:
    """Milliseconds and counter as the first half of a UUID, sixteen random digits as the second."""
    head = f"{stamp >> COUNTER_BITS:012x}"
    variant = "89ab"[int(tail[0], 16) & 3]
    return f"{head[:8]}-{head[8:]}-7{stamp & 0xFFF:03x}-{variant}{tail[1:4]}-{tail[4:]}"


mint_many: Final = IdGenerator().many


def mint() -> str:
    """Make a new id."""
    return mint_many(1)[0]


def ids_for(items: Sequence[Push]) -> list[str]:
    """A message id for each push, then a transaction id for each that has none.

    They are made once for each call, so that a call which is tried again stores nothing twice.
    """
    return mint_many(len(items) + sum(not item.transaction_id for item in items))
