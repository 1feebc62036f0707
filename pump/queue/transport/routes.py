"""Where a subscription consumes from and where its rejected messages go, in the queue's words."""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from pump.dead_letter import RejectionKind
from pump.errors import ConfigurationError
from pump.message import Header
from pump.queue.vocabulary import DEFAULT_PARTITION
from pump.subscription import DEFAULT_DEAD_LETTER, Subscription

SHARDS: Final = 64
DEAD_ROWS: Final = "the dead letters of <channel>"
"""Where rejected messages go by default: not to a queue, but to the dead letters that operators list and redrive."""


def partition_of(header: Header) -> str:
    """Messages of a key are in one partition, whose order is kept; those without one are in the default partition.

    There are so many partitions and no more, however many keys there are.
    """
    return DEFAULT_PARTITION if header.key is None else f"keys-{crc32(header.key.encode(errors='replace')) % SHARDS:02}"


class Route:
    """A topic is a queue, and a channel one of its consumer groups."""

    def __init__(self, subscription: Subscription) -> None:
        self.topic: Final = subscription.topic or getattr(subscription.request, "__name__", "")
        self.channel: Final = subscription.channel or self.topic
        by_default = {DEFAULT_DEAD_LETTER, DEAD_ROWS.replace("<channel>", self.channel)}
        named = "" if subscription.dead_letter in by_default else subscription.dead_letter
        invalid = named if subscription.invalid is None else subscription.invalid
        self._graves: Final[dict[RejectionKind, str | None]] = {"delivery error": named, "unacceptable": invalid}
        if self.topic in self._graves.values():
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")

    @property
    def graves(self) -> Sequence[str]:
        """The topics that rejected messages may go to."""
        return [name for name in dict.fromkeys(self._graves.values()) if name]

    def grave(self, kind: RejectionKind) -> str | None:
        """The topic that a rejected message goes to; "" is the queue's own dead letters, None is nowhere."""
        return self._graves[kind]
