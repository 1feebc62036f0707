"""One batch of messages in hand: received from a consumer, kept ours while they are stored, then settled together."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from pump.clock import Clock
from pump.errors import LeaseLost, PumpError
from pump.message import Message
from pump.telemetry import log
from pump.transport_kit.protocol import Consumer, EndsReceiving

QUIET_SECONDS: Final = 0.1
"""A batch that has begun ends when no message has come for this long: whoever waits for its rows need not wait more."""
LONGEST_PERIOD: Final = 1.0
PERIODS_IN_A_LEASE: Final = 6


class HeldBatch:
    """The messages that one reader has received. As a context, it renews their leases from another thread.

    No lease of a settled message is renewed, and none at all after the context has ended: its consumer is closed.
    """

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer: Final = consumer
        self._clock: Final = clock
        self._held: list[tuple[Message, float]] = []
        """With the length of its lease."""
        self._end: Callable[[], None] | None = None
        self._renewing: Final = threading.Lock()
        """Held for each renewal, so that the end waits for the one that is under way."""
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end()
        with self._renewing:
            self._is_over = True

    # -- receiving

    def gather(self, *, most: int, most_bytes: int, window: float) -> None:
        """Receive up to `most` messages, until they have `most_bytes`, the window is over, or no more come."""
        now = self._clock.monotonic
        deadline = now() + window
        size = 0
        while len(self._held) < most and size < most_bytes and (left := deadline - now()) > 0:
            timeout = min(left, QUIET_SECONDS) if self._held else left
            messages = self._consumer.receive(most - len(self._held), timeout)
            if not messages and self._held:
                return
            size += sum(len(each.body) for each in messages)
            self._hold(messages)

    def _hold(self, messages: Sequence[Message]) -> None:
        now = self._clock.monotonic()
        leases = [0.0 if each.lease_expires is None else each.lease_expires - now for each in messages]
        self._held.extend(zip(messages, leases, strict=True))
        shortest = min(filter(None, leases), default=0.0)
        if shortest > 0 and self._end is None:
            self._end = self._clock.every(min(LONGEST_PERIOD, shortest / PERIODS_IN_A_LEASE), self._renew)

    def _renew(self) -> None:
        """Renew what ends soon, until the broker does not answer: then the next round tries again."""
        now = self._clock.monotonic()
        for message, lease in list(self._held):
            expires = message.lease_expires
            if expires is not None and expires - now < lease / 2 and not self._renewed(message):
                return

    def _renewed(self, message: Message) -> bool:
        """Renew a lease that is still needed. False if the round is over."""
        with self._renewing:
            if self._is_over:
                return False
            if message.lost or message.settled:
                return True
            try:
                self._consumer.extend(message)
            except LeaseLost:
                message.lost = True  # it is another consumer's; this batch goes on without it
            except PumpError as error:
                log.warning("spark: leases are not renewed, from message %s on: %s", message.id, error)
                return False
            return True

    def end(self) -> None:
        """Receive no more, so that the broker sends no more when these are acknowledged."""
        if isinstance(self._consumer, EndsReceiving):
            self._consumer.end_receiving()

    # -- settling

    def messages(self) -> list[Message]:
        """Those that are still ours, as far as this process knows."""
        now, generation = self._clock.monotonic(), self._consumer.generation
        return [
            message
            for message, _ in self._held
            if not message.lost
            and message.generation == generation
            and (message.lease_expires is None or message.lease_expires > now)
        ]

    def acknowledge(self, messages: Sequence[Message]) -> int:
        """They are done; returns how many are acknowledged. The others come again: duplicates, and no loss."""
        failed = 0
        why: PumpError | None = None
        for message in messages:
            message.settled = True
            try:
                self._consumer.acknowledge(message)
            except PumpError as error:
                failed, why = failed + 1, error
        if why is not None:
            log.warning("spark: %d of %d messages come again, not acknowledged: %s", failed, len(messages), why)
        return len(messages) - failed

    def hand_back(self) -> None:
        """Give back all that are not settled. What cannot be given back goes back when the consumer is closed."""
        messages = [message for message, _ in self._held if not (message.lost or message.settled)]
        self._held = []
        if messages:
            for message in messages:
                message.settled = True
            try:
                self._consumer.hand_back(messages)
            except PumpError as error:
                log.warning("spark: %d messages come again later, not handed back: %s", len(messages), error)
