"""NATS JetStream: durable pull consumers, confirmed posting, dead letters in streams of their own."""

from collections.abc import Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import Any, Final, Self

from nats.aio.client import Client
from nats.js import api

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.subscription import Publication, Subscription
from pump.telemetry import Telemetry
from pump.transport_kit.settings import Options, at_least, finite_seconds, only_with_tls, read_url, tls_context
from pump.transports.nats.client import PumpClient
from pump.transports.nats.connection import NatsConnection, ServerAddress
from pump.transports.nats.consumer import NatsConsumer
from pump.transports.nats.dead_letters import NatsDeadLetters
from pump.transports.nats.events import NatsEvents
from pump.transports.nats.producer import NatsProducer, PublishRetries
from pump.transports.nats.streams import StreamSetup
from pump.transports.nats.subjects import DEFAULT_DEAD_LETTER_SUBJECT

MAX_PAYLOAD: Final = 2**20
"""The largest message, headers and body together; the server's own default."""
HEADER_ROOM: Final = 48 * 2**10
PROVENANCE_ROOM: Final = 16 * 2**10
"""Bytes for the headers that a dead letter has in addition to its message's, and for the pump's own headers."""
PORT: Final = 4222
ENCRYPTED: Final = "tls+nats"
FILES: Final = ("tls_ca", "tls_cert", "tls_key")
OPTIONS: Final[Options] = {
    "name": str,
    "stream": str,
    "domain": str,
    "credentials": str,
    "replicas": int,
    "max_payload": int,
    "max_retries": int,
    "retry_base_ms": float,
    "publish_timeout": float,
    **dict.fromkeys(FILES, str),
}


class NatsTransport:
    """A NATS server or cluster with JetStream. Making a transport opens no connection.

    A topic is a subject, a channel is a durable consumer. A topic that no stream takes gets a stream of its own, or is
    added to `stream`. New streams have the replicas, limits and retention of `stream_config`.
    """

    capabilities: Capabilities = Capabilities(
        system="nats",
        nack="releases",
        blocks="nothing",
        requeue="same",
        counts_deliveries=True,
        carries_attempts=False,
        keeps_held_attempts=False,
        durable=True,
        leases=True,
        delayed_publish=False,
        default_dead_letter=DEFAULT_DEAD_LETTER_SUBJECT,
        shards_by_key=True,  # of an ordered channel, one message is out at a time, whoever has it
        largest_body=MAX_PAYLOAD - HEADER_ROOM - PROVENANCE_ROOM,
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
        client: type[Client] = PumpClient,
    ) -> None:
        at_least("NATS", "max_retries", max_retries, 1)
        at_least("NATS", "retry_base_ms", retry_base_ms, 0)
        self._address: Final = ServerAddress(
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
        self._retries: Final = PublishRetries(
            max_retries, retry_base_ms, finite_seconds("NATS", "publish_timeout", publish_timeout)
        )
        self._telemetry: Final = Telemetry()
        self.capabilities = replace(
            NatsTransport.capabilities, largest_body=max_payload - HEADER_ROOM - PROVENANCE_ROOM
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `nats://user:password@host:port/?name=…&stream=…`, or of `tls+nats://…`."""
        options = url_options(url)
        replicas = options.pop("replicas", None)
        if replicas is not None:
            options["stream_config"] = api.StreamConfig(num_replicas=replicas)
        return cls(**options)

    def observe(self, telemetry: Telemetry) -> None:
        """Send these listeners events about redeliveries, used-up attempts and postings too."""
        if telemetry:  # without listeners, postings make no events
            self._telemetry.listen(lambda event, fields: telemetry.tell(event, **fields))
        telemetry.listen(NatsEvents(telemetry))

    @property
    def place(self) -> str:
        """The servers' addresses, and the domain."""
        return f"{self._address}, {self._address.domain}"

    def __repr__(self) -> str:
        return f"NatsTransport({str(self._address)!r})"

    async def async_prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate streams and durables, as each one says; SetupError names what is missing."""
        connection = await NatsConnection.open(self._address, "preparing")
        try:
            await self._setup(connection).prepare(subscriptions, publications)
        finally:
            await connection.close()

    async def async_consumer(self, subscription: Subscription) -> NatsConsumer:
        """Open a consumer of the subscription's durable, created or validated as the subscription says."""
        connection = await NatsConnection.open(self._address, f"consuming {subscription}")
        try:
            setup = self._setup(connection)
            durable = await setup.bind(subscription)
            producer = self._producer(f"dead letters of {subscription}", Telemetry())
            dead_letters = NatsDeadLetters(subscription, durable, connection, producer, self._clock, setup=setup)
            if durable.max_deliver is not None:
                await dead_letters.listen(creates=subscription.missing == "create")
        except BaseException:
            await connection.close()
            raise
        return NatsConsumer(
            connection,
            durable,
            dead_letters,
            self._clock,
            max_attempts=subscription.max_attempts,
            telemetry=self._telemetry,
        )

    async def async_producer(self) -> NatsProducer:
        """A producer, which connects when it first sends."""
        return self._producer("posting", self._telemetry)

    def _setup(self, connection: NatsConnection) -> StreamSetup:
        return StreamSetup(connection, stream=self._stream, template=self._stream_config)

    def _producer(self, purpose: str, telemetry: Telemetry) -> NatsProducer:
        return NatsProducer(
            self._address,
            purpose,
            capabilities=self.capabilities,
            clock=self._clock,
            retries=self._retries,
            telemetry=telemetry,
        )


def url_options(url: str) -> dict[str, Any]:
    """The options in `nats://user:password@host:port,host:port/?name=…` or `tls+nats://…`; a user alone is a token."""
    read = read_url(url, "nats://user:password@host:port,host:port/?option=value", OPTIONS, schemes=("nats", ENCRYPTED))
    if read.path:
        raise read.error("it must not have a path: subscriptions name streams and consumers")
    options = dict(read.options)
    ca_file, cert_file, key_file = (options.pop(name, None) for name in FILES)
    if read.scheme == ENCRYPTED:
        options["tls"] = tls_context("NATS", ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    else:
        only_with_tls("NATS", ENCRYPTED, dict(zip(FILES, (ca_file, cert_file, key_file), strict=True)))
    if read.password is not None:
        options.update(user=read.user, password=read.password)
    elif read.user is not None:
        options["token"] = read.user
    hosts = read.hosts() or [("127.0.0.1", PORT)]
    options["servers"] = [
        f"nats://{f'[{host}]' if host and ':' in host else host}:{port or PORT}" for host, port in hosts
    ]
    return options
