"""The deliveries of one consumer, and when to renew them. It does no input or output."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

MOST_IDS: Final = 1000
"""The most deliveries that one request settles or renews: Pub/Sub takes 512 KiB of ids."""

Item = TypeVar("Item")


class PubSubDelivery:
    """One delivery: the id by which it is settled, and until when it is ours."""

    __slots__ = ("ack_id", "copied", "expires", "lost", "name", "renewed", "retry", "until")

    def __init__(
        self, ack_id: str, now: float, lease: float, *, longest: float, name: str, retry: bool = False
    ) -> None:
        self.ack_id: Final = ack_id
        self.expires = now + lease
        """On the monotonic clock."""
        self.renewed = now
        """When it was received, or renewed last."""
        self.until: Final = now + longest
        """The time until which it may be renewed."""
        self.name: Final = name
        """The subscription that delivered it."""
        self.retry: Final = retry
        """Whether the channel's retry subscription delivered it."""
        self.lost = ""
        """Why it is lost; empty if it is not."""
        self.copied = ""
        """Where a confirmed copy of it is, if the original could not be settled yet."""


class PubSubDeliveries:
    """The unsettled deliveries. A lock must guard it."""

    def __init__(self) -> None:
        self._all: Final[dict[str, PubSubDelivery]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def count_of(self, name: str, now: float) -> int:
        """How many came by this subscription and are ours; those whose lease has ended are lost from now on."""
        for each in [each for each in self._all.values() if each.expires <= now]:
            self.lose(each, "its lease has ended")
        return sum(each.name == name for each in self._all.values())

    def add(self, delivery: PubSubDelivery) -> None:
        """Add a delivery that has arrived."""
        self._all[delivery.ack_id] = delivery

    def remove(self, delivery: PubSubDelivery) -> bool:
        """Remove a delivery that is settled or gone; False if it was removed before."""
        return self._all.pop(delivery.ack_id, None) is not None

    def to_renew(self, now: float, ends_before: float) -> Sequence[PubSubDelivery]:
        """The deliveries to renew: their lease ends before this time. Those that may not be renewed are lost now."""
        found = []
        for each in list(self._all.values()):
            if each.expires >= ends_before:
                continue
            if each.expires <= now:
                self.lose(each, "its lease has ended")
            elif now >= each.until - 1:
                self.lose(each, "it was extended for as long as longest_lease allows")
            else:
                found.append(each)
        return found

    def renewed(self, deliveries: Iterable[PubSubDelivery], now: float, lease: float) -> None:
        """Note that these have a new lease of this many seconds."""
        for each in deliveries:
            each.renewed, each.expires = now, min(now + lease, each.until)

    def refused(self, reasons: Mapping[str, str]) -> None:
        """Note why Pub/Sub did not renew single ids. If the reason may be temporary, the next renewal tries again."""
        for ack_id, reason in reasons.items():
            delivery = self._all.get(ack_id)
            if delivery is not None and is_final(reason):
                self.lose(delivery, reason)

    def lose(self, delivery: PubSubDelivery, why: str) -> None:
        """Note that a delivery is lost."""
        delivery.lost = why
        self._all.pop(delivery.ack_id, None)


def is_final(reason: str) -> bool:
    """Whether an id that was refused for this reason will never be taken."""
    return reason.startswith("PERMANENT_FAILURE")


def portions_by_name(deliveries: Sequence[PubSubDelivery]) -> Iterator[tuple[str, Sequence[PubSubDelivery]]]:
    """The deliveries in portions for one request each: of one subscription, and in order."""
    for name in dict.fromkeys(each.name for each in deliveries):
        for portion in in_portions([each for each in deliveries if each.name == name]):
            yield name, portion


def in_portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in portions that one request takes."""
    for begin in range(0, len(items), MOST_IDS):
        yield items[begin : begin + MOST_IDS]
