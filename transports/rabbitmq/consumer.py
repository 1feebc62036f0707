"""Consumers of RabbitMQ queues in both colours: how each verdict is carried out there."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pump.clock import Clock
from pump.dead_letter import Rejection, dead_letter
from pump.errors import PublishError, PumpError
from pump.message import FIRST_FAILURE_HEADER, Header, Message
from pump.transports.rabbitmq.connection import Steps, outcome, run, run_async
from pump.transports.rabbitmq.deliveries import receipt_of
from pump.transports.rabbitmq.feed import Feed
from pump.transports.rabbitmq.publisher import Copy, Publisher
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, Ladder, Names, in_session
from pump.transports.rabbitmq.wire import write_properties

log: Final = logging.getLogger("pump.transports.rabbitmq")

PARKED_SECONDS: Final = 8.0
"""For how long a message waits that can neither be handled again nor given up."""
MINIMAL: Final = ("pump-reason", "pump-origin")


class Verdicts:
    """How verdicts are carried out, as steps for either colour. `leave` is called when the publisher is not needed."""

    def __init__(
        self,
        feed: Feed,
        names: Names,
        publisher: Publisher,
        leave: Callable[[], Steps[None]],
        clock: Clock,
        *,
        max_attempts: int | None,
        broker_limit: int | None,
    ) -> None:
        self.feed: Final = feed
        self._names: Final = names
        self._publisher: Final = publisher
        self._leave: Final = leave
        self._left = False
        self._clock: Final = clock
        self._max_attempts: Final = max_attempts
        self._broker_limit: Final = broker_limit
        self._ladder: Final = Ladder.to_queue(names.channel)

    @property
    def broker_limit(self) -> int | None:
        """As Consumer's. A queue that counts is a quorum queue, whatever it was said to be."""
        return ASSUMED_LIMIT if self._broker_limit is None and self.feed.counts else self._broker_limit

    def requeue(self, message: Message, delay: float, attempts: int) -> Steps[None]:
        """Store a copy that comes when it is due, then acknowledge the original."""
        self.feed.check(message)
        yield from self._again(message, delay, attempts)
        self.feed.settle(message)

    def _again(self, message: Message, delay: float, attempts: int) -> Steps[None]:
        header = _identified(message)
        if FIRST_FAILURE_HEADER not in header.headers:
            first = {FIRST_FAILURE_HEADER: f"{self._clock.wall():.3f}"}
            header = header._replace(headers={**header.headers, **first})
        yield from self._delay(header, message, delay, attempts, self._publisher.due(delay))

    def postpone(self) -> Steps[None]:
        """Let what came before its time wait for the rest of it."""
        for message in self.feed.take_postponed():
            when = receipt_of(message).due
            delay = max(0.0, when - self._clock.wall())
            due = when if self._publisher.due(delay) else 0.0
            yield from self._delay(_identified(message), message, delay, message.attempts, due)
            self.feed.settle(message)

    def reject(self, message: Message, rejection: Rejection) -> Steps[None]:
        """Store a dead letter, then acknowledge the original."""
        self.feed.check(message)
        grave = self._names.invalid if rejection.kind == "unacceptable" else self._names.dead_letter
        if grave is None:
            log.error(
                "message %s of %s is gone: it was rejected (%s), and its subscription says dead_letter=None",
                message.id,
                self._names.channel,
                rejection.reason,
            )
        else:
            try:
                yield from self._bury(grave, message, rejection)
            except PublishError:
                yield from self._remember(message, rejection)
                raise
        self.feed.settle(message)

    def _bury(self, grave: str, message: Message, rejection: Rejection) -> Steps[None]:
        """With all that is to be said of it, or, where that cannot be, with the least."""
        header = _identified(message)
        full = dead_letter(message, rejection)._replace(id=header.id)
        try:
            yield from self._store(grave, full, message, write_properties(full, message, topic=header.topic))
        except PublishError as error:
            if error.retriable or error.sent is not False:
                raise
            least = {name: text for name, text in full.headers.items() if name in MINIMAL}
            minimal = full._replace(headers=least)
            yield from self._store(grave, minimal, message, write_properties(minimal, topic=header.topic))

    def _delay(self, header: Header, message: Message, delay: float, attempts: int, due: float) -> Steps[None]:
        """Store a copy that comes back after the delay."""
        properties = write_properties(header, message, topic=header.topic, attempts=attempts, due=due)
        yield from self._publisher.send(self._ladder, [Copy(header.id, properties, message.body)], delay)

    def _store(self, grave: str, header: Header, message: Message, properties: bytes) -> Steps[None]:
        yield from self._publisher.send(Ladder.to_queue(grave), [Copy(header.id, properties, message.body)], 0.0)

    def _remember(self, message: Message, rejection: Rejection) -> Steps[None]:
        """A message whose attempts are spent, and which cannot be given up, comes again as one that has none left.

        Its own queue may work where that of the dead letters does not; after a restart nobody else would know.
        """
        if self._max_attempts is None or not message.attempts < self._max_attempts <= rejection.attempts:
            return
        try:
            yield from self.requeue(message, PARKED_SECONDS, rejection.attempts)
        except PumpError as error:
            log.warning("message %s of %s stays where it is: %s", message.id, self._names.channel, error)

    def hand_back(self) -> Steps[None]:
        """Give back everything."""
        yield from outcome(self.feed.hand_back())

    def purge(self) -> Steps[int]:
        """Remove what waits: here, in the queue, and in the delay queues that lead to it."""
        number: int = yield from outcome(self.feed.empty())
        queue = self._names.channel
        return number + (yield from in_session(self._publisher.settings, lambda topology: topology.purge(queue)))

    def close(self) -> Steps[None]:
        """Let go of everything."""
        try:
            with suppress(PumpError):  # then there is nothing to hand back any more
                yield from self.hand_back()
            yield from outcome(self.feed.close())
        finally:
            if not self._left:
                self._left = True
                yield from self._leave()


