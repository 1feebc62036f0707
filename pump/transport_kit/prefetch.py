"""How many deliveries a broker may send ahead to one consumer. Pure: its caller tells it what happens."""

from collections.abc import Collection
from typing import Final

LONGEST_BATCH: Final = 64
"""The most settled deliveries that wait until the broker is told."""
QUIET_SECONDS: Final = 0.02


class Prefetch:
    """The prefetch of a broker that sends up to a fixed number of unsettled deliveries, numbered in ascending order.

    The number is fixed when consuming begins. To change it, consuming must end and begin again, and only while nothing
    can be on its way: a delivery to an ended consumer comes back as if its handling had failed. It promises that the
    prefetch is never larger than `largest`, nor than `wanted` was when consuming began, and that `may_end` is true only
    when the prefetch is used up, or when the broker was told nothing for longer than its answer takes.

    Another thread may set `wanted`; everything else belongs to the thread that talks to the broker.
    """

    def __init__(self, largest: int) -> None:
        self.largest: Final = largest
        """The most deliveries that may ever be unsettled."""
        self.wanted = 0
        """How many may be unsettled now."""
        self.quiet_seconds = QUIET_SECONDS
        """When the broker was told nothing for this long, no delivery is on its way."""
        self._moved_at = 0.0
        """When the broker was last told something that lets it send more."""
        self.restart()

    def restart(self) -> None:
        """Begin a new connection: numbers start from 1, nothing is unsettled, and nothing consumes."""
        self.last = 0
        """The number of the last delivery."""
        self._began_after = 0
        """The number of the last delivery before consuming began."""
        self._acked = 0
        """How many deliveries since consuming began the broker knows to be settled."""
        self.end()

    def want(self, limit: int, in_hand: int) -> None:
        """Note that there is room for `limit` messages beside those in hand."""
        self.wanted = min(in_hand + limit, self.largest)

    def begin(self, unsettled: int) -> int:
        """Begin to consume while `unsettled` deliveries are open; returns the prefetch to ask the broker for."""
        wanted = self.wanted
        room = wanted - unsettled
        self.size = room if 2 * room >= wanted else wanted
        self.ack_batch = max(1, min(LONGEST_BATCH, self.size // 2 if self.size >= self.largest else self.size))
        self._began_after, self._acked = self.last, 0
        return self.size

    def answered(self, seconds: float) -> None:
        """The broker has answered a request after this many seconds."""
        self.quiet_seconds = max(QUIET_SECONDS, 2 * seconds)

    def began(self, now: float) -> None:
        """The broker has begun to send."""
        self._moved_at = now

    def end(self) -> None:
        """Consuming has ended."""
        self.size = 0
        """The prefetch that the broker uses now; 0 while nothing consumes."""
        self.ack_batch = 1
        """After this many settled deliveries the broker should be told."""

    def acknowledged(self, numbers: Collection[int], now: float) -> None:
        """The broker is told that these are settled, and may send as many more."""
        began_after = self._began_after
        self._acked += sum(number > began_after for number in numbers)
        self._moved_at = now

    def is_used_up(self) -> bool:
        """Whether more deliveries are wanted, and the broker may send none now."""
        return self.wanted > self.size <= self.last - self._began_after - self._acked

    def should_grow(self, unsettled: Collection[int], in_hand: int) -> bool:
        """Whether a used-up prefetch is so small that consuming should begin again with a larger one."""
        wanted = self.wanted
        earlier = sum(number <= self._began_after for number in unsettled)
        allowed = earlier + self.size
        is_everything = wanted >= self.largest
        nothing_comes = in_hand - earlier >= self.size
        return allowed < wanted and (2 * allowed <= wanted or is_everything or nothing_comes)

    @property
    def credit(self) -> int:
        """How many more deliveries the broker may send."""
        return self.size - (self.last - self._began_after - self._acked)

    def may_end(self, now: float) -> bool:
        """Whether no delivery can be on its way."""
        return self.credit <= 0 or now >= self._moved_at + self.quiet_seconds
