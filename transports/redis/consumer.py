"""One consumer's conversation with Redis, whatever its messages are kept in: when it asks, waits and acknowledges."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PumpError, SetupError, TransportError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.ack_batch import MOST, AckBatch
from pump.transport_kit.protocol import new_generation
from pump.transports.redis.connection import Command, NoGroup, Reply, Server, Wire, reply_or_raise
from pump.transports.redis.names import Names, Seat

LOOK_SECONDS: Final = 0.5
"""How often to look for what comes otherwise than fresh. No read blocks for longer."""
"""How many acknowledgements wait to be said at one go, and for how many seconds."""
UNBLOCK_AGAIN_SECONDS: Final = 0.02
PARKED_SECONDS: Final = 8.0
"""After how long a message comes again that could not be given up."""


class Opening(NamedTuple):
    """What a consumer is opened with."""

    server: Server
    clock: Clock
    names: Names
    seat: Seat
    rules: Subscription
    lease: float


class Layout(Protocol):
    """How topics and channels are kept: made, looked for, written to, and consumed from."""

    def consumer(self, opening: Opening) -> "RedisConsumer":
        """A consumer that is not open yet."""

    def command(self, message: Message, delay: float) -> Command:
        """What stores one message, at once or after the delay. ValueError where it cannot be written."""

    def declare(self, wire: Wire, names: Names) -> None:
        """Make whatever of a channel is not there."""

    def validate(self, wire: Wire, names: Names) -> None:
        """SetupError names what of a channel is not there."""

    def declare_topic(self, wire: Wire, topic: str) -> None:
        """Make a topic, if it is not there."""

    def validate_topic(self, wire: Wire, topic: str) -> None:
        """SetupError if the topic is not there."""


class RedisConsumer(ABC):
    """One consumer of one channel. It reads on one connection, which may be blocked there, and settles on another."""

    broker_limit: int | None = None

    def __init__(self, opening: Opening, layout: Layout) -> None:
        self.generation: Final = new_generation()
        self.ended: Callable[[], None] = lambda: None
        """Is told when the seat is free again."""
        self._names: Final = opening.names
        self._seat: Final = opening.seat
        self._name: Final = opening.seat.new_name()
        self._clock: Final = opening.clock
        self._missing: Final = opening.rules.missing
        self._max_attempts: Final = opening.rules.max_attempts
        self._lease: Final = opening.lease
        self._layout: Final = layout
        self._wire: Final = Wire(opening.server, opening.clock)
        self._reading: Final = Wire(opening.server, opening.clock, patience=LOOK_SECONDS)
        self._look_at = 0.0
        self._blocked = False
        self._interrupted = False
        self._unsaid: Final = AckBatch[Any, Message](opening.clock, self._flush, retry_seconds=LOOK_SECONDS)
        self._closed = False

    # -- what each kind says in its own way

    @abstractmethod
    def _take_over(self) -> None:
        """Have what an earlier holder of the seat has left."""

    @abstractmethod
    def _look(self, limit: int) -> Sequence[Message]:
        """Up to so many messages that come otherwise than fresh."""

    @abstractmethod
    def _read(self, limit: int, wait: float) -> Sequence[Message]:
        """Up to so many fresh messages, waiting for the first one for so many seconds at most."""

    @abstractmethod
    def _acknowledgements(self, messages: Sequence[Message], holder: str) -> Sequence[Command]:
        """The commands that acknowledge these for their holder; each replies which of its were another's by then."""

    @abstractmethod
    def _handle(self, message: Message) -> Any:  # noqa: ANN401 - whatever can be a key
        """What the delivery is known by."""

    @abstractmethod
    def _leave(self) -> None:
        """The consumer is not needed any more."""

    # -- receiving

    def open(self) -> None:
        """Find the channel, or make it, as its subscription says; take over what the seat's last holder has left."""
        try:
            if self._missing == "create":
                self._layout.declare(self._wire, self._names)
            elif self._missing == "validate":
                self._layout.validate(self._wire, self._names)
            self._repeat(self._seat)
            self._take_over()
        except BaseException:
            self._let_go()
            raise

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: what is there, or what comes within `timeout` seconds, or nothing."""
        deadline = self._clock.monotonic() + timeout
        limit = min(limit, MOST)  # so that all of a batch is acknowledged together with the next one's read
        made_anew = False
        while True:
            try:
                messages = self._look_or_read(limit, deadline)
            except NoGroup:
                if self._missing != "create" or made_anew:
                    raise
                log.warning("redis: channel %s was gone, and is made anew from the beginning", self._names.channel)
                self._layout.declare(self._wire, self._names)
                made_anew = True
                continue
            if messages or self._interrupted or self._clock.monotonic() >= deadline:
                self._interrupted = False
                return messages

    def _look_or_read(self, limit: int, deadline: float) -> Sequence[Message]:
        if self._clock.monotonic() >= self._look_at:
            messages = self._look(limit)
            if messages:
                return messages
        now = self._clock.monotonic()
        wait = min(deadline, max(self._look_at, now)) - now
        self._blocked = True
        try:
            return self._read(limit, 0.0 if self._interrupted else wait)
        finally:
            self._blocked = False

    def _look_again(self, delay: float = 0.0) -> None:
        """There will be something to look for then."""
        self._look_at = min(self._look_at, self._clock.monotonic() + delay)

    def interrupt(self) -> None:
        """Make a receive that is under way, or else the next one, return early."""
        self._interrupted = True
        if self._blocked:
            self._clock.alarm(0.0, self._unblock)

    def _unblock(self) -> None:
        reader = self._reading.client_id
        if reader and self._blocked and self._interrupted:
            with suppress(PumpError):  # then the read ends by itself, soon
                self._wire.ask(("CLIENT", "UNBLOCK", reader))
                self._clock.alarm(UNBLOCK_AGAIN_SECONDS, self._unblock)  # it may have come before the read did

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """The message is done, and said to be so with others within 20 ms; False if those have to be said first."""
        return self._unsaid.add(self._handle(message), message)

    def acknowledge(self, message: Message) -> None:
        """The message is done; said with others at one go."""
        while not self.acknowledge_soon(message):
            self._flush()

    def _repeat(self, seat: Seat) -> None:
        """Say what the last holder of the seat could not say."""
        if seat.unsaid:
            commands = self._acknowledgements(list(seat.unsaid.values()), seat.holder)
            self._heard(seat.unsaid, self._wire.ask_all(commands))
            seat.unsaid = {}

    def _flush(self) -> None:
        """Say what is to be acknowledged, now."""
        self._say(self._wire)

    def _ask_while_reading(self, command: Command) -> Reply:
        """The reply to a command on the reading connection, at one go with what is to be acknowledged."""
        (reply,) = self._say(self._reading, command)
        return reply_or_raise(reply)

    def _say(self, wire: Wire, *more: Command) -> Sequence[Reply]:
        """Acknowledge what is to be; the replies to what is asked at one go with it."""
        unsaid = self._unsaid.take()
        if not unsaid and not more:
            return ()
        try:
            commands = self._acknowledgements(list(unsaid.values()), self._name) if unsaid else ()
            replies = wire.ask_all((*commands, *more))
            self._heard(unsaid, replies[: len(commands)])
        except BaseException:
            self._unsaid.put_back(unsaid)
            raise
        return replies[len(commands) :]

    def _heard(self, unsaid: Mapping[Any, Message], answers: Sequence[Reply]) -> None:
        late = 0
        for answer in answers:
            if isinstance(answer, NoGroup):  # with it, all that was pending is gone
                late = len(unsaid)
            else:
                late += len(reply_or_raise(answer))
        if late:
            log.warning(
                "redis: %d of %d acknowledgements on channel %s came too late: the messages are another's, or gone",
                late,
                len(unsaid),
                self._names.channel,
            )

    # -- other verdicts

    def nack(self, message: Message) -> None:  # noqa: B027 - it is complete
        """Nothing is said: Redis does not take a message back unspent. The channel holds it."""

    @abstractmethod
    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """A copy comes to this channel after the delay, and the original is gone: both, or neither."""

    def reject(self, message: Message, rejection: Rejection) -> None:
        """A dead letter is stored, and the original is gone: both, or neither."""
        grave = self._names.grave(rejection.kind)
        try:
            self._bury(message, rejection, grave)
        except (TransportError, SetupError):
            self._remember(message, rejection)
            raise
        if grave is None:
            log.error(
                "message %s of %s is gone: it was rejected (%s), and its subscription says dead_letter=None",
                message.id,
                self._names.channel,
                rejection.reason,
            )

    @abstractmethod
    def _bury(self, message: Message, rejection: Rejection, grave: str | None) -> None:
        """Store the dead letter there, or nowhere, and have the original gone."""

    def _remember(self, message: Message, rejection: Rejection) -> None:
        """A message whose attempts are spent, and which cannot be given up, comes again as one that has none left.

        What keeps the channel may work where what keeps its dead letters does not; after a restart nobody would know.
        """
        if self._max_attempts is not None and message.attempts < self._max_attempts <= rejection.attempts:
            try:
                self.requeue(message, PARKED_SECONDS, rejection.attempts)
            except PumpError as error:
                log.warning("redis: message %s of %s stays where it is: %s", message.id, self._names.channel, error)

    @abstractmethod
    def extend(self, message: Message) -> None:
        """The message is ours for longer."""

    @abstractmethod
    def hand_back(self, messages: Sequence[Message]) -> None:
        """Anybody may have these at once, in their old order, as if they had not been delivered."""

    @abstractmethod
    def purge(self) -> int:
        """Remove everything that waits in the channel or is due later; says how many messages that were."""

    def _carry_out(self, message: Message, command: Command) -> None:
        """Run a script that does nothing, and says so, where the delivery is not ours any more."""
        self._flush()
        try:
            done = self._wire.ask(command)
        except NoGroup:  # with all that was pending there
            done = 0
        if done != 1:
            raise LeaseLost(f"message {message.id} of {self._names.channel} is not this consumer's any more")

    # -- ending

    def close(self) -> None:
        """Say what is to be said, and let go; what cannot be said is kept for whoever has the seat next."""
        if self._closed:
            return
        self._closed = True
        try:
            self._flush()
            self._leave()
        except PumpError as error:
            log.warning("redis: channel %s: closing: %s", self._names.channel, error)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._unsaid.close()
        unsaid = self._unsaid.take()
        if unsaid:
            log.warning(
                "redis: channel %s: %d acknowledgements did not arrive; the next consumer repeats them",
                self._names.channel,
                len(unsaid),
            )
            self._seat.unsaid, self._seat.holder = unsaid, self._name
        self._wire.close()
        self._reading.close()
        self.ended()
