"""What a transport is: a factory of consumers and producers, blocking or awaiting, as its client library is."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from itertools import count
from typing import Final, Protocol, Self, cast, runtime_checkable

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection
from pump.errors import ConfigurationError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.telemetry import Telemetry

_generations = count(1)


def new_generation() -> int:
    """A number for one connected period of a consumer, never given twice in this process."""
    return next(_generations)


class Consumer(Protocol):
    """One consumer of one channel, blocking. All methods but `receive` may be called from any thread.

    Any failure between here and the broker is a TransportError. LeaseLost is for a delivery that no longer belongs to
    this consumer.
    """

    @property
    def generation(self) -> int:
        """The connected period that deliveries belong to. It changes when all earlier deliveries become void."""

    @property
    def broker_limit(self) -> int | None:
        """How many deliveries of one message the broker allows before it gives the message up; None: no limit."""

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that wait, or else the first to come within `timeout` seconds, or none."""

    def acknowledge(self, message: Message) -> None:
        """The message is done."""

    def nack(self, message: Message) -> None:
        """Return it to the broker at once, for any consumer; no attempt is counted. Not called if nack "holds"."""

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Have it delivered again after `delay` seconds, to this channel only, with its number of attempts so far."""

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Make it a dead letter; returns when the dead letter is stored and the original is settled."""

    def extend(self, message: Message) -> None:
        """Renew its lease, and set `message.lease_expires`."""

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Return messages whose handling has not begun, in their old order. Others of this consumer may go back too.

        A message that was run while it was held here has more `attempts` than `carried`. Its attempts are kept with it
        if the capability `keeps_held_attempts` says so.
        """

    def purge(self) -> int:
        """Remove all messages that wait in the channel; returns how many there were."""

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early with what it has."""

    def close(self) -> None:
        """Disconnect. Unsettled deliveries go back; the broker decides when."""


class AsyncConsumer(Protocol):
    """The same, awaiting; used on the loop that opened it. `interrupt` may be called from anywhere."""

    @property
    def generation(self) -> int: ...  # noqa: D102 - as Consumer's
    @property
    def broker_limit(self) -> int | None: ...  # noqa: D102 - as Consumer's

    async def receive(self, limit: int, timeout: float) -> Sequence[Message]: ...  # noqa: D102 - as Consumer's
    async def acknowledge(self, message: Message) -> None: ...  # noqa: D102 - as Consumer's
    async def nack(self, message: Message) -> None: ...  # noqa: D102 - as Consumer's
    async def requeue(self, message: Message, delay: float, attempts: int) -> None: ...  # noqa: D102 - as Consumer's
    async def reject(self, message: Message, rejection: Rejection) -> None: ...  # noqa: D102 - as Consumer's
    async def extend(self, message: Message) -> None: ...  # noqa: D102 - as Consumer's
    async def hand_back(self, messages: Sequence[Message]) -> None: ...  # noqa: D102 - as Consumer's
    async def purge(self) -> int: ...  # noqa: D102 - as Consumer's
    def interrupt(self) -> None: ...  # noqa: D102 - as Consumer's
    async def close(self) -> None: ...  # noqa: D102 - as Consumer's


@runtime_checkable
class AcknowledgesSoon(Protocol):
    """A consumer that can also take an acknowledgement without waiting, to send it soon, together with others.

    A bridge then need not change threads for every message.
    """

    def acknowledge_soon(self, message: Message) -> bool:
        """As `acknowledge`, from any thread, without waiting. If it would have to wait, do nothing and return False."""


@runtime_checkable
class ReceivesSoon(Protocol):
    """A blocking consumer that can also hand out what it has received already, without waiting.

    A bridge then need not change threads for messages that are there.
    """

    def receive_soon(self, limit: int) -> Sequence[Message]:
        """As `receive`, never while one is under way, and without waiting: none if none are there."""


@runtime_checkable
class ExtendsFromThreads(Protocol):
    """An awaiting consumer whose leases can also be renewed without its loop, which a handler may block.

    With any other awaiting consumer, a handler that blocks the loop for longer than a lease loses its message.
    """

    @property
    def generation(self) -> int: ...  # noqa: D102 - as Consumer's

    def extend_from_thread(self, message: Message) -> None:
        """As `extend`, blocking, from a thread that is not the loop's."""


@runtime_checkable
class ReceivesAhead(Protocol):
    """A consumer that receives ahead, from a broker that counts deliveries."""

    on_uncounted: Callable[[Message], None]
    """Called, from any thread, with each delivery that comes again and cost no attempt.

    No `receive` has returned it, or its acknowledgement came too late.
    """


def ignore_uncounted(_: Message) -> None:
    """What ReceivesAhead calls as long as no channel wants to know."""


@runtime_checkable
class EndsReceiving(Protocol):
    """A consumer whose broker sends ahead, and can be told that no receive follows."""

    def end_receiving(self) -> None:
        """No receive follows: an acknowledgement must not make the broker send more, which would only go back."""


