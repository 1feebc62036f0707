"""The blocking channel of one consumer: it hands out messages one at a time and carries verdicts out.

`pump.pumps.async_channel` is its twin: the same program, awaiting. A test keeps the two equal.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Message
from pump.pumps.channel_base import (
    OTHERS_SECONDS,
    RETRY_FIRST,
    RETRY_LONGEST,
    RETRY_SECONDS,
    ChannelBase,
    as_transport_error,
)
from pump.transport_kit.parking import PARKED_SECONDS
from pump.transport_kit.protocol import Consumer
from pump.verdict import Judge

Arguments = ParamSpec("Arguments")


class Channel(ChannelBase[Consumer]):
    """The messages of one consumer. Only one pump calls `receive`, `take` and `fill`; anybody may call the rest."""

    def __init__(self, open_consumer: Callable[[], Consumer], capabilities: Capabilities, judge: Judge) -> None:
        super().__init__(capabilities, judge)
        self._open_consumer: Final = open_consumer
        self._opening: Final = threading.Lock()

    # -- receiving

    def receive(self, timeout: float) -> Message | None:
        """The next message to handle: one that is here already or arrives within the timeout; else None."""
        message = self.take()
        if message is None:
            self.fill(timeout)
            message = self.take()
        return message

    def fill(self, timeout: float) -> bool:
        """Receive as many messages as there is room for, or wait until there is room; False if none came."""
        consumer = self._working_consumer()
        back, room, timeout = self._next_receive(timeout)
        if back:
            self._give_back(consumer, back)
            return True
        if room == 0:
            self._clock.wait(self._changed, timeout)
            return True
        returns = self._returns
        try:
            messages = consumer.receive(room, timeout)
        except Exception as error:
            self._broken = True
            failure = as_transport_error(error, "receiving")
            raise failure from failure.__cause__
        if messages or not self._broken:
            self.judge.connected()
        if not messages:
            return False
        if self._overtakes(returns):
            self._give_back(consumer, messages)
            return True
        self._take_in(consumer, messages)
        expires = messages[0].lease_expires
        if expires is not None and self._stop_renewing is None and self._rules.renew_lease:
            self._begin_renewing(
                consumer, expires, lambda interval: self._clock.every(interval, lambda: self._renew(2 * interval))
            )
        return True

    def _working_consumer(self) -> Consumer:
        if self._broken:
            self._close_consumer()
        if self._failure is not None:  # wherever the failure was met, the pump waits before the next try
            failure, self._failure = self._failure, None
            raise TransportError(f"the channel is opened again: {failure}") from failure
        consumer = self._consumer or self._opened()
        if consumer.generation != self._generation:
            self._drop_other_generations(consumer)
        return consumer

    def _opened(self) -> Consumer:
        with self._opening:  # two callers may need a consumer at once; only one is opened
            if self._consumer is None:
                try:
                    self._consumer = self._with_uncounted_noted(self._open_consumer())
                except Exception as error:
                    failure = as_transport_error(error, "opening")
                    raise failure from failure.__cause__
            return self._consumer

    def _close_consumer(self) -> None:
        consumer, self._consumer, self._broken = self._consumer, None, False
        if consumer is not None:
            try:
                consumer.close()
            except Exception as error:
                self._log.failed("closing", error)

    # -- verdicts

    def acknowledge(self, message: Message) -> None:
        """The message is done."""
        consumer = self._owner(message)
        try:  # not by _settle, which costs a call more: every message that goes well comes here
            consumer.acknowledge(message)
        except Exception as error:
            self._settle_again(message, error, lambda: consumer.acknowledge(message))
        self._free_slot(message)

    def nack(self, message: Message, delay: float = 0.0) -> None:
        """Give the message back to the broker at once; where that cannot be, hold it and present it after the delay."""
        due = self._clock.monotonic() + delay
        consumer = self._owner(message)
        if self._nack_holds(message, consumer):
            self._hold(message, due + OTHERS_SECONDS)
            return
        with self._lock:
            successors = self._intake.release(message, due)
        if successors:
            try:
                self._give_back(consumer, successors)
            except TransportError as error:  # the message comes again with its successors, once the channel is reopened
                self._failure = error
                self._free_slot(message)
                raise
            if message.generation != consumer.generation:
                self._free_slot(message)  # it went back together with its successors
                return
        self._settle(message, consumer.nack, message)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Deliver the message again after the delay; it keeps its place where order is kept."""
        consumer = self._owner(message)
        if self._requeue_holds(message, consumer, attempts):
            message.attempts = attempts
            self._hold(message, self._clock.monotonic() + delay)
            return
        try:
            consumer.requeue(message, delay, attempts)
        except Exception as error:
            message.attempts = attempts
            self._settle_again(message, error, lambda: consumer.requeue(message, delay, attempts))
        self._free_slot(message)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Make the message a dead letter, or send it to the invalid-message channel."""
        consumer = self._owner(message)
        try:
            consumer.reject(message, rejection)
        except Exception as error:
            message.attempts = max(message.attempts, rejection.attempts)
            self._settle_again(message, error, lambda: consumer.reject(message, rejection))
        self._free_slot(message)

    def hand_back(self, message: Message) -> None:
        """Give the message back as if it had not been received."""
        self._settle(message, self._owner(message).hand_back, (message,))

    def leave_unsettled(self, message: Message) -> None:
        """Send the broker nothing: the message's handler settles it, or its lease ends."""
        self._note_unsettled(message)

    def extend(self, message: Message) -> None:
        """Renew the message's lease. A lost message keeps its slot while its handler runs."""
        self._owner(message, settling=False).extend(message)

    def purge(self) -> int:
        """Remove all waiting messages, here and in the broker; returns how many there were."""
        consumer = self._working_consumer()
        with self._lock:
            waiting = self._intake.drain()
        if waiting:
            self._give_back(consumer, waiting)
        return consumer.purge()

    def _settle(
        self, message: Message, call: Callable[Arguments, None], *args: Arguments.args, **options: Arguments.kwargs
    ) -> None:
        try:
            call(*args, **options)
        except Exception as error:
            self._settle_again(message, error, lambda: call(*args, **options))
        self._free_slot(message)

    def _settle_again(self, message: Message, error: Exception, call: Callable[[], None]) -> None:
        """Try the same verdict again while the lease lasts, within limits; then let the message come later, and raise.

        Without a lease, there is no second try: the channel is reopened, and all its messages come again. If the same
        verdict has failed for long, its message comes later then, too.
        """
        if isinstance(error, LeaseLost):
            self._mark_lost(message)
            raise error
        delay, stopping = RETRY_FIRST, False
        until = self._clock.monotonic() + RETRY_SECONDS
        with self._lock:
            self._retrying += 1
        try:
            while message.lease_expires is not None and self._clock.monotonic() < until:
                self._log.failed("settling", error)
                stopping = self._clock.wait(self.judge.stopping, delay)
                self._owner(message)
                try:
                    call()
                except LeaseLost:
                    self._mark_lost(message)
                    raise
                except Exception as again:
                    error = again
                else:
                    return
                if stopping:
                    break
                delay = min(2 * delay, RETRY_LONGEST)
            failure = as_transport_error(error, "settling")
            is_away = stopping and not isinstance(error, PublishError)  # a stop does not wait for a broker that is away
            if is_away or not self._must_let_pass(message, error) or not self._parked(message):
                self._broken, self._failure = True, failure
            self._free_slot(message)
            raise failure
        finally:
            with self._lock:
                self._retrying -= 1
                self._wake()

    def _parked(self, message: Message) -> bool:
        """Hold or requeue a message whose verdict cannot be carried out now; returns whether that worked."""
        consumer = self._consumer
        if consumer is None or message.generation != consumer.generation:
            return False
        if self._rules.ordered or self._capabilities.requeue == "hold":
            self._hold(message, self._clock.monotonic() + PARKED_SECONDS)
            return True
        try:
            consumer.requeue(message, PARKED_SECONDS, message.attempts)
        except LeaseLost:  # the message has gone back already
            return False
        except Exception as error:
            self._log.failed("giving back", error)
            return False
        return True

    def _give_back(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        ours = self._not_begun(consumer, messages)
        if not ours:
            return
        try:
            consumer.hand_back(ours)
        except Exception as error:
            self._broken = True
            failure = as_transport_error(error, "handing back")
            raise failure from failure.__cause__

    def _renew(self, ahead: float) -> None:
        """Renew every lease that ends within `ahead` seconds."""
        consumer = self._consumer
        for message in self._ending_leases(ahead):
            if consumer is not None and message.generation == consumer.generation:
                with self._renewing(message):
                    consumer.extend(message)

    # -- ending

    def finish(self, timeout: float) -> None:
        """Wait until handlers that settle by themselves have settled the messages in hand, or the time is over."""
        deadline = self._clock.monotonic() + timeout
        while self._has_unsettled() and (left := deadline - self._clock.monotonic()) > 0:
            self._clock.wait(self._changed, left)

    def hand_back_waiting(self) -> None:
        """Give back, in order, the messages that no handler has begun, while handlers run. A failure is only logged."""
        consumer, waiting = self._consumer, self._may_go_back()
        if waiting:
            try:
                if consumer is not None:
                    self._give_back(consumer, waiting)
            except TransportError as error:
                self._log.failed("handing back", error)
            finally:
                self._has_gone_back()

    def close(self) -> None:
        """Hand back, in order, the messages that no handler has begun, and close the consumer."""
        self.stop()
        if self._stop_renewing is not None:
            self._stop_renewing()
        with self._lock:
            waiting = self._intake.drain()
        if waiting and self._consumer is not None:
            try:
                self._give_back(self._consumer, waiting)
            except TransportError as error:
                self._log.failed("handing back", error)
        self._release_unsettled()
        self._close_consumer()

    def _release_unsettled(self) -> None:
        """Close what factories opened for messages that handlers left unsettled: nobody can settle them now."""
        for message in self.in_hand:
            if message.release is not None:
                message.release()
