"""Consumers of RabbitMQ queues, blocking and awaiting: they receive messages and carry out each verdict."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.errors import PublishError, PumpError, TransportError
from pump.message import Header, Message
from pump.transport_kit.dead_letters import (
    LetterTries,
    copy_headers,
    dead_letter_headers,
    identified,
    report_gone,
)
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.parking import Parking
from pump.transports.rabbitmq.connection import Steps, awaiting, blocking, run, run_async
from pump.transports.rabbitmq.deliveries import receipt_of
from pump.transports.rabbitmq.delivery_channel import DeliveryChannel
from pump.transports.rabbitmq.headers import write_properties
from pump.transports.rabbitmq.publisher import EncodedMessage, Publisher
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, DelayQueues, Topology, with_topology

log: Final = logging.getLogger("pump.transports.rabbitmq")


class ConsumerBase:
    """The common part of both colours. Its methods do not wait, or return steps, which a colour blocks on or awaits."""

    def __init__(
        self,
        channel: DeliveryChannel,
        names: Destinations,
        publisher: Publisher,
        clock: Clock,
        *,
        max_attempts: int | None,
        broker_limit: int | None,
    ) -> None:
        self._channel: Final = channel
        self._call: Final = channel.connection.call
        self._deliveries: Final = channel.deliveries
        self._names: Final = names
        self._publisher: Final = publisher
        self._clock: Final = clock
        self._parking: Final = Parking(log, names.channel, max_attempts)
        self._broker_limit: Final = broker_limit
        self._own_queue: Final = DelayQueues.to_queue(names.channel)
        self._interrupted = False
        self._closed = False
        self._counting: Topology | None = None
        publisher.enter()

    @property
    def generation(self) -> int:
        """The generation of the AMQP channel by which deliveries come."""
        return self._deliveries.generation

    @property
    def broker_limit(self) -> int | None:
        """As in Consumer. A queue that counts deliveries is a quorum queue, whatever the settings say."""
        return ASSUMED_LIMIT if self._broker_limit is None and self._deliveries.counts else self._broker_limit

    @property
    def on_uncounted(self) -> Callable[[Message], None]:
        """As ReceivesAhead's."""
        return self._deliveries.on_uncounted

    @on_uncounted.setter
    def on_uncounted(self, tell: Callable[[Message], None]) -> None:
        self._deliveries.on_uncounted = tell

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        self._deliveries.arrived.set()

    # -- receiving

    def _begin_to_receive(self, limit: int) -> None:
        deliveries = self._deliveries
        deliveries.receiving = True
        deliveries.prefetch.want(limit, len(deliveries.in_hand))

    def _take(self, limit: int, deadline: float) -> list[Message] | None:
        """Up to `limit` messages. None: there are none yet, and there is time left to wait until `arrived`."""
        deliveries, channel = self._deliveries, self._channel
        failure, prefetch = deliveries.failure, deliveries.prefetch
        if failure is not None:
            raise TransportError(str(failure)) from failure
        batch = deliveries.take(deliveries.inbox, limit)
        if batch:
            if batch[0].unexplained:  # it may crash the process: send the acknowledgements first
                self._flush()
            if prefetch.wanted != prefetch.size and (
                deliveries.acks or prefetch.wanted < prefetch.size or prefetch.is_used_up()
            ):
                self._call(channel.refill)
            return batch
        deliveries.arrived.clear()
        deliveries.waiting = True
        if deliveries.acks or prefetch.wanted != prefetch.size:
            self._call(channel.refill)
        if self._interrupted or self._clock.monotonic() >= deadline:
            self._interrupted = False
            return deliveries.take(deliveries.inbox, limit)
        if deliveries.inbox or deliveries.early or deliveries.failure is not None:
            deliveries.arrived.set()
        return None

    def _end_receiving(self) -> None:
        deliveries = self._deliveries
        deliveries.receiving = deliveries.waiting = False
        deliveries.used_at = self._clock.monotonic()
        self._channel.watch_idle()

    def _delay_early(self) -> Steps[None]:
        """Put messages that came from a delay queue before they are due into delay queues again."""
        deliveries = self._deliveries
        for message in deliveries.take(deliveries.early, len(deliveries.early)):
            when = receipt_of(message).due
            delay = max(0.0, when - self._clock.wall())
            due = when if self._publisher.due(delay) else 0.0
            header, attempts = identified(message), message.attempts
            properties = write_properties(header, message, topic=header.topic, attempts=attempts, due=due)
            yield from self._store(self._own_queue, header, properties, message, delay)
            self._settle(message)

    def end_receiving(self) -> None:
        """As EndsReceiving's. What came meanwhile, and was not received, goes back when this consumer is closed."""
        self._call(self._channel.stop)

    # -- settling

    def settle_soon(self, message: Message) -> None:
        """Acknowledge the message within 20 ms, together with others."""
        deliveries = self._deliveries
        deliveries.claim(message, self._clock)
        deliveries.acks.append(message)
        if len(deliveries.acks) >= deliveries.prefetch.ack_batch and (deliveries.in_hand or deliveries.inbox):
            self._flush()
        elif not deliveries.flush_timed:  # a receive that finds no message flushes sooner
            self._channel.flush_later()

    def _settle(self, message: Message) -> None:
        """Acknowledge the message at once."""
        self._deliveries.claim(message, self._clock)
        self._deliveries.acks.append(message)
        self._flush()

    def _flush(self) -> None:
        if not self._deliveries.flush_requested:
            self._deliveries.flush_requested = True
            self._call(self._channel.flush)

    def give_back(self, message: Message) -> None:
        """Return the message to the queue, for any consumer."""
        self._call(self._channel.nack, self._deliveries.claim(message, self._clock), message.generation)

    def check(self, message: Message) -> None:
        """Raise LeaseLost if the delivery is void. It has no lease: it is ours as long as the AMQP channel is open."""
        self._deliveries.check(message)

    def requeue_steps(self, message: Message, delay: float, attempts: int) -> Steps[None]:
        """Store a copy that comes to this queue only, after the delay; then acknowledge the original."""
        self._deliveries.check(message)
        header = identified(message)
        headers = {**header.headers, **copy_headers(message, attempts, self._clock.wall())}
        header = header._replace(headers=headers)
        properties = write_properties(header, message, topic=header.topic, due=self._publisher.due(delay))
        yield from self._store(self._own_queue, header, properties, message, delay)
        self._settle(message)

    def reject_steps(self, message: Message, rejection: Rejection) -> Steps[None]:
        """Store a dead letter, then acknowledge the original."""
        self._deliveries.check(message)
        queue = self._names.for_rejected(rejection.kind)
        if queue is None:
            report_gone(log, message, self._names.channel, rejection)
        else:
            try:
                yield from self._store_dead_letter(queue, message, rejection)
            except PublishError:
                yield from self._parking.park_steps(message, rejection, self.requeue_steps)
                raise
        self._settle(message)

    def _store_dead_letter(self, queue: str, message: Message, rejection: Rejection) -> Steps[None]:
        to = DelayQueues.to_queue(queue)
        header, minimal = dead_letter_headers(message, rejection)
        letters = ((header, message), (minimal, None))  # the minimal one is without the properties that others gave
        for each in LetterTries(
            log, message, self._names.channel, rejection, ((each, "") for each in letters), is_too_large=_is_final
        ):
            with each:
                header, original = each.letter
                properties = write_properties(header, original, topic=header.topic)
                yield from self._store(to, header, properties, message)

    def _store(
        self, to: DelayQueues, header: Header, properties: bytes, message: Message, delay: float = 0.0
    ) -> Steps[None]:
        yield from self._publisher.send(to, [EncodedMessage(header.id, properties, message.body)], delay)

    # -- everything at once

    def hand_back_steps(self, messages: Sequence[Message]) -> Steps[None]:
        """Return all messages that this consumer has to the queue, in their old order."""
        yield from self._channel.connection.ask(self._channel.hand_back)

    def purge_steps(self) -> Steps[int]:
        """Remove the messages that wait here, in the queue, and in its delay queues; returns how many they were."""
        number: int = yield from self._channel.connection.ask(self._channel.purge)
        queue = self._names.channel
        return number + (yield from with_topology(self._publisher.settings, lambda topology: topology.purge(queue)))

    def waiting_steps(self) -> Steps[int]:
        """How many messages of the queue no consumer has. To be asked of a consumer that has not received yet."""
        if self._counting is None:
            self._counting = Topology(self._channel.connection, self._publisher.settings)
        return (yield from self._counting.waiting(self._names.channel))

    def close_steps(self) -> Steps[None]:
        """Send the pending acknowledgements, return the other messages, and disconnect."""
        try:
            with suppress(PumpError):  # the connection is lost, and the broker already has the messages
                yield from self.hand_back_steps(())
            yield from self._channel.connection.close()
        finally:
            if not self._closed:
                self._closed = True
                yield from self._publisher.leave()


