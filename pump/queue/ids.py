"""Ids that sort by the time they were made (UUID version 7), so that an index of them grows at its end."""

import os
import threading
import time
from typing import Final

COUNTER_BITS: Final = 12


class Minting:
    """Mints ids; those of one process rise, also within a millisecond and when its clock is put back."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def many(self, number: int) -> list[str]:
        """So many ids, in rising order."""
        stamp = int(time.time() * 1000) << COUNTER_BITS
        with self._lock:
            first = max(stamp, self._last + 1)
            self._last = first + number - 1
        tails = os.urandom(8 * number).hex()
        return [written(first + index, tails[16 * index : 16 * index + 16]) for index in range(number)]


def written(stamp: int, tail: str) -> str:
    """Milliseconds and counter as the first half of a UUID, sixteen random digits as the second."""
    head = f"{stamp >> COUNTER_BITS:012x}"
    variant = "89ab"[int(tail[0], 16) & 3]
    return f"{head[:8]}-{head[8:]}-7{stamp & 0xFFF:03x}-{variant}{tail[1:4]}-{tail[4:]}"


_minting = Minting()


def mint() -> str:
    """A new id."""
    return _minting.many(1)[0]


def mint_many(number: int) -> list[str]:
    """So many new ids, in rising order."""
    return _minting.many(number)
