"""The common part of consumers of streams and of lists: when they poll, wait and acknowledge."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PumpError, SetupError, TransportError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.ack_batch import MOST, AckBatch
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.parking import Parking
from pump.transport_kit.protocol import new_generation
from pump.transport_kit.settings import finite_seconds
from pump.transports.redis.connection import Command, Connection, NoGroup, Reply, reply_or_raise

if TYPE_CHECKING:
    from pump.transports.redis.transport import RedisBase

POLL_SECONDS: Final = 0.5
"""The time between two polls for messages that a blocking read does not give. No read blocks for longer."""
SLACK_SECONDS: Final = 0.15
"""A poll may be late by this much if no message is known to be due, so that the read before it is not cut in two."""
SHORTEST_BLOCK: Final = 0.001
"""A read that would wait for less than this does not block: rounded to 0 ms it would block for ever."""
UNBLOCK_AGAIN_SECONDS: Final = 0.02


class RedisConsumer(ABC):
    """One consumer of one channel. It reads on one connection, where it may be blocked, and settles on another.

    One thread receives; any thread settles or interrupts. The threads share the batch of acknowledgements and the
    connections, which have locks. The flags need no lock, nor does `_poll_at`: if a race loses a write to it, one poll
    is half a second late.
    """

    broker_limit: int | None = None

    def __init__(self, transport: "RedisBase", subscription: Subscription) -> None:
        self.generation: Final = new_generation()
        self._transport: Final = transport
        self._destinations: Final = Destinations.of(subscription)
        self._channel: Final = self._destinations.channel
        self._missing: Final = subscription.missing
        self._parking: Final = Parking(log, self._channel, subscription.max_attempts)
        lease = transport.lease if subscription.lease is None else subscription.lease
        self._lease: Final = finite_seconds("redis", "lease", lease)
        self._clock: Final = transport.clock
        self._connection: Final = Connection(transport.server, self._clock)
        self._reading: Final = Connection(transport.server, self._clock, longest_block=POLL_SECONDS)
        self._acks: Final = AckBatch[Hashable, None](self._clock, self._flush, retry_seconds=POLL_SECONDS)
        self._names_key: Final = (self._destinations.topic, self._channel)
        self._reusable_name: Final = transport.consumer_names.take(self._names_key)
        self._name: Final = self._reusable_name.prefix + secrets.token_hex(3)
        self._poll_at = 0.0
        self._slack = 0.0
        self._blocked = False
        self._interrupted = False
        self._closed = False

    # -- what differs between streams and lists

    @abstractmethod
    def _take_over(self) -> None:
        """Make what earlier consumers of this name have not settled available again."""

    @abstractmethod
    def _poll(self, limit: int) -> Sequence[Message]:
        """Up to `limit` messages that a blocking read would not give, such as deferred ones that are due."""

    @abstractmethod
    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        """Up to `limit` new messages; waits at most `wait` seconds for the first one."""

    @abstractmethod
    def _receipt(self, message: Message) -> Hashable:
        """What identifies the delivery to the server."""

    @abstractmethod
    def _ack_commands(self, receipts: Sequence[Hashable], name: str) -> Sequence[Command]:
        """The commands that acknowledge deliveries of the consumer `name`; the replies list those it no longer has."""

    @abstractmethod
    def _store_dead_letter(self, message: Message, rejection: Rejection, topic: str | None) -> None:
        """Store the dead letter in the topic, if any, and remove the original: both, or neither."""

    @abstractmethod
    def _leave(self) -> None:
        """Have the server forget this consumer."""

    # Each of these makes the command for the public method of the same name.

    @abstractmethod
    def _requeue(self, message: Message, delay_ms: int, attempts: int) -> Command: ...
    @abstractmethod
    def _extend(self, message: Message) -> Command: ...
    @abstractmethod
    def _hand_back(self, messages: Sequence[Message]) -> Command: ...
    @abstractmethod
    def _purge(self) -> Command: ...
    @abstractmethod
    def _waiting(self) -> Command: ...

    # -- receiving

    def open(self) -> None:
        """Create or validate the channel, as its subscription says; take over from the last consumer of this name."""
        try:
            self._ensure_channel()
            self._send_left_over()
            self._take_over()
        except BaseException:
            self._disconnect()
            raise

    def _ensure_channel(self) -> None:
        destinations = self._destinations
        self._transport.ensure(self._connection, self._missing, destinations.dead_letters, destinations)

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages. If none is there, waits up to `timeout` seconds for the first one."""
        deadline = self._clock.monotonic() + timeout
        limit = min(limit, MOST)  # so that the acknowledgements of a batch go with the next read
        created_again = False
        while True:
            try:
                messages = self._poll_or_read(limit, deadline)
            except NoGroup:
                if self._missing != "create" or created_again:
                    raise
                log.warning("redis: channel %s was deleted, and is created again from the beginning", self._channel)
                self._ensure_channel()
                created_again = True
                continue
            if messages or self._interrupted or self._clock.monotonic() >= deadline:
                self._interrupted = False
                return messages

    def _poll_or_read(self, limit: int, deadline: float) -> Sequence[Message]:
        if self._clock.monotonic() >= self._poll_at:
            messages = self._poll(limit)
            if messages:
                return messages
        now = self._clock.monotonic()
        wait = (deadline if deadline <= self._poll_at + self._slack else max(self._poll_at, now)) - now
        self._blocked = True
        try:
            return self._read(limit, 0.0 if self._interrupted else wait)
        finally:
            self._blocked = False

    def _poll_when_due(self, now: float, due_ms: int) -> None:
        """Plan the next poll for when the next message is due, in `due_ms`; a negative number: none is known."""
        delay = due_ms / 1000 if due_ms >= 0 else POLL_SECONDS
        self._poll_at, self._slack = now + min(POLL_SECONDS, delay), 0.0 if delay < POLL_SECONDS else SLACK_SECONDS

    def _poll_within(self, delay: float) -> None:
        """Plan the next poll no later than after the delay."""
        self._poll_at, self._slack = min(self._poll_at, self._clock.monotonic() + delay), 0.0

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        if self._blocked:
            self._clock.alarm(0.0, self._unblock)

    def _unblock(self) -> None:
        reader = self._reading.client_id
        if reader and self._blocked and self._interrupted:
            with suppress(PumpError):  # if this fails, the read soon ends by itself
                self._connection.execute(("CLIENT", "UNBLOCK", reader))
                self._clock.alarm(UNBLOCK_AGAIN_SECONDS, self._unblock)  # the read may have begun after the UNBLOCK

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """Acknowledge the message within 20 ms, together with others. False if the batch is full: send it first."""
        return self._acks.add(self._receipt(message), None)

    def acknowledge(self, message: Message) -> None:
        """The message is done; its acknowledgement is sent together with others."""
        while not self._acks.add(self._receipt(message), None):
            self._flush()

    def _flush(self) -> None:
        self._send_acks(self._connection)

    def _execute_reading(self, command: Command) -> Reply:
        """The reply to a command on the reading connection, sent together with the pending acknowledgements."""
        (reply,) = self._send_acks(self._reading, command)
        return reply_or_raise(reply)

    def _send_acks(self, connection: Connection, *more: Command) -> Sequence[Reply]:
        """Send the pending acknowledgements together with more commands; returns the replies to these."""
        acks = self._acks.take()
        if not acks and not more:
            return ()
        try:
            commands = self._ack_commands(list(acks), self._name) if acks else ()
            replies = connection.execute_all((*commands, *more))
            self._report_late(len(acks), replies[: len(commands)])
        except BaseException:
            self._acks.put_back(acks)
            raise
        return replies[len(commands) :]

    def _send_left_over(self) -> None:
        """Send the acknowledgements that the last consumer of this name could not send."""
        name = self._reusable_name
        if name.unsent:
            replies = self._connection.execute_all(self._ack_commands(name.unsent, name.unsent_by))
            self._report_late(len(name.unsent), replies)
            name.unsent = ()

    def _report_late(self, count: int, replies: Sequence[Reply]) -> None:
        late = 0
        for reply in replies:
            if isinstance(reply, NoGroup):  # the group was deleted, and with it all its deliveries
                late = count
            else:
                late += len(reply_or_raise(reply))
        if late:
            why = "another consumer has them, or they are gone"
            log.warning(
                "redis: %d of %d acknowledgements on channel %s came too late: %s", late, count, self._channel, why
            )

    # -- other verdicts

    def nack(self, message: Message) -> None:  # noqa: B027 - it is complete
        """Send nothing: Redis cannot take a message back without counting a delivery. The pump holds the message."""

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Store a copy that comes to this channel after the delay, and remove the original: both, or neither."""
        self._execute_if_held(message, self._requeue(message, round(delay * 1000), attempts))
        self._poll_within(delay)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store a dead letter and remove the original: both, or neither."""
        topic = self._destinations.for_rejected(rejection.kind)
        try:
            self._store_dead_letter(message, rejection, topic)
        except (TransportError, SetupError):
            self._parking.park(message, rejection, self.requeue)
            raise
        if topic is None:
            report_gone(log, message, self._channel, rejection)

    def _execute_if_held(self, message: Message, command: Command) -> None:
        """Run a script that does nothing, and returns 0, if the delivery no longer belongs to this consumer."""
        self._flush()
        try:
            done = self._connection.execute(command)
        except NoGroup:  # the group was deleted, and with it all its deliveries
            done = 0
        if done != 1:
            raise LeaseLost(f"message {message.id} of {self._channel} no longer belongs to this consumer")

    def extend(self, message: Message) -> None:
        """Renew its lease; LeaseLost if the delivery no longer belongs to this consumer."""
        now = self._clock.monotonic()
        self._execute_if_held(message, self._extend(message))
        if message.lease_expires is not None:
            message.lease_expires = now + self._lease

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Make these available at once to any consumer, in their old order, as if they had not been delivered."""
        self._flush()
        with suppress(NoGroup):  # the group was deleted, and with it all its deliveries
            self._connection.execute(self._hand_back(messages))
        self._poll_within(0.0)

    def purge(self) -> int:
        """Remove the messages that wait or are due later, but none that other consumers have received."""
        self._flush()
        removed = 0
        while some := int(self._connection.execute(self._purge())):  # a script removes a limited number at a time
            removed += some
        return removed

    def count_waiting(self) -> int:
        """How many messages a receive of any consumer of the channel could still get, those in hand included."""
        return int(self._connection.execute(self._waiting()))

    # -- ending

    def close(self) -> None:
        """Send pending acknowledgements and disconnect. The next consumer of this name sends those that fail here."""
        if self._closed:
            return
        self._closed = True
        try:
            self._flush()
            self._leave()
        except PumpError as error:
            log.warning("redis: channel %s: closing: %s", self._channel, error)
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._closed = True
        self._acks.close()
        unsent = list(self._acks.take())
        if unsent:
            text = "redis: channel %s: %d acknowledgements could not be sent; the next consumer sends them"
            log.warning(text, self._channel, len(unsent))
            self._reusable_name.unsent, self._reusable_name.unsent_by = unsent, self._name
        self._connection.close()
        self._reading.close()
        self._transport.consumer_names.release(self._names_key, self._reusable_name)
