"""The transport for MQTT: its capabilities, and what it creates on the broker."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Self

from pump.capabilities import Capabilities
from pump.clock import SystemClock
from pump.errors import ConfigurationError, SetupError
from pump.subscription import Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.settings import Options, at_least, read_url, yes_or_no
from pump.transports.mqtt.connection import MqttConnection
from pump.transports.mqtt.consumer import MqttConsumer
from pump.transports.mqtt.members import Members, quoted
from pump.transports.mqtt.producer import MqttProducer
from pump.transports.mqtt.registry import ChannelRegistry
from pump.transports.mqtt.settings import FORM, SERVER_OPTIONS, MqttServer, Will
from pump.transports.mqtt.texts import is_topic

LARGEST_BODY: Final = 256 * 1024 * 1024 - 256 * 1024
"""The largest body that fits into MQTT's largest packet with all headers. Brokers are often configured to take less."""
LARGEST_HEADERS: Final = 60_000
LARGEST_WINDOW: Final = 65_535
ROOT: Final = "message-pump"

OPTIONS: Final[Options] = {
    **SERVER_OPTIONS,
    **dict.fromkeys(("member", "root", "will_topic", "will_payload"), str),
    "receive_maximum": int,
    "largest_body": int,
    "shared": yes_or_no,
}


