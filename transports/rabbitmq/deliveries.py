"""What one consumer has of the broker's messages: come, handed out, settled. Its pump and its connection share it."""

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pump.clock import Signal
from pump.message import Message
from pump.transport_kit.protocol import new_generation
from pump.transport_kit.watermark import Watermark
from pump.transports.rabbitmq.wire import Receipt

REMEMBERED: Final = 10_000


def receipt_of(message: Message) -> Receipt:
    """The receipt of a message that came by this transport."""
    receipt = message.receipt
    assert isinstance(receipt, Receipt)  # noqa: S101 - nobody else makes receipts for it
    return receipt


@dataclass(slots=True, eq=False)
class Stock:
    """Single values and the ends of its deques are changed by either thread; nothing here is ever looked at twice."""

    most: int
    """The most messages that may be unsettled at a time."""
    generation: int = field(default_factory=new_generation)
    """The life of the AMQP channel that receipts belong to."""
    inbox: deque[Message] = field(default_factory=deque)
    postponed: deque[Message] = field(default_factory=deque)
    """Came before its time."""
    handed: dict[int, Message] = field(default_factory=dict)
    """Handed out and not settled, by delivery tag."""
    acks: deque[Message] = field(default_factory=deque)
    """Done, and the broker does not know yet."""
    wanted: int = 0
    """How many messages may be unsettled now."""
    asking: bool = False
    """Whether somebody waits for messages."""
    active: float = 0.0
    """When somebody asked last, or settled the last one in hand; on the monotonic clock."""
    arrived: Signal = field(default_factory=Signal)
    """Set when there may be something to take, or a reason not to wait for it any longer."""

    def new_life(self) -> list[Message]:
        """All receipts are void from now on; returns what comes again and has spent nothing: not begun, or done."""
        self.generation = new_generation()
        self.handed.clear()
        unspent = [*self.inbox, *self.postponed, *self.acks]
        for each in (self.inbox, self.postponed, self.acks):
            each.clear()
        return unspent

    def unsettled(self) -> list[int]:
        """The delivery tags of all that is here."""
        return [*self.handed, *(receipt_of(message).tag for message in [*self.inbox.copy(), *self.postponed.copy()])]


class Spared:
    """Which deliveries come again though no run failed: nobody had begun one, or the broker was told too late."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._explained: Final[OrderedDict[str, int]] = OrderedDict()

    def note(self, messages: list[Message]) -> None:
        """These deliveries spent nothing."""
        with self._lock:
            for message in messages:
                self._explained[message.identity] = message.deliveries - message.unexplained
                self._explained.move_to_end(message.identity)
            while len(self._explained) > REMEMBERED:
                self._explained.popitem(last=False)

    def explain(self, message: Message) -> None:
        """Take what is known of earlier deliveries off those that nobody can explain."""
        explained = self._explained.get(message.identity, 0)
        message.unexplained = max(0, message.unexplained - explained)


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
