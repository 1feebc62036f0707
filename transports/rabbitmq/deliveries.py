"""The deliveries of one consumer: received, handed out, settled. Its pump's thread and its connection's share them."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from pump.clock import Clock, Signal
from pump.errors import LeaseLost, PumpError
from pump.message import Message
from pump.transport_kit.prefetch import Prefetch
from pump.transport_kit.protocol import ignore_uncounted, new_generation
from pump.transport_kit.watermark import Watermark
from pump.transports.rabbitmq.headers import Receipt


def receipt_of(message: Message) -> Receipt:
    """The receipt of a message that came by this transport."""
    receipt = message.receipt
    assert isinstance(receipt, Receipt)  # noqa: S101 - nobody else makes receipts for it
    return receipt


class Deliveries:
    """All that a consumer's two threads share, without a lock.

    The connection's thread adds what arrives, takes the acknowledgements to send them, and ends a generation; the
    pump's threads take messages, and add acknowledgements. Each of these is one atomic operation on a deque, on a dict,
    or on a single value; so never read a field twice and expect the same value. A generation may end at any moment:
    what was just taken from it is void then, as `check` says.
    """

    def __init__(self, channel: str, prefetch: Prefetch, now: float) -> None:
        self.channel: Final = channel
        self.prefetch: Final = prefetch
        """The receiver sets `wanted` and reads the sizes; all else of it is the connection's."""
        self.generation = new_generation()
        """Of the AMQP channel; earlier deliveries are void."""
        self.inbox: Final = deque[Message]()
        self.early: Final = deque[Message]()
        """Came back before they are due: the longest delay queue was too short."""
        self.in_hand: Final[dict[int, Message]] = {}
        """Handed out and not settled, by delivery tag."""
        self.acks: Final = deque[Message]()
        """Settled, and the broker does not know yet."""
        self.arrived: Final = Signal()
        """Set when there may be something to take, or a reason not to wait for it any longer."""
        self.on_uncounted: Callable[[Message], None] = ignore_uncounted
        """As ReceivesAhead's."""
        self.failure: PumpError | None = None
        """Why nothing comes any more."""
        self.may_count = True
        """Whether the queue is not known to be a classic one: there a count is the sender's, who may say anything."""
        self.counts = False
        """Whether the broker was seen to count deliveries."""
        self.receiving = False
        """Whether a receive is under way,"""
        self.waiting = False
        """and waits for `arrived`."""
        self.used_at = now
        """When a receive or the last message in hand ended; on the monotonic clock."""
        self.flush_requested = False
        self.flush_timed = False

    def take(self, source: deque[Message], limit: int) -> list[Message]:
        """Up to `limit` messages from `inbox` or `early`. A redelivered one comes alone: it may crash the process."""
        taken: list[Message] = []
        in_hand = self.in_hand
        try:
            while source and len(taken) < limit and not (taken and (taken[0].unexplained or source[0].unexplained)):
                message = source.popleft()
                in_hand[message.receipt.tag] = message  # type: ignore[attr-defined]  # ours are
                taken.append(message)
        except IndexError:  # the generation has just ended
            pass
        for message in taken:
            if message.generation != self.generation:  # it is void; the channel above sees that as well
                in_hand.pop(message.receipt.tag, None)  # type: ignore[attr-defined]
        return taken

    def check(self, message: Message) -> int:
        """The delivery tag of a message that may be settled; LeaseLost if it may not."""
        receipt = message.receipt
        if message.generation == self.generation and isinstance(receipt, Receipt) and receipt.tag in self.in_hand:
            return receipt.tag
        raise LeaseLost(f"message {message.id} of {self.channel} is not this consumer's any more")

    def claim(self, message: Message, clock: Clock) -> int:
        """As `check`, for the one caller who settles it."""
        tag = self.check(message)
        if self.in_hand.pop(tag, None) is None:
            raise LeaseLost(f"message {message.id} of {self.channel} is settled already")
        if not self.in_hand:
            self.used_at = clock.monotonic()
        return tag

    def unsettled(self) -> list[int]:
        """The delivery tags of all that is here."""
        return [*self.in_hand, *(receipt_of(message).tag for message in [*self.inbox.copy(), *self.early.copy()])]

    def end_generation(self) -> None:
        """All deliveries are void from now on. Those that nobody saw, and those acknowledged too late, cost nothing."""
        self.generation = new_generation()
        self.in_hand.clear()
        uncounted = [*self.inbox, *self.early, *self.acks]
        for each in (self.inbox, self.early, self.acks):
            each.clear()
        for message in uncounted:
            self.on_uncounted(message)


class AckFrame(NamedTuple):
    """One acknowledgement: of a delivery, or of it and of all unsettled ones before it."""

    tag: int
    multiple: bool


class AckFrames:
    """Which frames acknowledge the deliveries of one AMQP channel, which are numbered from 1.

    Promises: its frames acknowledge what they were asked for, each delivery once, and none that is not settled.
    """

    def __init__(self) -> None:
        self._watermark: Final = Watermark()
        self._received = 0

    def settle(self, tag: int) -> None:
        """A delivery was returned, or acknowledged."""
        while self._received < tag:
            self._received += 1
            self._watermark.received(self._received)
        self._watermark.settled(tag)

    def frames(self, tags: Collection[int]) -> Sequence[AckFrame]:
        """How to acknowledge these: those up to the first gap by one frame, those after it one by one.

        The one frame names the last of these tags, not the last settled one: the broker may have forgotten that.
        """
        for tag in tags:
            self.settle(tag)
        prefix = self._watermark.position or 0
        covered = [tag for tag in tags if tag <= prefix]
        single = [AckFrame(tag, multiple=False) for tag in tags if tag > prefix]
        return [AckFrame(max(covered), multiple=len(covered) > 1), *single] if covered else single