class MqttTransport:
    """Topics of an MQTT broker, and a channel as a shared subscription. Making one opens no connection.

    `member` names this host, if several hosts consume one channel; `root` begins the topics that the transport needs
    for itself; `receive_maximum` is how many messages the broker sends to a consumer before the first is acknowledged;
    without `shared` a channel has one consumer at a time, by a subscription of its own.
    """

    capabilities: Capabilities = Capabilities(
        system="mqtt",
        nack="holds",
        blocks="channel",
        requeue="copy",
        counts_deliveries=False,
        carries_attempts=True,
        keeps_held_attempts=False,
        tells_apart=False,
        durable=True,
        leases=False,
        delayed_publish=False,
        purges=False,
        longest_delay=None,
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )

    def __init__(
        self,
        server: MqttServer | None = None,
        *,
        member: str = "",
        root: str = ROOT,
        will: Will | None = None,
        receive_maximum: int | None = None,
        largest_body: int = LARGEST_BODY,
        shared: bool = True,
    ) -> None:
        if not 0 < largest_body <= LARGEST_BODY:
            raise ConfigurationError(f"mqtt: largest_body must be 1 to {LARGEST_BODY} bytes, not {largest_body}")
        at_least("mqtt", "receive_maximum", receive_maximum, 1)
        for name, topic in (("root", root), ("will_topic", None if will is None else will.topic)):
            if topic is not None and not is_topic(topic):
                raise ConfigurationError(f"mqtt: {name} must be a topic without + or #, not {topic!r}")
        self.server: Final = MqttServer() if server is None else server
        self.capabilities = replace(type(self).capabilities, largest_body=largest_body)
        self.clock: Final = SystemClock()
        self.members: Final = Members(member, str(self.server))
        self.will: Final = will
        self.shared: Final = shared
        self._root: Final = root
        self._receive_maximum: Final = receive_maximum

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of mqtt://user:password@host:port?option=value; the constructor has the options."""
        read = read_url(url, FORM, OPTIONS, schemes=("mqtt", "mqtts"))
        own = {name: value for name, value in read.options.items() if name not in SERVER_OPTIONS}
        will_topic, will_payload = own.pop("will_topic", None), own.pop("will_payload", "")
        if will_payload and will_topic is None:
            raise read.error("will_payload needs a will_topic")
        will = None if will_topic is None else Will(topic=will_topic, payload=will_payload.encode())
        return cls(MqttServer.from_url(read), will=will, **own)

    @property
    def place(self) -> str:
        """The broker's address."""
        return str(self.server)

    def __repr__(self) -> str:
        return f"<MqttTransport to {self.server}>"

    # -- setting up

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs on the broker; SetupError names what is missing."""
        channels = [(each.missing, channel) for each in subscriptions for channel in _channels(each)]
        topics = [(each.missing, each.destination) for each in publications]
        for topic in (each for _, each in topics if not is_topic(each)):
            raise ConfigurationError(f"mqtt: nothing can be posted to {topic!r}: a topic must not contain + or #")
        if all(missing == "assume" for missing, _ in (*channels, *topics)):
            return
        with ChannelRegistry(self.server, self.clock, self._root) as registry:
            self._create(
                registry,
                [channel for missing, channel in channels if missing == "create"],
                [topic for missing, topic in topics if missing == "create"],
            )
            _validate(registry, [channel for missing, channel in channels if missing == "validate"])
            _validate_topics(registry, [topic for missing, topic in topics if missing == "validate"])

    def _create(self, registry: ChannelRegistry, channels: Sequence[Destinations], topics: Sequence[str]) -> None:
        names = {registry.channel(each.topic, each.channel): each for each in channels}
        wanted = {*names, *map(registry.topic, topics)}
        unknown = wanted.difference(registry.known(wanted))
        for name in unknown.intersection(names):
            self._begin_session(names[name])
        if unknown:
            registry.register(sorted(unknown))

    def create_channel(self, channel: Destinations) -> None:
        """Make a session that keeps the messages of a channel, whether or not the channel is registered already."""
        self._begin_session(channel)
        with ChannelRegistry(self.server, self.clock, self._root) as registry:
            registry.register([registry.channel(channel.topic, channel.channel)])

    def _begin_session(self, channel: Destinations) -> None:
        """Begin the session of the first seat, unless its consumer is connected and does that itself."""
        seat = self.members.take_number(channel.channel, 0)
        if seat is None:
            return
        try:
            for client_id, topic in (
                (seat.client_id, self.share(channel)),
                (f"{seat.client_id}-later", self.copies_topic(seat.client_id)),
            ):
                connection = MqttConnection(self.server, self.clock, client_id=client_id)
                connection.open()
                try:
                    connection.subscribe([topic])
                finally:
                    connection.close()
        finally:
            seat.leave()

    # -- consumers and producers

    def consumer(self, subscription: Subscription) -> MqttConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        self.prepare([subscription], [])
        if subscription.missing == "create" and self.server.version != "5":
            for channel in list(_channels(subscription))[1:]:  # nothing would report that a dead letter was not kept
                self._begin_session(channel)
        consumer = MqttConsumer(self, subscription)
        consumer.open()
        return consumer

    def producer(self) -> MqttProducer:
        """A producer, which connects when it first sends."""
        return MqttProducer(self)

    # -- names

    def share(self, channel: Destinations) -> str:
        """The subscription that all consumers of a channel share; without sharing, that of its only consumer."""
        if not self.shared:
            return channel.topic
        return f"$share/{quoted(channel.channel)}/{channel.topic}"

    def copies_topic(self, client_id: str) -> str:
        """The topic of the copies that come again to one consumer."""
        return f"{self._root}/later/{client_id}"

    def window(self, subscription: Subscription) -> int:
        """The most messages that the broker sends to a consumer before the first is acknowledged."""
        if self._receive_maximum is not None:
            return min(self._receive_maximum, LARGEST_WINDOW)
        return min(max(64, 2 * max(subscription.buffer_size, subscription.in_flight)), LARGEST_WINDOW)


def _channels(subscription: Subscription) -> Iterator[Destinations]:
    """The subscription's own channel, and the channels that keep its dead letters."""
    destinations = Destinations.of(subscription)
    yield destinations
    for name in destinations.dead_letters:
        if not is_topic(name):
            raise ConfigurationError(f"mqtt: dead letters cannot go to {name!r}: a topic must not contain + or #")
        yield Destinations(name, name, None, None)


def _validate(registry: ChannelRegistry, channels: Sequence[Destinations]) -> None:
    names = {registry.channel(each.topic, each.channel): each for each in channels}
    known = registry.known(names.keys())
    for name, channel in names.items():
        if name not in known:
            raise SetupError(
                f"mqtt: there is no channel {channel.channel!r} of {channel.topic!r}, and missing='validate' does not "
                "create it"
            )


def _validate_topics(registry: ChannelRegistry, topics: Sequence[str]) -> None:
    for topic in topics:
        if not registry.known([registry.topic(topic)]) and not registry.known([registry.any_channel(topic)]):
            raise SetupError(f"mqtt: there is no topic {topic!r}, and missing='validate' does not create it")
