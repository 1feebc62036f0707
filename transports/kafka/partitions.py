"""The state of one partition in one consumer. It does no input or output, and never waits."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from pump.transport_kit.watermark import Watermark
from pump.transports.kafka.records import KafkaReceipt, ReadRecord


class AssignedPartition:
    """A partition while it is assigned to this consumer: what was received, what is settled, what waits until due.

    Promises: an offset may be committed only when everything before it is settled; of an offset that was settled, or is
    lost, nothing is settled again; what waits comes out in the order in which it came in, none before its time.
    """

    def __init__(self, topic: str, number: int) -> None:
        self.topic: Final = topic
        self.number: Final = number
        self.domain: Final = (topic, number)
        """What is kept in order."""
        self.paused = False
        """Whether the client was told to fetch nothing from it."""
        self.held: KafkaReceipt | None = None
        """The message that was held here last."""
        self.waiting: Final[deque[ReadRecord]] = deque()
        """Messages that are not due yet, in order."""
        self._receipts: Final[dict[int, KafkaReceipt]] = {}
        self._watermark = Watermark()
        self._last = -1
        self._settled_to: int | None = None
        """The offset of the first message that is not settled."""
        self._committing: int | None = None
        """The offset that the broker was last told to commit."""

    def received(self, receipt: KafkaReceipt) -> bool:
        """Note a record that came. False if its offset went back: the topic was deleted and created again meanwhile.

        Then what was received before is lost, and counting begins again.
        """
        went_on = receipt.offset > self._last
        if not went_on:
            self.lose()
            self._watermark = Watermark()
            self._settled_to = self._committing = None
        self._last = receipt.offset
        self._receipts[receipt.offset] = receipt
        self._watermark.received(receipt.offset)
        return went_on

    def has(self, receipt: KafkaReceipt) -> bool:
        """Whether the delivery is not settled."""
        return self._receipts.get(receipt.offset) is receipt

    def holds(self, receipt: KafkaReceipt) -> bool:
        """Whether the delivery is not settled, and still this consumer's."""
        return not receipt.lost and self.has(receipt)

    def settle(self, receipt: KafkaReceipt) -> None:
        """Settle the delivery. What is settled without a gap before it may be committed."""
        if self.holds(receipt):
            del self._receipts[receipt.offset]
            position = self._watermark.settled(receipt.offset)
            if position is not None:
                self._settled_to = position + 1

    def to_commit(self) -> int | None:
        """The offset to commit now, if that has moved since it was asked for last."""
        if self._settled_to == self._committing:
            return None
        self._committing = self._settled_to
        return self._settled_to

    def was_not_committed(self) -> None:
        """Note that committing failed, so that it is tried again."""
        self._committing = None

    def lose(self) -> None:
        """Note that the partition is lost: no delivery of it belongs to this consumer any more."""
        for receipt in self._receipts.values():
            receipt.lost = True
        self._receipts.clear()
        self.waiting.clear()

    @property
    def unsettled(self) -> Sequence[KafkaReceipt]:
        """What was received and is not settled."""
        return tuple(self._receipts.values())

    @property
    def is_blocked(self) -> bool:
        """Whether a message that was refused or deferred here is to be handled again before those behind it."""
        return self.held is not None and self.holds(self.held)

    @property
    def is_busy(self) -> bool:
        """Whether something may soon be committed, because more messages are unsettled than only those that wait."""
        return len(self._receipts) > len(self.waiting) or self._settled_to != self._committing

    def due(self, now: float) -> Sequence[ReadRecord]:
        """Take out what has waited long enough."""
        ready = []
        while self.waiting and self.waiting[0].wait <= now:
            ready.append(self.waiting.popleft())
        return ready

    @property
    def next_due(self) -> float | None:
        """When the first message that waits is due, on the wall clock."""
        return self.waiting[0].wait if self.waiting else None
