"""Sends to topics: to a queue directly, or through SNS to all queues that are subscribed."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from pump.errors import ConfigurationError, PublishError, PumpError, SetupError
from pump.message import Message
from pump.transport_kit.sending import check_sizes, not_sent, portions, together
from pump.transports.sqs.attributes import NOTHING, Carried, Parcel, pack
from pump.transports.sqs.client import MOST_ENTRIES, NoSuchQueue, SqsError, SqsNotReached, batches
from pump.transports.sqs.names import group_of
from pump.transports.sqs.queues import SqsRoute

if TYPE_CHECKING:
    from pump.transports.sqs.transport import SqsTransport

LONGEST_DELAY_SECONDS: Final = 900
"""The longest DelaySeconds. A message with a longer delay is hidden again by each consumer that receives it."""
FAR_SECONDS: Final = 100 * 365 * 86400.0
ROUTE_SECONDS: Final = 30.0
"""How long a producer remembers where a topic goes."""
_UNSENT: Final = (SqsNotReached, SetupError, NoSuchQueue)


class _Posted(NamedTuple):
    """One message to send, and its place among those that are sent together."""

    place: int
    parcel: Parcel
    entry: Mapping[str, Any]


def due_and_delay(delay: float, now: float) -> tuple[float, int]:
    """The time when a message is due, if its delay is longer than the broker's longest, and its DelaySeconds."""
    if delay <= LONGEST_DELAY_SECONDS:
        return 0.0, max(0, ceil(delay))
    return now + min(delay, FAR_SECONDS), LONGEST_DELAY_SECONDS


def order_of(key: str | None, *, fifo: bool) -> dict[str, str]:
    """The parameters for a FIFO queue: the message's group, and a new deduplication id."""
    return {"MessageGroupId": group_of(key), "MessageDeduplicationId": uuid4().hex} if fifo else {}


class SqsProducer:
    """Sends to the topics in the messages' headers. Any thread may use it."""

    def __init__(self, transport: "SqsTransport") -> None:
        self._transport: Final = transport
        self._lock: Final = threading.Lock()
        self._routes: Final[dict[str, tuple[float, SqsRoute]]] = {}
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As Producer's."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        if delay > 0 and self._transport.fifo:
            raise not_sent("a FIFO queue cannot delay a single message")
        by_topic: dict[str, list[_Posted]] = {}
        for place, message in enumerate(messages):  # before anything is sent, since one of them may be wrong
            by_topic.setdefault(message.header.topic, []).append(self._posted(place, message, delay))
        failures: dict[int, PublishError] = {}
        for topic, posted in by_topic.items():
            failures.update(self._send_to(topic, posted, delay))
        if failures:
            raise together(failures, len(messages))

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def _posted(self, place: int, message: Message, delay: float) -> _Posted:
        transport = self._transport
        check_sizes(message, transport.capabilities)
        due, _ = due_and_delay(delay, transport.clock.wall())
        try:
            parcel = pack(message.header, message.body, Carried(due=due) if due else NOTHING)
        except (ValueError, TypeError) as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error
        if parcel.size > transport.largest_message:
            raise not_sent(
                f"message {message.id} has {parcel.size} bytes with its attributes, and {transport.largest_message} "
                "are allowed; store a large body elsewhere, and post its address"
            )
        return _Posted(place, parcel, order_of(message.header.key, fifo=transport.fifo))

    def _send_to(self, topic: str, posted: Sequence[_Posted], delay: float) -> Mapping[int, PublishError]:
        """Send to one topic; returns the errors of messages that were not confirmed, by position."""
        try:
            route = self._route(topic)
            if route.topic_arn and delay > 0:
                urls = self._transport.queues.subscribed_queues(route.topic_arn)
            else:
                urls = [route.queue_url] if route.queue_url else []
            if not urls and not route.is_heard:
                raise not_sent(f"no queue is subscribed to the topic {topic!r}", retriable=True)
        except PumpError as error:
            failure = error if isinstance(error, PublishError) else _failure(error, sent=False)
            return {each.place: failure for each in posted}
        failures: dict[int, PublishError] = {}
        for url in urls:
            failures.update(self._send_batches(posted, partial(self._to_queue, url, delay), topic))
        if not urls:
            failures.update(self._send_batches(posted, partial(self._to_topic, route.topic_arn), topic))
        if failures:
            self._forget(topic)
        return failures

    def _send_batches(self, posted: Sequence[_Posted], send: Any, topic: str) -> Mapping[int, PublishError]:  # noqa: ANN401 - a partial
        failures: dict[int, PublishError] = {}
        for some in portions(posted, lambda each: each.parcel.size, MOST_ENTRIES, self._transport.largest_message):
            if failures:
                failures.update(
                    {
                        each.place: _failure("it was not tried, because a message before it failed", sent=False)
                        for each in some
                    }
                )
                continue
            for place, error in send(some, topic).items():
                failures[some[place].place] = _failure(error, sent=_was_sent(error))
        return failures

    def _to_queue(self, url: str, delay: float, some: Sequence[_Posted], topic: str) -> Mapping[int, PumpError]:
        _, seconds = due_and_delay(delay, 0.0)
        late = {"DelaySeconds": seconds} if seconds else {}
        entries = [{**each.parcel.entry, **each.entry, **late} for each in some]
        return batches(entries, self._transport.clients.sqs().send_message_batch, f"posting to {topic}", QueueUrl=url)

    def _to_topic(self, arn: str, some: Sequence[_Posted], topic: str) -> Mapping[int, PumpError]:
        entries = [
            {"Message": each.parcel.body, "MessageAttributes": each.parcel.attributes, **each.entry} for each in some
        ]
        request = self._transport.clients.sns().publish_batch
        return batches(
            entries,
            lambda **options: request(PublishBatchRequestEntries=options.pop("Entries"), **options),
            f"posting to {topic}",
            TopicArn=arn,
        )

    def _route(self, topic: str) -> SqsRoute:
        now = self._transport.clock.monotonic()
        with self._lock:
            until, route = self._routes.get(topic, (0.0, SqsRoute()))
        if now < until:
            return route
        route = self._transport.queues.route(topic)
        with self._lock:
            self._routes[topic] = (now + ROUTE_SECONDS if route.is_heard else now, route)
        return route

    def _forget(self, topic: str) -> None:
        """Look again where the topic goes, at the next send."""
        with self._lock:
            self._routes.pop(topic, None)


def _was_sent(error: PumpError) -> bool | None:
    """False if it is known that the message was not stored, else None."""
    return False if isinstance(error, _UNSENT) or (isinstance(error, SqsError) and error.is_ours) else None


def _failure(error: PumpError | str, *, sent: bool | None) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    is_final = isinstance(error, ConfigurationError) or (isinstance(error, SqsError) and error.is_ours)
    failure = PublishError(f"{known}: {error}", sent=sent, retriable=not is_final and not isinstance(error, SetupError))
    failure.__cause__ = error if isinstance(error, PumpError) else None
    return failure
