"""The state of one partition in one consumer. It does no input or output, and never waits."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from pump.transports.kafka.records import KafkaMessage


class AssignedPartition:
    """A partition while it is assigned to this consumer: what was read, what is settled, what waits until due.

    Promises: an offset may be committed only when everything before it is settled; of what is lost nothing is committed
    any more; what waits comes out in the order in which it came in, none before its time.

    Nobody is told that a message is settled: its own mark says so, and is looked at when it is time to commit.
    """

    def __init__(self, topic: str, number: int) -> None:
        self.topic: Final = topic
        self.number: Final = number
        self.domain: Final = (topic, number)
        """What is kept in order."""
        self.name: Final = f"{topic}/{number}/"
        """How the places of its messages begin, for people to read."""
        self.leaving = False
        """Whether another consumer has it, or will have it soon: none of its messages begins here any more."""
        self.paused = False
        """Whether the client was told to fetch nothing from it."""
        self.held: KafkaMessage | None = None
        """The message that was held here last, until it is settled."""
        self.waiting: Final[deque[KafkaMessage]] = deque()
        """Messages that are not due yet, in order."""
        self._unsettled: Final[deque[KafkaMessage]] = deque()
        """What was read, from the first one that was not settled when there was a commit last."""
        self._last = -1
        self._settled_to: int | None = None
        """The offset of the first message that was not settled then."""
        self._committing: int | None = None
        """The offset that the broker was last told to commit."""

    def read(self, message: KafkaMessage) -> bool:
        """Note a message. False if its offset went back: the topic was deleted and created again meanwhile.

        Then what was read before is lost, and counting begins again.
        """
        went_on = message.offset > self._last
        if not went_on:
            self.lose()
            self._settled_to = self._committing = None
        self._last = message.offset
        self._unsettled.append(message)
        return went_on

    def to_commit(self) -> int | None:
        """The offset to commit now, if that has moved since it was asked for last."""
        unsettled = self._unsettled
        while unsettled and unsettled[0].done:
            self._settled_to = unsettled.popleft().offset + 1
        if self._settled_to == self._committing:
            return None
        self._committing = self._settled_to
        return self._settled_to

    def was_not_committed(self) -> None:
        """Note that committing failed, so that it is tried again."""
        self._committing = None

    def lose(self) -> None:
        """Note that the partition is lost: no delivery of it belongs to this consumer any more."""
        for message in self.unsettled:
            message.lost = True
        self._unsettled.clear()
        self.waiting.clear()

    @property
    def unsettled(self) -> Sequence[KafkaMessage]:
        """What was read and is not settled."""
        return [message for message in self._unsettled if not message.done]

    @property
    def is_blocked(self) -> bool:
        """Whether a message that was nacked or deferred here is to be handled again before those behind it."""
        return self.held is not None and self.held.is_ours

    @property
    def is_busy(self) -> bool:
        """Whether something may soon be committed, because more messages are unsettled than only those that wait."""
        return len(self._unsettled) > len(self.waiting) or self._settled_to != self._committing

    def due(self, now: float) -> Sequence[KafkaMessage]:
        """Take out what has waited long enough."""
        ready = []
        while self.waiting and self.waiting[0].wait <= now:
            ready.append(self.waiting.popleft())
        return ready

    @property
    def next_due(self) -> float | None:
        """When the first message that waits is due, on the wall clock."""
        return self.waiting[0].wait if self.waiting else None
