"""NATS JetStream: durable pull consumers, confirmed posting, dead letters in streams of their own."""

from collections.abc import Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import Final, Self

from nats.aio.client import Client
from nats.js import api

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.errors import PublishError
from pump.message import Message
from pump.subscription import Publication, Subscription
from pump.telemetry import Telemetry
from pump.transports.nats.connection import Address, Link
from pump.transports.nats.consumer import NatsConsumer
from pump.transports.nats.dead_letters import Graves
from pump.transports.nats.events import NatsEvents
from pump.transports.nats.headers import written
from pump.transports.nats.message import AsyncNatsMessage, Headers, NatsMessage, NatsMetadata
from pump.transports.nats.publisher import Outgoing, Publisher, Retries, minted
from pump.transports.nats.settings import parsed
from pump.transports.nats.streams import Streams, wanted
from pump.transports.nats.subjects import DEFAULT_GRAVE
from pump.transports.nats.subscription import NatsSubscription

__all__ = [
    "AsyncNatsMessage",
    "Headers",
    "NatsMessage",
    "NatsMetadata",
    "NatsProducer",
    "NatsSubscription",
    "NatsTransport",
]

MAX_PAYLOAD: Final = 2**20
"""Headers and body together; the server's own default."""
HEADER_ROOM: Final = 48 * 2**10
LETTER_ROOM: Final = 16 * 2**10
"""For what a dead letter says more than its message, and for the pump's own headers."""


class NatsProducer:
    """Posts to the subjects in the messages' headers, on a connection of its own."""

    def __init__(self, publisher: Publisher, capabilities: Capabilities) -> None:
        self._publisher: Final = publisher
        self._capabilities: Final = capabilities

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message, tried again while that may help; repetitions are recognised by the server."""
        if delay > 0:
            raise PublishError("nothing was sent: NATS delivers no message later", sent=False, retriable=False)
        await self._publisher.send([self._outgoing(message) for message in messages])

    def _outgoing(self, message: Message) -> Outgoing:
        header = message.header
        outgoing = Outgoing(header.topic, message.body, written(header, minted(header.id)), header.id)
        largest = self._capabilities.largest_body, self._capabilities.largest_headers
        for what, size, limit in zip(("body", "headers"), (len(message.body), outgoing.head), largest, strict=True):
            if limit is not None and size > limit:
                raise PublishError(
                    f"nothing was sent: the {what} of message {message.id} has {size} bytes, and {limit} are allowed",
                    sent=False,
                    retriable=False,
                )
        return outgoing

    async def close(self) -> None:
        """Let go of the connection."""
        await self._publisher.close()


class NatsTransport:
    """A NATS server, or cluster, with JetStream. Making one opens nothing.

    A topic is a subject, a channel a durable consumer. Where no stream takes a topic, one is made for it, or all go
    into `stream`. `stream_config` is what streams are made like: replicas, limits, retention.
    """

    capabilities: Capabilities = Capabilities(
        system="nats",
        nack="releases",
        blocks="nothing",
        requeue="same",
        counts_deliveries=True,
        carries_attempts=False,
        durable=True,
        durable_attempts=True,
        leases=True,
        delayed_publish=False,
        default_dead_letter=DEFAULT_GRAVE,
        largest_body=MAX_PAYLOAD - HEADER_ROOM - LETTER_ROOM,
        largest_headers=HEADER_ROOM,
    )

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        name: str = "message-pump",
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | None = None,
        tls: SSLContext | None = None,
        domain: str | None = None,
        stream: str = "",
        stream_config: api.StreamConfig | None = None,
        max_payload: int = MAX_PAYLOAD,
        max_retries: int = 3,
        retry_base_ms: float = 100.0,
        publish_timeout: float = 5.0,
        clock: Clock | None = None,
        client: type[Client] = Client,
    ) -> None:
        self._address: Final = Address(
            servers=(servers,) if isinstance(servers, str) else tuple(servers),
            name=name,
            user=user,
            password=password,
            token=token,
            credentials=credentials,
            tls=tls,
            domain=domain,
            client=client,
        )
        self._stream: Final = stream
        self._stream_config: Final = stream_config
        self._clock: Final[Clock] = SystemClock() if clock is None else clock
        self._retries: Final = Retries(max_retries=max_retries, retry_base_ms=retry_base_ms, timeout=publish_timeout)
        self._telemetry: Final = Telemetry()
        self._max_payload: Final = max_payload
        self.capabilities = replace(NatsTransport.capabilities, largest_body=max_payload - HEADER_ROOM - LETTER_ROOM)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `nats://user:password@host:port/?name=…&stream=…`, or of `tls+nats://…`."""
        options = parsed(url)
        replicas = options.pop("replicas", None)
        if replicas is not None:
            options["stream_config"] = api.StreamConfig(num_replicas=replicas)
        return cls(**options)

    def observe(self, telemetry: Telemetry) -> None:
        """Tell these listeners too of redeliveries, exhausted budgets and postings."""
        telemetry.listen(NatsEvents(telemetry))
        self._telemetry.listen(lambda event, fields: telemetry.tell(event, **fields))

    def __repr__(self) -> str:
        return f"NatsTransport({str(self._address)!r})"

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what is missing, as each one says; SetupError names what is not there."""
        link = await Link.open(self._address, "preparing")
        try:
            await self._streams(link).prepare(subscriptions, publications)
        finally:
            await link.close()

    async def async_consumer(self, subscription: Subscription) -> NatsConsumer:
        """Open a consumer of the subscription's durable, created or validated as the subscription says."""
        link = await Link.open(self._address, f"consuming {subscription}")
        try:
            binding = await self._streams(link).bind(subscription)
            graves = Graves(
                wanted(subscription, self._stream),
                self._publisher(f"dead letters of {subscription}", Telemetry()),
                largest=link.client.max_payload,
            )
            consumer = NatsConsumer(
                link,
                binding,
                graves,
                self._clock,
                max_attempts=subscription.max_attempts,
                telemetry=self._telemetry,
            )
            await consumer.begin(creates=subscription.missing == "create")
        except BaseException:
            await link.close()
            raise
        return consumer

    async def async_producer(self) -> NatsProducer:
        """Open a producer; it connects with the first posting."""
        return NatsProducer(self._publisher("posting", self._telemetry), self.capabilities)

    def _streams(self, link: Link) -> Streams:
        return Streams(link, stream=self._stream, template=self._stream_config)

    def _publisher(self, purpose: str, telemetry: Telemetry) -> Publisher:
        return Publisher(self._address, purpose, clock=self._clock, retries=self._retries, telemetry=telemetry)
