"""The consumer of the durable queue, on either engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection, dead_letter, provenance
from pump.errors import LeaseLost, PumpError, TransportError
from pump.message import Message
from pump.queue.errors import BadRequest, NotFound
from pump.queue.ids import mint
from pump.queue.transport.envelope import SHARDS, partition_of, read, write
from pump.queue.transport.held_leases import HeldLeases, Key, Lease, receipt_of
from pump.queue.transport.shared_engine import OpenEngine
from pump.queue.vocabulary import Leased, PopRequest, Push, Settled, Settlement, Status
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.ack_batch import MOST, AckBatch
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.destinations import CHANNEL, Destinations
from pump.transport_kit.protocol import new_generation

DEAD_ROWS: Final = f"the dead letters of {CHANNEL}"
"""The default for rejected messages: no topic, but the queue's own dead letters, which operators list and redrive."""
LOOK_SECONDS: Final = 1.0
"""The longest time between two looks, even without a notification."""
SOONEST_SECONDS: Final = 0.005
MOST_BATCHED: Final = 500
"""The most acknowledgements in one batch, however large the buffer is."""
RETRY_SECONDS: Final = 0.5
FRESH: Final = 0.9
"""A lease with this share of its time left is not renewed: another of its messages has just renewed it."""


class QueueConsumer:
    """One consumer of one channel: a consumer group of a queue. A lost message comes again when its lease ends."""

    broker_limit: int | None = None

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        opened: OpenEngine,
        clock: Clock,
        destinations: Destinations,
        subscription: Subscription,
        lease: float,
        leftovers: list[Settlement],
    ) -> None:
        self.generation: Final = new_generation()
        self.ended: Callable[[], None] = lambda: None
        """Called when the consumer no longer needs the engine."""
        self._engine: Final = opened.engine
        self._opened: Final = opened
        self._clock: Final = clock
        self._destinations: Final = destinations
        self._dead_rows: Final = DEAD_ROWS.replace(CHANNEL, destinations.channel)
        self._ordered: Final = subscription.ordered
        self._creates: Final = subscription.missing == "create"
        self._lease: Final = lease
        self._held: Final = HeldLeases(destinations.channel, ordered=subscription.ordered)
        self._leftovers: Final = leftovers
        """Settlements that an earlier consumer of the channel in this process could not send; this one adds its own."""
        self._acks: Final = AckBatch[Key, Settlement](
            clock, self._send, retry_seconds=RETRY_SECONDS, most=max(MOST, min(subscription.buffer_size, MOST_BATCHED))
        )
        self._woken: Final = Signal()
        self._interrupted = False
        self._broken = False
        """Whether the last call failed because the database did not answer."""
        self._closed = False
        self._wake_one: Final = opened.wake_one(destinations.topic, destinations.channel)
        """The line of all consumers of the channel in this process: a message wakes one of them."""

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are ready, or else the first that come within `timeout` seconds."""
        deadline = self._clock.monotonic() + timeout
        self._send()
        messages: Sequence[Message] = ()
        try:
            messages = self._receive(limit, deadline)
        finally:
            self._wake_one.leave(self._woken, found=bool(messages))
        return messages

    def _receive(self, limit: int, deadline: float) -> Sequence[Message]:
        while True:
            self._woken.clear()  # first, so that no later change of the queue or of _interrupted is missed
            self._wake_one.enter(self._woken)
            messages, due_in = self._look(limit)
            left = deadline - self._clock.monotonic()
            if messages or self._interrupted or left <= 0:
                self._interrupted = False
                return messages
            self._clock.wait(self._woken, min(left, LOOK_SECONDS, max(due_in, SOONEST_SECONDS)))

    def _look(self, limit: int) -> tuple[Sequence[Message], float]:
        if self._closed:
            raise TransportError(f"the consumer of {self._destinations.channel!r} is closed")
        asked = self._clock.monotonic()
        try:
            result = self._engine.pop(self._request(limit))
        except TransportError:
            self._broken = True
            raise
        except NotFound as error:
            raise self._not_there(error) from error
        self._broken = False
        expires = asked + self._lease
        receipts = self._held.add(result.messages, expires)
        messages = [
            self._message(leased, receipt, expires) for leased, receipt in zip(result.messages, receipts, strict=True)
        ]
        return messages, LOOK_SECONDS if result.due_in is None else result.due_in

    def _request(self, limit: int) -> PopRequest:
        return PopRequest(
            queue=self._destinations.topic,
            group=self._destinations.channel,
            limit=limit,
            partitions=1 if self._ordered else SHARDS + 1,
            lease_time=self._lease,
            ordered=self._ordered,
            retry_limit=None,
            create_group=self._creates,
        )

    def _message(self, leased: Leased, receipt: object, expires: float) -> Message:
        header, body, fault = read(leased.payload, self._destinations.topic)
        return Message(
            header,
            body,
            identity=leased.id,
            receipt=receipt,
            generation=self.generation,
            deliveries=leased.deliveries,
            attempts=leased.retries,
            unexplained=leased.crashes,
            lease_expires=expires,
            partition=leased.partition if self._ordered else None,
            position=leased.sequence,
            fault=fault,
        )

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        self._woken.set()

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """The message is done; sent in a batch within 20 ms. False if the batch is full and must be sent first."""
        return self._acks.add_made(lambda: self._completed(message))

    def _completed(self, message: Message) -> Iterable[tuple[Key, Settlement]]:
        done = self._held.settlement(message, Status.COMPLETED)
        return [(_key(each), each) for each in (done, *self._held.close(message))]

    def acknowledge(self, message: Message) -> None:
        """The message is done; sent in a batch."""
        while not self.acknowledge_soon(message):
            self._send()

    def _send(self, settlements: Sequence[Settlement] = ()) -> Mapping[Key, Settled]:
        """Carry out these settlements and all pending acknowledgements; if that fails, keep them and send them later.

        After a failure they may have been carried out already; carrying them out a second time changes nothing.
        """
        pending = self._acks.take({_key(settlement): settlement for settlement in settlements})
        if not pending:
            return {}
        try:
            results = dict(zip(pending, self._opened.settle(list(pending.values())), strict=True))
        except TransportError:
            self._broken = True
            self._acks.put_back(pending)
            raise
        ours = {_key(settlement) for settlement in settlements}
        self._report_late([result for key, result in results.items() if key not in ours])
        return results

    def _report_late(self, results: Sequence[Settled]) -> None:
        late = sum(not result.success for result in results)
        if late:
            log.warning(
                "%d of %d acknowledgements on channel %s came too late: another consumer has them, or they are gone",
                late,
                len(results),
                self._destinations.channel,
            )

    # -- other ways to settle

    def nack(self, message: Message) -> None:
        """Give the message back, uncounted, for any consumer; if ordered, together with the rest of its lease."""
        self._carry_out(message, self._held.give_back((message,)))

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """The same message comes again after the delay, to this channel only, with this number of attempts."""
        failed = self._held.settlement(message, Status.FAILED)
        self._settle(message, failed._replace(delay=delay, retries=attempts))

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store a dead letter and settle the original: both or neither."""
        destination = self._destinations.for_rejected(rejection.kind)
        if destination is None:
            self._settle(message, self._held.settlement(message, Status.COMPLETED))
            report_gone(log, message, self._destinations.channel, rejection)
        elif destination == self._dead_rows:
            self._settle(message, self._dead(message, rejection))
        else:
            self._push_dead_letter(message, rejection, destination)

    def _push_dead_letter(self, message: Message, rejection: Rejection, destination: str) -> None:
        header, channel = dead_letter(message, rejection), self._destinations.channel
        push = Push(destination, write(header, message.body), partition_of(header), transaction_id=mint())
        done = self._held.settlement(message, Status.COMPLETED)
        self._send()
        try:
            committed = self._engine.transaction((push, done))
        except BadRequest as error:  # too large with its provenance
            log.warning("message %s of %s does not fit %s: %s", message.id, channel, destination, error)
            self._settle(message, self._dead(message, rejection))
            return
        if not committed.success:
            if "lease" in committed.error.lower():
                raise self._lost(message)
            raise TransportError(f"message {message.id} of {channel} cannot be given up: {committed.error}")
        self._send(self._held.close(message))

    def _dead(self, message: Message, rejection: Rejection) -> Settlement:
        """The settlement that makes it a dead letter in the queue itself. Its text begins with the error's type."""
        texts = provenance(message, rejection)
        first = texts.get("pump-error") or rejection.description or rejection.reason
        error = "\n".join((first, *(f"{name}: {text}" for name, text in texts.items() if name != "pump-error")))
        return self._held.settlement(message, Status.DEAD)._replace(reason=rejection.reason, error=error)

    def _settle(self, message: Message, settlement: Settlement) -> None:
        self._carry_out(message, (settlement,))
        self._send(self._held.close(message))

    def _carry_out(self, message: Message, settlements: Sequence[Settlement]) -> None:
        result = self._send(settlements).get(receipt_of(message).key)
        if result is not None and not result.success:
            raise self._lost(message)

    def _lost(self, message: Message) -> LeaseLost:
        return LeaseLost(f"message {message.id} of {self._destinations.channel} no longer belongs to this consumer")

    def extend(self, message: Message) -> None:
        """Renew the message's lease, which all messages received together with it share."""
        lease = receipt_of(message).lease
        asked = self._clock.monotonic()
        if lease.expires - asked < FRESH * self._lease:
            self._extend(message, lease, asked)
        message.lease_expires = lease.expires

    def _extend(self, message: Message, lease: Lease, asked: float) -> None:
        if not self._engine.extend(lease.id, self._lease).success:
            raise self._lost(message)
        lease.expires = asked + self._lease

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Give messages back for any consumer, in their old order; no attempt is counted."""
        self._send(self._held.give_back(messages))

    def purge(self) -> int:
        """Settle all waiting messages, due or not; returns how many there were."""
        try:
            return self._engine.purge(self._destinations.topic, self._destinations.channel)
        except NotFound as error:
            raise self._not_there(error) from error

    def count_waiting(self) -> int:
        """How many messages of the channel are not settled; those that are due later are not among them."""
        groups = self._engine.groups(self._destinations.channel)
        return sum(each.lag for each in groups if each.queue == self._destinations.topic)

    def _not_there(self, error: NotFound) -> TransportError:
        return TransportError(f"channel {self._destinations.channel!r} does not exist: {error}")

    # -- ending

    def send_leftovers(self) -> None:
        """Send the settlements that an earlier consumer of the channel could not send."""
        left: list[Settlement] = []
        while self._leftovers:  # one by one, since other consumers of the channel may do the same
            left.append(self._leftovers.pop(0))
        try:
            self._report_late(self._engine.settle(left) if left else ())
        except TransportError:
            self._leftovers.extend(left)
            raise

    def close(self) -> None:
        """Send pending settlements and disconnect; what cannot be sent is left for the channel's next consumer.

        Messages that are still being handled stay leased, unless the database was gone at the last call. Then nobody
        can settle them any more, and they go back, as with a broker whose connection broke.
        """
        if self._closed:
            return
        self._closed = True
        self._acks.close()
        self._woken.set()
        try:
            self._send(self._held.drain(everything=self._broken))
        except PumpError as error:
            log.warning("channel %s: closing: %s", self._destinations.channel, error)
            self._leftovers.extend(self._acks.take().values())
        finally:
            self.ended()


def _key(settlement: Settlement) -> Key:
    return settlement.partition_id, settlement.transaction_id, settlement.lease_id or ""