@runtime_checkable
class CountsWaiting(Protocol):
    """A consumer that can tell cheaply how much there is to receive. Who only asks, and never receives, takes nothing.

    A reader that works in batches then begins one only when there is something to read.
    """

    def count_waiting(self) -> int | None:
        """About how many messages wait; 0 only if there are none, as far as the broker knows. None: it does not say.

        Messages that other consumers have in hand may be counted too.
        """


@runtime_checkable
class AwaitsWaiting(Protocol):
    """The same, awaiting."""

    async def count_waiting(self) -> int | None: ...  # noqa: D102 - as CountsWaiting's


class TopicLog(Protocol):
    """A topic that keeps its messages by position: reading takes nothing, and may be repeated. Blocking; one thread."""

    def starts(self) -> Mapping[int, int]:
        """For each partition, where the channel goes on: after what it has settled, or at the first message."""

    def ends(self) -> Mapping[int, int]:
        """For each partition, the position after its last message."""

    def read(self, partition: int, begin: int, end: int) -> Sequence[Message]:
        """The messages from `begin` to before `end`. SetupError if some of them are gone."""

    def settle(self, positions: Mapping[int, int]) -> None:
        """Note, for tools that show how far the channel is, that everything before these positions is done."""

    def close(self) -> None:
        """Disconnect."""


@runtime_checkable
class KeepsLogs(Protocol):
    """A blocking transport whose topics can be read by position."""

    def topic_log(self, subscription: Subscription) -> TopicLog:
        """Open the log of the subscription's topic, as its channel sees it."""


class Producer(Protocol):
    """Sends messages to the topics in their headers, from any thread."""

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Return when the broker has stored every message.

        Otherwise raise a PublishError: its `failures` name those that are not confirmed, by position; if there are
        none, the error is about all of them. One call may have messages of different callers.
        """

    def close(self) -> None:
        """Disconnect."""


class AsyncProducer(Protocol):
    """The same, awaiting."""

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None: ...  # noqa: D102 - as Producer's
    async def close(self) -> None: ...  # noqa: D102 - as Producer's


class Transport(Protocol):
    """How to reach a broker. Making one opens no connection. It is a blocking or an awaiting transport too."""

    capabilities: Capabilities

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport that a URL describes; ConfigurationError, without the password, if it cannot be read."""


@runtime_checkable
class BlockingTransport(Protocol):
    """A transport whose client blocks."""

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs on the broker; SetupError names what is missing."""

    def consumer(self, subscription: Subscription) -> Consumer:
        """Open a consumer of the subscription's channel."""

    def producer(self) -> Producer:
        """Open a producer, on a connection of its own."""


@runtime_checkable
class AwaitingTransport(Protocol):
    """A transport whose client awaits."""

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs on the broker; SetupError names what is missing."""

    async def async_consumer(self, subscription: Subscription) -> AsyncConsumer:
        """Open a consumer of the subscription's channel."""

    async def async_producer(self) -> AsyncProducer:
        """Open a producer, on a connection of its own."""


@runtime_checkable
class PostsAwaiting(Protocol):
    """A transport whose client blocks, except for posting: awaiting callers can post without a thread."""

    async def async_producer(self) -> AsyncProducer:
        """Open a producer, on a connection of its own."""


@runtime_checkable
class Observed(Protocol):
    """A transport with its own events, which the channels above it do not see."""

    def observe(self, telemetry: Telemetry) -> None:
        """Send these events to the listeners from now on."""


@runtime_checkable
class Placed(Protocol):
    """A transport that names its broker, so that channels of the same name on other brokers are told apart."""

    @property
    def place(self) -> str:
        """The broker's address, without user and password; for a file, its whole path."""


GROUP: Final = "pump.transports"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)


def find_transport(scheme: str) -> type[Transport]:
    """The transport class that an installed distribution declares for a URL scheme."""
    for entry_point in entry_points(group=GROUP, name=scheme):
        try:
            return cast("type[Transport]", entry_point.load())
        except ImportError as error:
            extra = entry_point.extras[0] if entry_point.extras else scheme
            raise ConfigurationError(
                f"{scheme}:// needs the package {error.name}: pip install 'message-pump[{extra}]'"
            ) from error
    names = sorted(each.name for each in entry_points(group=GROUP))
    close = difflib.get_close_matches(scheme, names, n=1)
    hint = (
        f"did you mean {close[0]}://?" if close else f"there are {', '.join(f'{name}://' for name in names) or 'none'}"
    )
    raise ConfigurationError(f"no transport is installed for {scheme}://; {hint}")


def transport_from(url: str) -> Transport:
    """The transport that a URL chooses by its scheme."""
    scheme, colon, _ = url.partition("://")
    if not colon or _SCHEME.fullmatch(scheme) is None:
        raise ConfigurationError("a transport URL begins with a scheme and ://, such as memory:// or amqp://")
    return find_transport(scheme).from_url(url)
