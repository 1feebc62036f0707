"""What a pump sees of one consumer's messages: it takes them, and says what became of each. From any thread."""

from collections import deque
from itertools import islice
from typing import Final

from pump.clock import Clock
from pump.errors import LeaseLost, TransportError
from pump.message import Message
from pump.transports.rabbitmq.connection import Operation
from pump.transports.rabbitmq.deliveries import Spared, Stock
from pump.transports.rabbitmq.flow import Flow
from pump.transports.rabbitmq.settings import RabbitMQSettings
from pump.transports.rabbitmq.topology import Names
from pump.transports.rabbitmq.wire import Receipt


class Feed:
    """The messages of one consumer, of which at most so many are unsettled at a time."""

    def __init__(self, settings: RabbitMQSettings, names: Names, most: int, clock: Clock, spared: Spared) -> None:
        self.patience = 0.0
        """For how long to wait for something to arrive."""
        self._names: Final = names
        self._clock: Final = clock
        self._stock: Final = Stock(most, active=clock.monotonic())
        self._flow: Final = Flow(settings, names, self._stock, clock, spared)
        self._interrupted = False
        self.link: Final = self._flow.link
        self.arrived: Final = self._stock.arrived

    @property
    def generation(self) -> int:
        """The life that receipts belong to."""
        return self._stock.generation

    @property
    def counts(self) -> bool:
        """Whether the broker was seen to count deliveries."""
        return self._flow.counts

    # -- taking

    def ask(self, limit: int) -> None:
        """Somebody has room for so many more messages now, and waits for them."""
        stock = self._stock
        stock.asking = True
        stock.wanted = min(len(stock.handed) + limit, stock.most)

    def take(self, limit: int, deadline: float) -> list[Message] | None:
        """Up to `limit` messages. None: nothing is here yet; wait until `arrived`, or until patience is over."""
        stock, flow = self._stock, self._flow
        wanted = stock.wanted
        if flow.failure is not None:
            raise TransportError(str(flow.failure)) from flow.failure
        if stock.inbox:
            batch = self._hand_out(limit)
            if batch:
                if wanted != flow.window:
                    self.link.call(flow.serve)
                return batch
        self.arrived.clear()
        flow.waiting = True
        if stock.acks or wanted != flow.window:
            self.link.call(flow.serve)
        now = self._clock.monotonic()
        if self._interrupted or now >= deadline:
            self._interrupted = False
            return self._hand_out(limit)
        if stock.inbox or stock.postponed or flow.failure is not None:
            self.arrived.set()
        self.patience = deadline - now
        return None

    def taken(self) -> None:
        """Nobody waits any longer."""
        stock = self._stock
        stock.asking = self._flow.waiting = False
        stock.active = self._clock.monotonic()
        self._flow.guard()

    def take_postponed(self) -> list[Message]:
        """What came before its time; it has to wait some more."""
        return self._take(self._stock.postponed, len(self._stock.postponed))

    def _hand_out(self, limit: int) -> list[Message]:
        """From the inbox. What was delivered before comes alone, so that what is done is told first: it may kill."""
        inbox = self._stock.inbox
        number = 0
        for message in list(islice(inbox.copy(), limit)):
            if message.unexplained:
                break
            number += 1
        if number == 0 and inbox:
            self._flush_soon()
            number = 1
        return self._take(inbox, number)

    def _take(self, messages: deque[Message], number: int) -> list[Message]:
        taken: list[Message] = []
        handed = self._stock.handed
        try:
            for _ in range(number):
                message = messages.popleft()
                handed[message.receipt[0]] = message  # type: ignore[index]  # ours are
                taken.append(message)
        except IndexError:  # they were given back in this moment
            pass
        for message in taken:
            if message.generation != self._stock.generation:  # the same; the channel above sees it as we do
                handed.pop(message.receipt[0], None)  # type: ignore[index]
        return taken

    # -- settling

    def check(self, message: Message) -> int:
        """The delivery tag of a message that may be settled; LeaseLost if it may not be."""
        receipt = message.receipt
        if message.generation == self._stock.generation and isinstance(receipt, Receipt):
            tag = receipt.tag
            if tag in self._stock.handed:
                return tag
        raise LeaseLost(f"message {message.id} of {self._names.channel} is not this consumer's any more")

    def _claim(self, message: Message) -> int:
        tag = self.check(message)
        handed = self._stock.handed
        if handed.pop(tag, None) is None:
            raise LeaseLost(f"message {message.id} of {self._names.channel} is settled already")
        if not handed:
            self._stock.active = self._clock.monotonic()
        return tag

    def acknowledge(self, message: Message) -> None:
        """The message is done; the broker is told soon, together with others."""
        stock, flow = self._stock, self._flow
        self._claim(message)
        stock.acks.append(message)
        if len(stock.acks) >= flow.threshold and (stock.handed or stock.inbox):
            self._flush_soon()
        elif not flow.watched:  # a take that finds nothing tells the broker at once, if one comes
            flow.watch()

    def settle(self, message: Message) -> None:
        """The message is done; the broker is told at once."""
        self._claim(message)
        self._stock.acks.append(message)
        self._flush_soon()

    def nack(self, message: Message) -> None:
        """Give the message back, to anybody."""
        self.link.call(self._flow.nack, self._claim(message), message.generation)

    def _flush_soon(self) -> None:
        if not self._flow.flush_due:
            self._flow.flush_due = True
            self.link.call(self._flow.flush)

    # -- life

    def hand_back(self) -> Operation[None]:
        """Give everything back, in its old order."""
        operation: Operation[None] = self.link.begin()
        self.link.call(self._flow.hand_back, operation)
        return operation

    def empty(self) -> Operation[int]:
        """Stop consuming, and acknowledge what was not handed out; how many messages that were."""
        operation: Operation[int] = self.link.begin()
        self.link.call(self._flow.empty, operation)
        return operation

    def interrupt(self) -> None:
        """Make a wait for messages, or else the next one, end early."""
        self._interrupted = True
        self.arrived.set()

    def close(self) -> Operation[None]:
        """Disconnect. Whatever is not settled goes back."""
        return self.link.close()
