"""How many messages may be on their way by a stream. Pure: it is told how many are here."""

from typing import Final


class PubSubPermits:
    """At most so many messages are here and not settled, whatever becomes of the streams that brought them.

    Pub/Sub itself counts for each stream what it has sent and what of that is settled, and begins anew with each. So
    what earlier streams have brought is subtracted when a stream is opened; and once that is settled, the stream is
    replaced by one with more, so that no permit is lost with a stream that has ended.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._given = 0
        """To the stream that is open; 0 if none is."""

    def open(self, here: int) -> int:
        """How many a new stream may bring, where so many messages are here; 0: it must not be opened yet."""
        self._given = max(0, self._most - here)
        return self._given

    def closed(self) -> None:
        """The stream has ended."""
        self._given = 0

    def should_replace(self, here: int) -> bool:
        """Whether a new stream could bring twice as many as the present one, or all."""
        free = self._most - here
        return 0 < self._given < self._most and (free >= 2 * self._given or free == self._most)
