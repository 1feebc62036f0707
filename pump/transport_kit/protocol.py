"""What a transport is: a factory of consumers and producers, in the colour its client library has by nature."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import count
from typing import Final, Protocol, Self, cast, runtime_checkable
from urllib.parse import urlsplit

from pump.capabilities import Capabilities
from pump.dead_letter import Rejection
from pump.errors import ConfigurationError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.telemetry import Telemetry

_generations = count(1)


def new_generation() -> int:
    """A number for one life of a consumer, never given twice in this process."""
    return next(_generations)


class Consumer(Protocol):
    """One consumer of one channel, blocking. All but `receive` may be called from any thread.

    Whatever goes wrong on the way to the broker is a TransportError; a delivery that is no longer ours is LeaseLost.
    """

    @property
    def generation(self) -> int:
        """The life that receipts belong to; it changes whenever all earlier receipts have become void."""

    @property
    def broker_limit(self) -> int | None:
        """Deliveries of one message after which the broker itself gives it up; None is never."""

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: what is there, or what comes within `timeout` seconds, or nothing."""

    def acknowledge(self, message: Message) -> None:
        """The message is done."""

    def nack(self, message: Message) -> None:
        """Give it back unspent, so that anybody may have it at once. Not called where capabilities say "holds"."""

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Deliver it again, to this channel only, after `delay` seconds, with so many attempts behind it."""

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Make it a dead letter; returns when that is confirmed and the original is gone."""

    def extend(self, message: Message) -> None:
        """Renew its lease, and note the new end in `message.lease_expires`."""

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Give back messages nobody began to handle, in their old order. Others of this consumer may go back too."""

    def purge(self) -> int:
        """Remove everything that waits in the channel; says how many messages that were."""

    def interrupt(self) -> None:
        """Make a receive that is under way, or else the next one, return early with what it has."""

    def close(self) -> None:
        """Let go of everything. Deliveries that are not settled go back to the broker as it sees fit."""


@runtime_checkable
class NotingConsumer(Protocol):
    """A blocking consumer that can take acknowledgements without waiting, to be sent with others.

    Where it has this as well, an awaiting caller need not change threads for every message.
    """

    def note(self, message: Message) -> bool:
        """The message is done, and the broker is told soon; False, and nothing noted, if `acknowledge` has to wait."""


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
    """An awaiting consumer whose acknowledgements need no wait for the loop, which a blocking caller is spared then."""

    def acknowledge_soon(self, message: Message) -> None:
        """As `acknowledge`, from any thread and at once: it leaves when the loop comes to it."""


class Producer(Protocol):
    """Sends messages to the topics in their headers, from any thread; returns when the broker has confirmed."""

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError says what is known of those that were not confirmed."""

    def close(self) -> None:
        """Let go of the connection."""


class AsyncProducer(Protocol):
    """The same, awaiting."""

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None: ...  # noqa: D102 - as Producer's
    async def close(self) -> None: ...  # noqa: D102 - as Producer's


class Transport(Protocol):
    """A description of how to reach a broker. Making one opens nothing. It is also one of the two below."""

    capabilities: Capabilities

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport that a URL describes; ConfigurationError, without the password, when it makes no sense."""


@runtime_checkable
class BlockingTransport(Protocol):
    """A transport whose client blocks."""

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""

    def consumer(self, subscription: Subscription) -> Consumer:
        """Open a consumer of the subscription's channel."""

    def producer(self) -> Producer:
        """Open a producer, on a connection of its own."""


@runtime_checkable
class AwaitingTransport(Protocol):
    """A transport whose client awaits."""

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""

    async def async_consumer(self, subscription: Subscription) -> AsyncConsumer:
        """Open a consumer of the subscription's channel."""

    async def async_producer(self) -> AsyncProducer:
        """Open a producer, on a connection of its own."""


@runtime_checkable
class Observed(Protocol):
    """A transport that has more to tell than the channels above it see."""

    def observe(self, telemetry: Telemetry) -> None:
        """Tell these listeners too of what happens from now on."""


GROUP: Final = "pump.transports"


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
    known = ", ".join(sorted(f"{each.name}://" for each in entry_points(group=GROUP)))
    raise ConfigurationError(f"no transport is installed for {scheme}://; there are {known or 'none at all'}")


def transport_from(url: str) -> Transport:
    """The transport that a URL chooses by its scheme."""
    scheme = urlsplit(url).scheme
    if not scheme:
        raise ConfigurationError("a transport URL begins with a scheme, such as memory:// or amqp://")
    return find_transport(scheme).from_url(url)
