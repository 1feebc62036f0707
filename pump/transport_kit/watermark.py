"""How far everything is settled, when it is settled in any order: what may be committed, or acknowledged at one go."""

from bisect import insort
from collections import deque
from typing import Final


class Watermark:
    """The contiguous settled prefix of the positions received. One for each partition, or each life of a consumer.

    Only what was received counts: positions that a broker leaves out are no gaps. What is at or below the watermark
    stays settled, whatever is said of it later. It remembers no more than what was received since the oldest position
    that is not settled; where positions come in ascending order each one costs a constant time.
    """

    __slots__ = ("_order", "_position", "_settled")

    def __init__(self) -> None:
        self._order: Final[deque[int]] = deque()
        self._settled: Final[dict[int, bool]] = {}
        self._position: int | None = None

    def __len__(self) -> int:
        return len(self._order)

    @property
    def position(self) -> int | None:
        """The watermark: the last position up to which all is settled; None as long as there is none."""
        return self._position

    def received(self, position: int) -> None:
        """The position has to be settled. Saying so again, or of one that is settled, changes nothing."""
        if position in self._settled or (self._position is not None and position <= self._position):
            return
        self._settled[position] = False
        if self._order and position < self._order[-1]:
            insort(self._order, position)
        else:
            self._order.append(position)

    def settled(self, position: int) -> int | None:
        """The position is settled; returns the new watermark if that moved it. The unknown and the old move nothing."""
        if self._settled.get(position) is not False:
            return None
        self._settled[position] = True
        if position != self._order[0]:
            return None
        while self._order and self._settled[self._order[0]]:
            self._position = self._order.popleft()
            del self._settled[self._position]
        return self._position
