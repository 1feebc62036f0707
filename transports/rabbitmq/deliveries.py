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
    """The receipt of a message that this transport received."""
    receipt = message.receipt
    assert isinstance(receipt, Receipt)  # noqa: S101 - its messages have no other receipts
    return receipt


class Deliveries:
    """The state that the connection's thread and the pump's threads share, without a lock.

    The connection's thread adds messages that arrive, takes acknowledgements to send them, and ends a generation. The
    pump's threads take messages and add acknowledgements. Each of these is one atomic operation on a deque, a dict, or
    a single value; so never read a field twice and expect the same value. A generation may end at any moment: then the
    messages just taken from it are void, and `check` raises.
    """

    def __init__(self, channel: str, prefetch: Prefetch, now: float) -> None:
        self.channel: Final = channel
        self.prefetch: Final = prefetch
        """The receiver sets `wanted` and reads the sizes; only the connection's thread uses the rest."""
        self.generation = new_generation()
        """The generation of the AMQP channel. Deliveries of earlier ones are void."""
        self.inbox: Final = deque[Message]()
        self.early: Final = deque[Message]()
        """Messages that came before they are due, because the longest delay queue was too short."""
        self.in_hand: Final[dict[int, Message]] = {}
        """Messages that were handed out and are not settled, by delivery tag."""
        self.acks: Final = deque[Message]()
        """Messages whose acknowledgement was not sent yet."""
        self.arrived: Final = Signal()
        """Set when there may be a message to take, or a reason to stop waiting."""
        self.on_uncounted: Callable[[Message], None] = ignore_uncounted
        """As ReceivesAhead's."""
        self.failure: PumpError | None = None
        """Why no more messages can come; None while they can."""
        self.may_count = True
        """False if the queue is known to be classic: there the sender may have written the header with the count."""
        self.counts = False
        """Whether the broker has sent a count of deliveries."""
        self.receiving = False
        """Whether a receive is under way."""
        self.waiting = False
        """Whether that receive waits for `arrived`."""
        self.used_at = now
        """When the last receive, or the last message in hand, ended; on the monotonic clock."""
        self.flush_requested = False
        self.flush_timed = False

    def take(self, source: deque[Message], limit: int) -> list[Message]:
        """Up to `limit` messages of `inbox` or `early`. One that may have crashed a process comes alone."""
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
            if message.generation != self.generation:  # it is void; the pump's channel sees that too
                in_hand.pop(message.receipt.tag, None)  # type: ignore[attr-defined]
        return taken

    def check(self, message: Message) -> int:
        """The delivery tag of a message that may be settled; LeaseLost if it may not."""
        receipt = message.receipt
        if message.generation == self.generation and isinstance(receipt, Receipt) and receipt.tag in self.in_hand:
            return receipt.tag
        raise LeaseLost(f"message {message.id} of {self.channel} no longer belongs to this consumer")

    def claim(self, message: Message, clock: Clock) -> int:
        """As `check`, for settling the message: only one caller gets the tag."""
        tag = self.check(message)
        if self.in_hand.pop(tag, None) is None:
            raise LeaseLost(f"message {message.id} of {self.channel} was already settled")
        if not self.in_hand:
            self.used_at = clock.monotonic()
        return tag

    def unsettled(self) -> list[int]:
        """The delivery tags of all messages that are here and not settled."""
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
    """One acknowledgement, of a delivery, or of it and all unsettled ones before it (`multiple`)."""

    tag: int
    multiple: bool


class AckFrames:
    """Makes the frames that acknowledge the deliveries of one AMQP channel, whose tags count from 1.

    Its frames acknowledge each delivery that was asked for once, and none that is not settled.
    """

    def __init__(self) -> None:
        self._watermark: Final = Watermark()
        self._received = 0

    def settle(self, tag: int) -> None:
        """Note that a delivery was returned or acknowledged."""
        while self._received < tag:
            self._received += 1
            self._watermark.received(self._received)
        self._watermark.settled(tag)

    def frames(self, tags: Collection[int]) -> Sequence[AckFrame]:
        """The frames for these tags: one for all before the first unsettled delivery, then one for each tag.

        The first frame names the last of these tags, not the last settled one, which the broker may have forgotten.
        """
        for tag in tags:
            self.settle(tag)
        prefix = self._watermark.position or 0
        covered = [tag for tag in tags if tag <= prefix]
        single = [AckFrame(tag, multiple=False) for tag in tags if tag > prefix]
        return [AckFrame(max(covered), multiple=len(covered) > 1), *single] if covered else single
