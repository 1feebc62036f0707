"""A pump's consumer of the durable queue, on whichever engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pump.clock import Clock, Signal
from pump.dead_letter import Rejection, dead_letter, provenance
from pump.errors import LeaseLost, PumpError, TransportError
from pump.message import Message
from pump.queue.errors import BadRequest, NotFound
from pump.queue.ids import mint
from pump.queue.transport.envelope import read, write
from pump.queue.transport.held_leases import Hand, Key, Lease, receipt_of
from pump.queue.transport.routes import SHARDS, Route, partition_of
from pump.queue.transport.shared_engine import OpenEngine
from pump.queue.vocabulary import Committed, Leased, Push, Settled, Settlement, Status, Want
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.ack_batch import MOST, AckBatch
from pump.transport_kit.protocol import new_generation

LOOK_SECONDS: Final = 1.0
"""How often to look even if no bell rings."""
SOONEST_SECONDS: Final = 0.005
MOST_UNSAID: Final = 500
"""As many acknowledgements are said at one go as are received at one, but no more than these."""
SAY_AGAIN_SECONDS: Final = 0.5
FRESH: Final = 0.9
"""A lease of which so much is left need not be renewed: another message under it has just had that done."""


class QueueConsumer:
    """One consumer of one channel: a consumer group of a queue. Whatever is lost of it comes again with its lease."""

    broker_limit: int | None = None

    def __init__(  # noqa: PLR0917 - made in one place, from what that place has
        self,
        opened: OpenEngine,
        clock: Clock,
        route: Route,
        rules: Subscription,
        lease: float,
        unsaid: list[Settlement],
    ) -> None:
        self.generation: Final = new_generation()
        self.ended: Callable[[], None] = lambda: None
        """Is told when the engine is not needed any more."""
        self._engine: Final = opened.engine
        self._opened: Final = opened
        self._clock: Final = clock
        self._route: Final = route
        self._ordered: Final = rules.ordered
        self._creates: Final = rules.missing == "create"
        self._lease: Final = lease
        self._hand: Final = Hand(route.channel, ordered=rules.ordered)
        self._unsaid_before: Final = unsaid
        """What the channel's last consumer here could not say, and where this one leaves what it cannot say."""
        self._unsaid: Final = AckBatch[Key, Settlement](
            clock, self._say, retry_seconds=SAY_AGAIN_SECONDS, most=max(MOST, min(rules.buffer_size, MOST_UNSAID))
        )
        self._woken: Final = Signal()
        self._interrupted = False
        self._broken = False
        """Whether the database did not answer when it was asked last."""
        self._closed = False
        self._turns: Final = opened.turns(route.topic, route.channel)
        """Of all consumers of the channel here: a message wakes one of them."""

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: what is there, or what comes within `timeout` seconds, or nothing."""
        deadline = self._clock.monotonic() + timeout
        self._say()
        messages: Sequence[Message] = ()
        try:
            messages = self._receive(limit, deadline)
        finally:
            self._turns.leave(self._woken, found=bool(messages))
        return messages

    def _receive(self, limit: int, deadline: float) -> Sequence[Message]:
        while True:
            self._woken.clear()  # before the looks at the queue and at _interrupted, which precede its being set
            self._turns.enter(self._woken)
            messages, due_in = self._look(limit)
            left = deadline - self._clock.monotonic()
            if messages or self._interrupted or left <= 0:
                self._interrupted = False
                return messages
            self._clock.wait(self._woken, min(left, LOOK_SECONDS, max(due_in, SOONEST_SECONDS)))

    def _look(self, limit: int) -> tuple[Sequence[Message], float]:
        self._must_be_open()
        asked = self._clock.monotonic()
        try:
            taken = self._engine.pop(self._want(limit))
        except TransportError:
            self._broken = True
            raise
        except NotFound as error:
            raise self._not_there(error) from error
        self._broken = False
        expires = asked + self._lease
        receipts = self._hand.take(taken.messages, expires)
        messages = [
            self._message(leased, receipt, expires) for leased, receipt in zip(taken.messages, receipts, strict=True)
        ]
        return messages, LOOK_SECONDS if taken.due_in is None else taken.due_in

    def _want(self, limit: int) -> Want:
        return Want(
            queue=self._route.topic,
            group=self._route.channel,
            limit=limit,
            partitions=1 if self._ordered else SHARDS + 1,
            lease_time=self._lease,
            ordered=self._ordered,
            retry_limit=None,
            create_group=self._creates,
        )

    def _message(self, leased: Leased, receipt: object, expires: float) -> Message:
        header, body, fault = read(leased.payload, self._route.topic)
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
        """Make a receive that is under way, or else the next one, return early."""
        self._interrupted = True
        self._woken.set()

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """The message is done, and said to be so with others within 20 ms; False if those have to be said first."""
        return self._unsaid.add_made(lambda: self._completed(message))

    def _completed(self, message: Message) -> Iterable[tuple[Key, Settlement]]:
        done = self._hand.say(message, Status.COMPLETED)
        return [(_key(each), each) for each in (done, *self._hand.close(message))]

    def acknowledge(self, message: Message) -> None:
        """The message is done; said with others at one go."""
        while not self.acknowledge_soon(message):
            self._say()

    def _say(self, settlements: Sequence[Settlement] = ()) -> Mapping[Key, Settled]:
        """Carry out all that is to be said, these too; what cannot be said is kept, and said again later.

        Nobody knows then whether it was heard, but said twice it changes nothing.
        """
        unsaid = self._unsaid.take({_key(settlement): settlement for settlement in settlements})
        if not unsaid:
            return {}
        try:
            results = dict(zip(unsaid, self._opened.settle(list(unsaid.values())), strict=True))
        except TransportError:
            self._broken = True
            self._unsaid.put_back(unsaid)
            raise
        ours = {_key(settlement) for settlement in settlements}
        self._tell_of_late([result for key, result in results.items() if key not in ours])
        return results

    def _tell_of_late(self, results: Sequence[Settled]) -> None:
        late = sum(not result.success for result in results)
        if late:
            log.warning(
                "%d of %d acknowledgements on channel %s came too late: the messages are another's, or gone",
                late,
                len(results),
                self._route.channel,
            )

    # -- other verdicts

    def nack(self, message: Message) -> None:
        """Give it back unspent, so that anybody may have it at once, or with the others of its ordered lease."""
        self._carry_out(message, self._hand.give_back((message,)))

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """The same message comes again, to this channel only, with so many attempts behind it."""
        failed = self._hand.say(message, Status.FAILED, delay=delay, retries=attempts)
        self._settle(message, failed)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """A dead letter is stored, and the original is settled: both, or neither."""
        grave = self._route.grave(rejection.kind)
        if grave:
            self._bury(message, rejection, grave)
        elif grave is None:
            self._settle(message, self._hand.say(message, Status.COMPLETED))
            log.error(
                "message %s of %s is gone: it was rejected (%s), and its subscription says dead_letter=None",
                message.id,
                self._route.channel,
                rejection.reason,
            )
        else:
            self._settle(message, self._dead(message, rejection))

    def _bury(self, message: Message, rejection: Rejection, grave: str) -> None:
        header = dead_letter(message, rejection)
        push = Push(grave, write(header, message.body), partition_of(header), transaction_id=mint())
        done = self._hand.say(message, Status.COMPLETED)
        self._say()
        try:
            committed = self._engine.transaction((push, done))
        except BadRequest as error:  # too large, with all that was to be said about it
            log.warning("message %s of %s does not fit %s: %s", message.id, self._route.channel, grave, error)
            self._settle(message, self._dead(message, rejection))
            return
        self._must_be_done(message, committed)
        self._say(self._hand.close(message))

    def _must_be_done(self, message: Message, committed: Committed) -> None:
        if committed.success:
            return
        if "lease" in committed.error.lower():
            raise self._lost(message)
        raise TransportError(f"message {message.id} of {self._route.channel} cannot be given up: {committed.error}")

    def _dead(self, message: Message, rejection: Rejection) -> Settlement:
        """What makes a dead letter of it in the queue itself. The error begins with its type."""
        told = provenance(message, rejection)
        first = told.get("pump-error") or rejection.description or rejection.reason
        error = "\n".join((first, *(f"{name}: {text}" for name, text in told.items() if name != "pump-error")))
        return self._hand.say(message, Status.DEAD, reason=rejection.reason, error=error)

    def _settle(self, message: Message, settlement: Settlement) -> None:
        self._carry_out(message, (settlement,))
        self._say(self._hand.close(message))

    def _carry_out(self, message: Message, settlements: Sequence[Settlement]) -> None:
        result = self._say(settlements).get(receipt_of(message).key)
        if result is not None and not result.success:
            raise self._lost(message)

    def _lost(self, message: Message) -> LeaseLost:
        return LeaseLost(f"message {message.id} of {self._route.channel} is not this consumer's any more")

    def extend(self, message: Message) -> None:
        """Renew its lease, and with it that of all messages which were received together with it."""
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
        """Anybody may have these at once, in their old order, as if they had not been delivered."""
        self._say(self._hand.give_back(messages))

    def purge(self) -> int:
        """Settle all that waits, due or not; says how many messages that were."""
        try:
            return self._engine.purge(self._route.topic, self._route.channel)
        except NotFound as error:
            raise self._not_there(error) from error

    def _not_there(self, error: NotFound) -> TransportError:
        return TransportError(f"channel {self._route.channel!r} is not there: {error}")

    # -- ending

    def say_what_was_left(self) -> None:
        """Say what the last consumer could not say."""
        left: list[Settlement] = []
        while self._unsaid_before:  # taken out one by one, since others of the channel may do the same
            left.append(self._unsaid_before.pop(0))
        try:
            self._tell_of_late(self._engine.settle(left) if left else ())
        except TransportError:
            self._unsaid_before.extend(left)
            raise

    def close(self) -> None:
        """Say what is to be said, and let go; what cannot be said is left for the channel's next consumer.

        What is still being handled stays leased, unless the database was gone: then nobody can settle it any more, and
        it goes back, as from a broker whose connection broke.
        """
        if self._closed:
            return
        self._closed = True
        self._unsaid.close()
        self._woken.set()
        try:
            self._say(self._hand.leave(everything=self._broken))
        except PumpError as error:
            log.warning("channel %s: closing: %s", self._route.channel, error)
            self._unsaid_before.extend(self._unsaid.take().values())
        finally:
            self.ended()

    def _must_be_open(self) -> None:
        if self._closed:
            raise TransportError(f"the consumer of {self._route.channel!r} is closed")


def _key(settlement: Settlement) -> Key:
    return settlement.partition_id, settlement.transaction_id, settlement.lease_id or ""
