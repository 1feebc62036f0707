"""The deliveries that one consumer has, and when they have to be renewed. Pure: it is told what happens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

MOST_IDS: Final = 1000
"""How many deliveries one request settles or renews; Pub/Sub takes 512 KiB of ids."""

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
        """It is not renewed beyond."""
        self.name: Final = name
        """The subscription it came by."""
        self.retry: Final = retry
        """Whether it came by the channel's retry subscription."""
        self.lost = ""
        """Why it is not ours any more."""
        self.copied = ""
        """Where a confirmed copy of it is, whose original is not settled yet."""


class PubSubDeliveries:
    """Those that are not settled. Not for several threads at once."""

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
        """It has arrived."""
        self._all[delivery.ack_id] = delivery

    def remove(self, delivery: PubSubDelivery) -> bool:
        """It is settled, or gone; False if that was so already."""
        return self._all.pop(delivery.ack_id, None) is not None

    def to_renew(self, now: float, ends_before: float) -> Sequence[PubSubDelivery]:
        """Those whose lease ends before a moment and may be renewed; those that may not are lost from now on."""
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
        """They are ours for so many seconds more."""
        for each in deliveries:
            each.renewed, each.expires = now, min(now + lease, each.until)

    def refused(self, reasons: Mapping[str, str]) -> None:
        """Pub/Sub has said of single ids why they were not renewed. What may pass is tried with the next renewal."""
        for ack_id, reason in reasons.items():
            delivery = self._all.get(ack_id)
            if delivery is not None and is_final(reason):
                self.lose(delivery, reason)

    def lose(self, delivery: PubSubDelivery, why: str) -> None:
        """It is not ours any more."""
        delivery.lost = why
        self._all.pop(delivery.ack_id, None)


def is_final(reason: str) -> bool:
    """Whether an id that was refused for this reason will never be taken."""
    return reason.startswith("PERMANENT_FAILURE")


def portions_by_name(deliveries: Sequence[PubSubDelivery]) -> Iterator[tuple[str, Sequence[PubSubDelivery]]]:
    """What one request may hold: deliveries of one subscription, in order."""
    for name in dict.fromkeys(each.name for each in deliveries):
        for portion in in_portions([each for each in deliveries if each.name == name]):
            yield name, portion


def in_portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """No more at a time than one request takes."""
    for begin in range(0, len(items), MOST_IDS):
        yield items[begin : begin + MOST_IDS]