class _Consumer:
    """What neither waits nor is awaited."""

    def __init__(self, verdicts: Verdicts, clock: Clock) -> None:
        self._verdicts: Final = verdicts
        self._feed: Final = verdicts.feed
        self._clock: Final = clock

    @property
    def generation(self) -> int:
        """The life of the AMQP channel that deliveries came by."""
        return self._feed.generation

    @property
    def broker_limit(self) -> int | None:
        """Deliveries of one message after which the queue gives it up; None is never."""
        return self._verdicts.broker_limit

    def interrupt(self) -> None:
        """Make a receive that is under way, or else the next one, return early."""
        self._feed.interrupt()


class RabbitMQConsumer(_Consumer):
    """One consumer of one queue, blocking."""

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: what is there, or what comes within `timeout` seconds, or nothing."""
        feed, clock = self._feed, self._clock
        deadline = clock.monotonic() + timeout
        feed.ask(limit)
        try:
            while (messages := feed.take(limit, deadline)) is None:
                clock.wait(feed.arrived, feed.patience)
                run(self._verdicts.postpone(), clock)
        finally:
            feed.taken()
        return messages

    def acknowledge(self, message: Message) -> None:
        """The message is done; the broker is told within 20 ms."""
        self._feed.acknowledge(message)

    def nack(self, message: Message) -> None:
        """Give it back, to anybody."""
        self._feed.nack(message)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Deliver a copy, to this queue only, after the delay; the original is acknowledged once that is stored."""
        run(self._verdicts.requeue(message, delay, attempts), self._clock)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Make it a dead letter; the original is acknowledged once that is stored."""
        run(self._verdicts.reject(message, rejection), self._clock)

    def extend(self, message: Message) -> None:
        """There is no lease: a delivery is ours for as long as its AMQP channel is open."""
        self._feed.check(message)

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Give back everything that this consumer has, in its old order."""
        run(self._verdicts.hand_back(), self._clock)

    def purge(self) -> int:
        """Remove everything that waits in the queue or is delayed; says how many messages that were."""
        return run(self._verdicts.purge(), self._clock)

    def close(self) -> None:
        """Tell the broker what is settled, give back the rest, and disconnect."""
        run(self._verdicts.close(), self._clock)


class AsyncRabbitMQConsumer(_Consumer):
    """The same, awaiting, on any loop."""

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """As RabbitMQConsumer's; the loop's other tasks have their turn even when messages never run out."""
        feed, clock = self._feed, self._clock
        deadline = clock.monotonic() + timeout
        feed.ask(limit)
        try:
            await asyncio.sleep(0)
            while (messages := feed.take(limit, deadline)) is None:
                await clock.wait_async(feed.arrived, feed.patience)
                await run_async(self._verdicts.postpone(), clock)
        finally:
            feed.taken()
        return messages

    async def acknowledge(self, message: Message) -> None:
        """As RabbitMQConsumer's; nothing is waited for."""
        self._feed.acknowledge(message)

    async def nack(self, message: Message) -> None:
        """As RabbitMQConsumer's."""
        self._feed.nack(message)

    async def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """As RabbitMQConsumer's."""
        await run_async(self._verdicts.requeue(message, delay, attempts), self._clock)

    async def reject(self, message: Message, rejection: Rejection) -> None:
        """As RabbitMQConsumer's."""
        await run_async(self._verdicts.reject(message, rejection), self._clock)

    async def extend(self, message: Message) -> None:
        """As RabbitMQConsumer's."""
        self._feed.check(message)

    async def hand_back(self, messages: Sequence[Message]) -> None:
        """As RabbitMQConsumer's."""
        await run_async(self._verdicts.hand_back(), self._clock)

    async def purge(self) -> int:
        """As RabbitMQConsumer's."""
        return await run_async(self._verdicts.purge(), self._clock)

    async def close(self) -> None:
        """As RabbitMQConsumer's."""
        await run_async(self._verdicts.close(), self._clock)


def _identified(message: Message) -> Header:
    """Its header; a copy of a message without an id is given the one that it is known by here."""
    header = message.header
    return header if header.id else header._replace(id=message.identity)
