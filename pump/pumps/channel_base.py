"""The part that the blocking and the awaiting channel share: everything that never waits.

`pump.pumps.channel` and `pump.pumps.async_channel` add the calls of the consumer. The Intake decides which message may
be handled next, and the judge decides what becomes of a message.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from pump.capabilities import Capabilities
from pump.clock import Signal
from pump.errors import LeaseLost, SetupError, TransportError
from pump.message import Message
from pump.pumps.intake import Intake, is_lost
from pump.text import text_of
from pump.transport_kit.protocol import AsyncConsumer, Consumer, ExtendsFromThreads, ReceivesAhead
from pump.verdict import Judge, may_release, may_requeue

RETRY_FIRST: Final = 0.05
RETRY_LONGEST: Final = 2.0
RETRY_SECONDS: Final = 10.0
"""How long a verdict is tried again: messages behind its message must not wait for longer."""
OTHERS_SECONDS: Final = 0.004
"""How long after the pump's pause a nacked message that is held here comes due: without this time it would always be
the next one, and no message of another domain would be received or handled."""
GATE_SECONDS: Final = 0.05
"""How often a channel asks the gate, in seconds: whether it may go on, or handle a suspect alone."""
FAILING_FOR: Final = 120.0
"""A verdict that fails again after a longer time than this counts as a new failure, in seconds."""
UNSETTLED_WARNING: Final = 30.0
"""A message that is left unsettled for this many seconds, and has no lease that would end, is logged."""


SomeConsumer = TypeVar("SomeConsumer", bound=Consumer | AsyncConsumer)


class ChannelBase(Generic[SomeConsumer]):
    """The messages of one consumer. `take` is for one pump; the rest may be called from any thread.

    The lock guards the intake, `_failing`, `_retrying`, `_returning`, `_returns` and `_waiting`. The flags are set by
    one statement and need none.
    """

    def __init__(self, capabilities: Capabilities, judge: Judge) -> None:
        self.judge: Final = judge
        """Decides what becomes of the messages of this channel."""
        rules = judge.rules
        self._rules: Final = rules
        self._capabilities: Final = capabilities
        self._clock: Final = judge.clock
        self._log: Final = judge.log
        self._intake: Final = Intake(
            largest=rules.buffer_size,
            slots=rules.in_flight,
            ordered=rules.ordered,
            blocks=capabilities.blocks,
            suspect=judge.suspect,
            unknown=lambda message: judge.ledger.past_runs(message).unexplained > 0,
            accused=judge.ledger.accused,
            alone=lambda: self._gate.admit(self),
            due=judge.ledger.due,
            dropped=judge.handed_back,
        )
        self._gate: Final = judge.gate
        self._lock: Final = threading.Lock()
        self._changed: Final = Signal()
        self._consumer: SomeConsumer | None = None
        self._generation = 0
        self._waiting = False
        """Whether a caller waits until there is room again."""
        self._paused = False
        self._shut: Callable[[], bool] | None = None
        """Set while every message would be nacked: a function that says whether that is over."""
        self._closed = False
        self._given_up = False
        """Whether the grace is over: the channel no longer waits for handlers that settle by themselves."""
        self._broken = False
        """Whether the consumer failed; before the next receive it is closed, and another one opened."""
        self._failure: TransportError | None = None
        """The error that the next receive raises, so that the pump waits before it tries again."""
        self._retrying = 0
        """How many settlements are being tried again."""
        self._returning = 0
        """How many batches that nobody has begun are going back, while handlers run."""
        self._returns = 0
        """How often such a batch began to go back, or had gone back."""
        self._failing: Final[dict[str, tuple[float, float]]] = {}
        """By message without a lease whose verdict failed: when it failed first, and when it failed last."""
        self._limit_logged = False
        self._stop_renewing: Callable[[], None] | None = None
        self._renews_at = 0.0
        """When the leases that end soon were last collected for renewal."""
        self._renew_interval = 0.0
        """How many seconds should pass between two such times."""
        self._loop_renews = False
        """Whether renewal needs the loop that the handlers run on."""
        judge.limit_reached.add_callback(self.interrupt)

    # -- handing out

    def take(self) -> Message | None:
        """The next message that was received already and may be handled; None if there is none."""
        consumer = self._consumer
        if (
            consumer is None
            or self._paused
            or self._shut is not None
            or self._broken
            or (self._gate.closed and self._gate.keeps_out(self))
        ):
            return None
        if consumer.generation != self._generation:
            self._drop_other_generations(consumer)
        with self._lock:
            return self._intake.take(self._clock.monotonic())

    def may_begin(self, message: Message) -> bool:
        """Whether a message that was taken may still be handled; if not, it frees its slot and counts no attempt."""
        consumer = self._consumer
        if consumer is not None and not message.lost and message.generation == consumer.generation:
            return True
        self._mark_lost(message)
        self.judge.handed_back(message)
        return False

    def _next_receive(self, timeout: float) -> tuple[Sequence[Message], int, float]:
        """The messages to give back first, how many to receive (or 0 to wait for room), and how long to wait."""
        rests = self._paused or self.is_shut
        with self._lock:
            if not self._closed:  # after a stop, the wait that follows must end at once
                self._changed.clear()
            now = self._clock.monotonic()
            lost = self._intake.expire(now)
            back = self._free_to_go() if rests else self._intake.to_hand_back(now)
            waits = rests or self._retrying or self._returning or self._closed
            room = 0 if waits else self._intake.room()
            due = self._intake.next_due(now)
            if self._gate.closed:  # another channel has to be alone: look again soon
                room, timeout = 0, min(timeout, GATE_SECONDS)
            self._waiting = room == 0
        if rests and back:
            self._log.handing_back(len(back))
        if lost:
            self._note_lapse(lost)
            self._interrupt_handlers(lost)
        return back, room, timeout if due is None else max(0.0, min(timeout, due - now))

    def _take_in(self, consumer: SomeConsumer, messages: Sequence[Message]) -> None:
        now, current = self._clock.monotonic(), True
        for message in messages:
            message.origin = self._rules.channel
            current = current and message.generation == self._generation
        if self._capabilities.largest_body is not None:
            refuse_larger(messages, self._capabilities.largest_body)
        if self.judge.recorder is not None:
            self.judge.recorder.received(messages)
        with self._lock:
            self._intake.offer(messages, now)
        if not current:  # the consumer connected again while it received
            self._drop_other_generations(consumer)

    def _drop_other_generations(self, consumer: SomeConsumer) -> None:
        with self._lock:
            self._generation = consumer.generation
            lost = self._intake.drop_others(self._generation)
        self._interrupt_handlers(lost)

    # -- what is in hand

    @property
    def in_hand(self) -> Sequence[Message]:
        """The messages that are being handled, or were handled and are not settled yet."""
        with self._lock:
            return self._intake.in_hand

    def abandon(self, message: Message) -> None:
        """The message's task died and left it unsettled: it comes again after its lease, or to a new consumer."""
        if message.lease_expires is None:
            self._broken, self._failure = True, TransportError(f"the task of message {message.id} ended unexpectedly")
        self._mark_lost(message)

    def _note_unsettled(self, message: Message) -> None:
        """Leave the message unsettled: its handler settles it, or its lease ends."""
        with self._lock:
            unleased = message.lease_expires is None
            if message.settled or message.lost or (unleased and not message.explicit):
                self._intake.settled(message)
                self._wake()
                return
            self._intake.leave_unsettled(message)
        if unleased:
            self._clock.alarm(UNSETTLED_WARNING, lambda: self._log.unsettled_for_long(message))

    def _not_begun(self, consumer: SomeConsumer, messages: Sequence[Message]) -> Sequence[Message]:
        """Count no attempt for messages that no handler began; returns those that are not lost, to be given back."""
        for message in messages:
            self.judge.handed_back(message)
        now, generation = self._clock.monotonic(), consumer.generation
        return [each for each in messages if each.generation == generation and not is_lost(each, now)]

    def _with_uncounted_noted(self, consumer: SomeConsumer) -> SomeConsumer:
        """The consumer. What it receives ahead and gives back costs no attempt, whoever receives it next."""
        ahead: object = consumer
        if isinstance(ahead, ReceivesAhead):
            ahead.on_uncounted = self.judge.handed_back
        return consumer

    def _owner(self, message: Message, *, settling: bool = True) -> SomeConsumer:
        """The consumer that may settle the message; LeaseLost if another delivery would be settled instead."""
        consumer = self._consumer
        if consumer is None or message.lost or message.generation != consumer.generation:
            self._mark_lost(message, settling=settling)
            raise LeaseLost(
                f"message {message.id} no longer belongs to this consumer: its connection is gone, or it was given back"
            )
        expires = message.lease_expires
        if expires is not None and expires <= self._clock.monotonic():
            self._note_lapse((message,))
            self._mark_lost(message, settling=settling)
            raise LeaseLost(f"the lease on message {message.id} has expired")
        return consumer

    def _mark_lost(self, message: Message, *, settling: bool = True) -> None:
        message.lost = True
        if settling:
            self._free_slot(message)
        else:
            with self._lock:
                self._intake.look_for_lost()

    def _free_slot(self, message: Message) -> None:
        with self._lock:
            self._intake.settled(message)
            if self._waiting:
                self._wake()

    def _must_let_pass(self, message: Message, error: Exception) -> bool:
        """Whether a message whose verdict failed has to let others pass. Without a lease it comes again at once.

        Then the channel is opened again, as the cause is most often the connection; but for RETRY_SECONDS at most, and
        not if the set-up is wrong. Nothing is held here instead: the verdict may have been carried out, which only the
        broker knows.
        """
        if message.lease_expires is not None:
            return True
        if self._rules.ordered or self._capabilities.requeue == "hold":
            return False
        if isinstance(error, SetupError):
            return True
        now = self._clock.monotonic()
        with self._lock:
            for identity in [each for each, (_, last) in self._failing.items() if now - last > FAILING_FOR]:
                del self._failing[identity]
            first, _ = self._failing.get(message.identity, (now, now))
            self._failing[message.identity] = first, now
        return now - first >= RETRY_SECONDS

    def _nack_holds(self, message: Message, consumer: SomeConsumer) -> bool:
        """Whether a nacked message is held here, instead of going back to the broker."""
        if self._capabilities.nack == "holds" or self._would_be_passed(message):
            return True
        if may_release(message, consumer.broker_limit, self._rules.max_attempts):
            return False
        self._log_limit(message, consumer)
        return True

    def _would_be_passed(self, message: Message) -> bool:
        """Whether others that have to stay behind the message would pass it, if it went back to the broker."""
        if self._rules.ordered:
            return not self._capabilities.nack_keeps_place
        return self._rules.in_flight > 1 and message.header.key is not None  # those behind it may be here already

    def _requeue_holds(self, message: Message, consumer: SomeConsumer, attempts: int) -> bool:
        """Whether a message that comes again later is held here until then."""
        limit = consumer.broker_limit if self._capabilities.requeue == "same" else None
        if may_requeue(message, limit, self._rules.max_attempts, attempts):
            return self._rules.ordered or self._capabilities.requeue == "hold"
        self._log_limit(message, consumer)
        return True

    def _hold(self, message: Message, due: float) -> None:
        with self._lock:
            self._intake.hold(message, due)
            self._wake()

    def _log_limit(self, message: Message, consumer: SomeConsumer) -> None:
        """Log, once, that messages are held because of the broker's own limit."""
        if not self._limit_logged and consumer.broker_limit is not None:
            self._limit_logged = True
            self._log.held(message, consumer.broker_limit)

    def _begin_renewing(
        self, consumer: object, expires: float, renewing: Callable[[float], Callable[[], None]]
    ) -> None:
        """Renew leases from now on; if the consumer can, without the loop, which handlers may block."""
        self._renews_at = self._clock.monotonic()
        self._renew_interval = interval = max(0.01, (expires - self._renews_at) / 3)
        if isinstance(consumer, ExtendsFromThreads):
            self._stop_renewing = self._clock.every(interval, lambda: self._renew_from_thread(2 * interval))
        else:
            self._stop_renewing = renewing(interval)
            self._loop_renews = _is_on_a_loop()

    def _renew_from_thread(self, ahead: float) -> None:
        consumer: object = self._consumer
        for message in self._ending_leases(ahead):
            if isinstance(consumer, ExtendsFromThreads) and message.generation == consumer.generation:
                with self._renewing(message):
                    consumer.extend_from_thread(message)

    @contextmanager
    def _renewing(self, message: Message) -> Iterator[None]:
        """Renew the message's lease inside the block. A failure is logged; the next renewal tries again."""
        try:
            yield
        except LeaseLost:
            message.lost = True
            self._interrupt_handlers((message,))
        except Exception as error:
            self._log.failed("renewing", error)

    def _note_lapse(self, lost: Sequence[Message]) -> None:
        """Note on messages whose leases have ended how long their loop was blocked, if that was the reason.

        If a renewal was tried and failed, as in an outage, the handlers are not to blame.
        """
        now, interval = self._clock.monotonic(), self._renew_interval
        if self._loop_renews and now - self._renews_at > 2 * interval:
            for message in lost:
                leased_for = now - (message.lease_expires or now) + 3 * interval
                message.blocked_seconds = min(now - self._renews_at, leased_for)

    def _ending_leases(self, ahead: float) -> Sequence[Message]:
        now = self._clock.monotonic()
        with self._lock:
            self._intake.look_for_lost()
            lost = self._intake.expire(now)
            ending = self._intake.leased(now + ahead)
        self._note_lapse(lost)
        self._renews_at = now
        self._interrupt_handlers(lost)
        return ending

    def _interrupt_handlers(self, lost: Sequence[Message]) -> None:
        """Tell the handlers of lost messages to end. Never under the lock, which they may need."""
        for message in lost:
            interrupt = message.interrupt or message.release
            if interrupt is not None:
                try:
                    interrupt()
                except Exception as error:
                    self._log.failed("interrupting", error)

    def _has_unsettled(self) -> bool:
        """Whether a handler still has to settle a message; the next change sets `_changed`."""
        with self._lock:
            self._changed.clear()
            self._waiting = True
            unsettled = any(message.explicit and not message.lost for message in self._intake.in_hand)
            return unsettled and not self._given_up

    def _may_go_back(self) -> Sequence[Message]:
        with self._lock:
            back = self._free_to_go()
            if back:
                self._returning += 1
                self._returns += 1
        if back:
            self._log.handing_back(len(back))
        return back

    def _has_gone_back(self) -> None:
        with self._lock:
            self._returning -= 1
            self._returns += 1
            self._wake()

    def _overtakes(self, returns: int) -> bool:
        """Whether what was received since then would overtake messages that went back meanwhile."""
        return self._rules.ordered and self._returns != returns

    def _free_to_go(self) -> Sequence[Message]:
        """The messages that no handler has begun, and that may go back while others are in hand. Call it with the lock.

        In an ordered channel, none from behind a message in hand: another consumer would handle them first. And none
        if the consumer can only give back everything: it would also give back what is in hand.
        """
        if self._capabilities.hands_back == "all" and self._intake.in_hand:
            return ()
        return self._intake.drain_all_but_successors() if self._rules.ordered else self._intake.drain()

    @property
    def comes_again(self) -> str:
        """A text that says when other consumers get the messages that are still here."""
        now = self._clock.monotonic()
        with self._lock:
            in_hand, waiting = self._intake.in_hand, self._intake.waiting
        leases = [each.lease_expires - now for each in (*in_hand, *waiting) if each.lease_expires is not None]
        here = f"{len(in_hand)} in hand" + f", {len(waiting)} waiting" * bool(waiting)
        later = f", or at most {max(leases):.0f} s later, when the lease ends" if leases else ""
        return f"messages that are not settled ({here}) come again when this process ends{later}"

    # -- life

    def shut_until(self, ready: Callable[[], bool]) -> None:
        """Hand out nothing until `ready` says so, and give back what waits: it would be nacked now."""
        self._shut = ready

    @property
    def is_shut(self) -> bool:
        """Whether the channel is shut; asks `ready`. If `ready` raises, the channel is open again."""
        ready = self._shut
        if ready is not None:
            try:
                over = ready()
            except Exception:
                over = True
            if over:
                self._shut = None
        return self._shut is not None

    def pause(self) -> None:
        """Hand out nothing more, until resumed."""
        self._paused = True
        self.interrupt()

    def resume(self) -> None:
        """Hand out messages again."""
        self._paused = False
        self.interrupt()

    def stop(self) -> None:
        """Receive nothing more: a receive that is under way returns early. What is in hand can still be settled."""
        self._closed = True
        self.interrupt()

    def give_up(self) -> None:
        """No longer wait for handlers that settle by themselves."""
        self._given_up = True
        with self._lock:
            self._wake()

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        consumer = self._consumer
        if consumer is not None:
            try:
                consumer.interrupt()
            except Exception as error:  # the receive then lasts until its timeout
                self._log.failed("interrupting", error)
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        self._waiting = False
        self._changed.set()


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # none runs in this thread
        return False
    return True


def refuse_larger(messages: Sequence[Message], largest: int) -> None:
    """Set a fault on messages that are larger than the transport allows: they are not mapped or handled."""
    for message in messages:
        if len(message.body) > largest and not message.fault:
            message.fault = f"its body has {len(message.body)} bytes, and at most {largest} are allowed"


def as_transport_error(error: Exception, doing: str) -> TransportError:
    """The error itself if it is a TransportError, else a TransportError with it as the cause."""
    if isinstance(error, TransportError):
        return error
    failure = TransportError(f"{doing} failed: {type(error).__name__}: {text_of(error)}")
    failure.__cause__ = error
    return failure