def _is_final(error: PumpError) -> bool:
    return isinstance(error, PublishError) and not error.retriable and error.sent is False


class RabbitMQConsumer(ConsumerBase):
    """One consumer of one queue, blocking."""

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages. If none is there, waits up to `timeout` seconds for the first one."""
        clock, deliveries = self._clock, self._deliveries
        deadline = clock.monotonic() + timeout
        self._begin_to_receive(limit)
        try:
            while (messages := self._take(limit, deadline)) is None:
                clock.wait(deliveries.arrived, deadline - clock.monotonic())
                if deliveries.early:
                    run(self._delay_early())
        finally:
            self._end_receiving()
        return messages

    acknowledge = ConsumerBase.settle_soon
    nack = ConsumerBase.give_back
    extend = ConsumerBase.check
    requeue = blocking(ConsumerBase.requeue_steps)
    reject = blocking(ConsumerBase.reject_steps)
    hand_back = blocking(ConsumerBase.hand_back_steps)
    purge = blocking(ConsumerBase.purge_steps)
    count_waiting = blocking(ConsumerBase.waiting_steps)
    close = blocking(ConsumerBase.close_steps)


class AsyncRabbitMQConsumer(ConsumerBase):
    """One consumer of one queue, awaiting, on any loop."""

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """As in RabbitMQConsumer. The loop's other tasks run too, even if there are always messages."""
        clock, deliveries = self._clock, self._deliveries
        deadline = clock.monotonic() + timeout
        self._begin_to_receive(limit)
        try:
            await asyncio.sleep(0)
            while (messages := self._take(limit, deadline)) is None:
                await clock.wait_async(deliveries.arrived, deadline - clock.monotonic())
                if deliveries.early:
                    await run_async(self._delay_early())
        finally:
            self._end_receiving()
        return messages

    async def acknowledge(self, message: Message) -> None:
        """As in RabbitMQConsumer; it does not wait."""
        self.settle_soon(message)

    async def nack(self, message: Message) -> None:
        """As in RabbitMQConsumer."""
        self.give_back(message)

    async def extend(self, message: Message) -> None:
        """As in RabbitMQConsumer."""
        self.check(message)

    requeue = awaiting(ConsumerBase.requeue_steps)
    reject = awaiting(ConsumerBase.reject_steps)
    hand_back = awaiting(ConsumerBase.hand_back_steps)
    purge = awaiting(ConsumerBase.purge_steps)
    count_waiting = awaiting(ConsumerBase.waiting_steps)
    close = awaiting(ConsumerBase.close_steps)
