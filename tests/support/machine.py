"""What stays on a machine when a process of a world dies: its notes of what was in hand, and the book, in memory.

How deaths are charged is the real code's; only the files are missing.
"""

from collections.abc import Mapping
from typing import Any, Final

from pump.clock import Clock
from pump.in_hand.book import Record, Records
from pump.in_hand.gate import Gate
from pump.in_hand.slots import CrashGuard, Found, _charge

CHANNEL: Final = "orders/"


class Machine:
    """The state folder of the processes that come and go."""

    def __init__(self) -> None:
        self.records: Final[Records] = {}

    def guard(self, clock: Clock) -> CrashGuard:
        """The guard of a new process."""
        hand: Any = Hand()
        book: Any = Book(self.records)
        hand.gate = Gate(lambda: hand.full, clock)
        return CrashGuard(hand, hand.gate, book)

    def charge(self, guard: CrashGuard) -> None:
        """The process has died: the next one finds what it had in hand."""
        hand: Any = guard.hand
        _charge([Found(CHANNEL + identity, *counts) for identity, counts in hand.noted.values()], self.records)


class Hand:
    """The notes of one process."""

    gate: Gate

    def __init__(self) -> None:
        self.noted: Final[dict[int, tuple[str, tuple[int, int, int]]]] = {}
        self._places = 0

    @property
    def full(self) -> int:
        return len(self.noted)

    def fill(self, identity: str, attempts: int = 0, explained: int = 0, count: int = 0) -> int:
        self._places += 1
        self.noted[self._places] = identity, (attempts, explained, count)
        return self._places

    def clear(self, place: int) -> None:
        self.noted.pop(place, None)
        if self.gate.closed:
            self.gate.ended()


class Book:
    """The records of the one channel."""

    def __init__(self, records: Records) -> None:
        self._records: Final = records

    def read(self) -> Mapping[str, Record]:
        return {key.removeprefix(CHANNEL): record for key, record in self._records.items()}

    def write(self, records: Mapping[str, Record | None]) -> None:
        for identity, record in records.items():
            self._records.pop(CHANNEL + identity, None)
            if record is not None:
                self._records[CHANNEL + identity] = record
