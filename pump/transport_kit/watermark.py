"""The position that may be committed: all messages up to it are settled, in whatever order they were."""

from bisect import insort
from collections import deque
from typing import Final


class Watermark:
    """The last position up to which all received ones are settled, in one partition or generation of a consumer.

    Only received positions count: a position that the broker leaves out is not a gap. A position at or below the
    watermark stays settled, whatever is reported later. Only the positions since the oldest unsettled one are kept; if
    they come in ascending order, each costs a constant time.
    """

    __slots__ = ("_order", "_settled", "position")

    def __init__(self) -> None:
        self._order: Final[deque[int]] = deque()
        self._settled: Final[dict[int, bool]] = {}
        self.position: int | None = None
        """The last position up to which all are settled; None if there is none yet."""

    def __len__(self) -> int:
        return len(self._order)

    def received(self, position: int) -> None:
        """Note a position that has to be settled. If it was received before, or is settled, nothing changes."""
        if position in self._settled or (self.position is not None and position <= self.position):
            return
        self._settled[position] = False
        if self._order and position < self._order[-1]:
            insort(self._order, position)
        else:
            self._order.append(position)

    def settled(self, position: int) -> int | None:
        """The position is settled; returns the new watermark if it moved. Unknown and old positions move nothing."""
        if self._settled.get(position) is not False:
            return None
        self._settled[position] = True
        if position != self._order[0]:
            return None
        while self._order and self._settled[self._order[0]]:
            self.position = self._order.popleft()
            del self._settled[self.position]
        return self.position
