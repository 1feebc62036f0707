"""Publishes messages in requests of a size that Pub/Sub takes, and reports for each whether it was confirmed."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from pump.capabilities import Capabilities
from pump.clock import Clock
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.sending import check_sizes, not_sent, portions, together
from pump.transports.pubsub.attributes import copy_attributes, to_attributes
from pump.transports.pubsub.connection import PUBSUB, PubSubConnection, PubSubDenied, PubSubMissing, PubSubThrottled
from pump.transports.pubsub.names import topic_name

LARGEST_REQUEST: Final = 10_000_000
"""The most bytes of one request, and so of one message."""
FULL_REQUEST: Final = 4_000_000
"""The most bytes of a request with several messages."""
MOST_MESSAGES: Final = 1000
SUBSCRIBED_SECONDS: Final = 30.0
"""How long a topic that had a subscription is assumed to have one."""
UNDER_WAY: Final = 8
"""The most requests that are sent before the answer to the first is read."""
ROOM: Final = 300
"""Bytes of a request beside its messages: the topic's name, and the frame of each message."""


class PublishLine(NamedTuple):
    """Messages of one topic and one ordering key: all messages of one request must be."""

    topic: str
    key: str


class PlacedMessage(NamedTuple):
    """A message as it is sent, and its place among those posted together."""

    place: int
    message: Any
    size: int


class PubSubPublisher:
    """Publishes over one connection. Any thread may use it."""

    def __init__(self, connection: PubSubConnection, project: str, clock: Clock) -> None:
        self._connection: Final = connection
        self._project: Final = project
        self._clock: Final = clock
        self._subscribed: Final[dict[str, float]] = {}
        """Topics that have a subscription, and when that was last seen. Without one, Pub/Sub drops what it confirms."""

    def publish(self, topic: str, message: Any) -> None:  # noqa: ANN401 - as protobuf has it
        """Store one message, as `encode` makes it; PublishError unless that is confirmed."""
        if message.ByteSize() + ROOM > LARGEST_REQUEST:
            raise not_sent(f"the message has {message.ByteSize()} bytes, and Pub/Sub takes {LARGEST_REQUEST}")
        self._check_subscribed(topic)
        try:
            self._connection.call("Publish", PUBSUB["PublishRequest"](topic=topic, messages=[message]))
        except PumpError as error:
            if isinstance(error, PubSubMissing):
                self._subscribed.clear()
            raise failure(error) from error

    def send(self, messages: Sequence[Message], capabilities: Capabilities) -> None:
        """Store all of them, in order within each topic and key; PublishError says which are not."""
        lines: dict[PublishLine, list[PlacedMessage]] = {}
        for place, message in enumerate(messages):
            topic, encoded = self._encoded(message, capabilities)
            size = encoded.ByteSize() + 8
            lines.setdefault(PublishLine(topic, encoded.ordering_key), []).append(PlacedMessage(place, encoded, size))
        for topic in {line.topic for line in lines}:
            self._check_subscribed(topic)
        failures: dict[int, PublishError] = {}
        waiting: list[tuple[Any, PublishLine, Sequence[PlacedMessage]]] = []
        for line, portion, last in _requests(lines):
            request = PUBSUB["PublishRequest"](topic=line.topic, messages=[each.message for each in portion])
            if waiting and (len(waiting) >= UNDER_WAY or (line.key and waiting[-1][1] == line)):
                self._finish(waiting, failures)  # one request of a key after another: so their order is certain
            if line.key and any(each.place in failures for each in lines[line]):
                failures.update(
                    (each.place, not_sent("a message of the same key before it failed", retriable=True))
                    for each in portion
                )
                continue
            try:
                waiting.append((self._connection.begin("Publish", request), line, portion))
            except PumpError as error:
                failures.update((each.place, failure(error, sent=False)) for each in portion)
            if last:
                self._finish(waiting, failures)
        self._finish(waiting, failures)
        if failures:
            raise together(failures, len(messages))

    def _finish(
        self, waiting: list[tuple[Any, PublishLine, Sequence[PlacedMessage]]], failures: dict[int, PublishError]
    ) -> None:
        for call, _, portion in waiting:
            try:
                self._connection.result_of(call)
            except PumpError as error:
                if isinstance(error, PubSubMissing):
                    self._subscribed.clear()
                failures.update((each.place, failure(error)) for each in portion)
        waiting.clear()

    def _encoded(self, message: Message, capabilities: Capabilities) -> tuple[str, Any]:
        check_sizes(message, capabilities)
        try:
            return topic_name(self._project, message.header.topic), encode(message.header, message.body)
        except (ValueError, ConfigurationError) as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error

    def _check_subscribed(self, topic: str) -> None:
        now = self._clock.monotonic()
        if now - self._subscribed.get(topic, -inf) < SUBSCRIBED_SECONDS:
            return
        request = PUBSUB["ListTopicSubscriptionsRequest"](topic=topic, page_size=1)
        try:
            found = bool(self._connection.call("ListTopicSubscriptions", request).subscriptions)
        except PubSubDenied:
            found = True  # credentials that may only publish cannot look
        except PumpError as error:
            raise failure(error, sent=False) from error
        if not found:
            missing = PubSubMissing(f"{topic} has no subscription")
            raise not_sent(f"{missing}, so Pub/Sub would drop the message", retriable=True) from missing
        self._subscribed[topic] = now


def _requests(
    lines: dict[PublishLine, list[PlacedMessage]],
) -> Iterator[tuple[PublishLine, Sequence[PlacedMessage], bool]]:
    """The messages of each request, in order, and whether it is the last one."""
    found = [
        (line, portion)
        for line, items in lines.items()
        for portion in portions(items, lambda each: each.size, MOST_MESSAGES, FULL_REQUEST)
    ]
    for number, (line, portion) in enumerate(found, 1):
        yield line, portion, number == len(found)


def encode(header: Header, body: bytes) -> Any:  # noqa: ANN401 - as protobuf has it
    """The protobuf message; ValueError if it cannot be written."""
    attributes, ordering_key = to_attributes(header)
    return PUBSUB["PubsubMessage"](data=body, attributes=attributes, ordering_key=ordering_key)


def encode_copy(header: Header, body: bytes, *, identity: str, due: float) -> Any:  # noqa: ANN401 - as protobuf has it
    """A copy for a channel's own retry topic, whatever its headers are."""
    attributes, packed = copy_attributes(header, identity, due)
    return PUBSUB["PubsubMessage"](data=packed + body, attributes=attributes)


def failure(error: PumpError, *, sent: bool | None = None) -> PublishError:
    """The error for messages that were not confirmed for this reason."""
    if isinstance(error, PublishError):
        return error
    if isinstance(error, SetupError | PubSubMissing | PubSubThrottled):
        sent = False
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    retriable = isinstance(error, TransportError) and not isinstance(error, PubSubMissing)
    found = PublishError(f"{known}: {error}", sent=sent, retriable=retriable)
    found.__cause__ = error
    return found
