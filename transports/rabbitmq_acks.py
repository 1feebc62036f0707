"""Which deliveries to acknowledge, in as few frames as can be. Pure: it knows tags, and no connection."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pump.watermark import Watermark


class Frame(NamedTuple):
    """One acknowledgement: of a delivery, or of it and of all before it that are not settled."""

    tag: int
    multiple: bool


class Acks:
    """What has been settled of one AMQP channel's deliveries, which are numbered from 1.

    Promises: what it gives out acknowledges what it was asked for, each once, and never a delivery that is not settled.
    """

    def __init__(self) -> None:
        self._mark: Final = Watermark()
        self._received = 0

    def settle(self, tag: int) -> None:
        """A delivery was given back, or acknowledged."""
        while self._received < tag:
            self._received += 1
            self._mark.received(self._received)
        self._mark.settled(tag)

    def frames(self, tags: Collection[int]) -> Sequence[Frame]:
        """How to acknowledge these: all up to the first gap by one frame, those behind it one by one.

        The one frame names the last of them, not the last settled: the broker knows nothing of those any more.
        """
        for tag in tags:
            self.settle(tag)
        prefix = self._mark.position or 0
        covered = [tag for tag in tags if tag <= prefix]
        islands = [Frame(tag, multiple=False) for tag in tags if tag > prefix]
        return [Frame(max(covered), multiple=len(covered) > 1), *islands] if covered else islands
