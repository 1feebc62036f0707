"""A consumer of one subscription, and of a second one for the channel's deferred messages.

It pulls, so Pub/Sub sends only as many messages as the channel has room for. A pull that is under way when a receive
ends goes on: its messages are for the next receive, or go back. With `streaming` Pub/Sub sends the channel's messages
as they come, as long as there are permits. Copies are always pulled: those that are not due yet would use up permits.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pump.clock import Clock, Signal
from pump.dead_letter import TOTAL_LIMIT, Rejection
from pump.duration import LONGEST_DELAY, seconds
from pump.errors import LeaseLost, PublishError, PumpError, SetupError, TransportError
from pump.message import Header, Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.text import bounded_text
from pump.transport_kit.dead_letters import (
    SHORT_LIMIT,
    LetterTries,
    copy_headers,
    cut_letters,
    dead_letter_headers,
    report_gone,
)
from pump.transport_kit.parking import Parking
from pump.transport_kit.protocol import new_generation
from pump.transports.pubsub.acks import PubSubAcks
from pump.transports.pubsub.attributes import copy_of, from_attributes, unpacked
from pump.transports.pubsub.connection import (
    PUBSUB,
    Call,
    PubSubConnection,
    PubSubMissing,
    PubSubNoAnswer,
    PubSubRefused,
    deadline_request,
)
from pump.transports.pubsub.deliveries import (
    PubSubDeliveries,
    PubSubDelivery,
    in_portions,
    is_final,
    portions_by_name,
)
from pump.transports.pubsub.names import PubSubNames, destinations_of, topic_name
from pump.transports.pubsub.publisher import LARGEST_REQUEST, ROOM, PubSubPublisher, encode, encode_copy
from pump.transports.pubsub.renewals import PubSubRenewals
from pump.transports.pubsub.settings import PubSubSettings
from pump.transports.pubsub.stream import PubSubStream
from pump.transports.pubsub.topology import ChannelFacts, PubSubTopology

PULL_SECONDS: Final = 60.0
"""How long a pull waits for messages at Pub/Sub."""
MOST_PULLED: Final = 1000
LATE_SECONDS: Final = 1.0
"""Messages that arrive while nobody receives go back after this many seconds."""
QUICK_SECONDS: Final = 0.25
MANY: Final = 40
"""A pump that asks for this many messages, and has handled the last ones this soon, gets them in two halves."""
HERE_SECONDS: Final = 1.5
"""A copy that is due this soon waits here; any other one waits at Pub/Sub, as a delivery with a deadline."""
LONGEST_DEADLINE: Final = 600
MOST_ANEW: Final = 40
"""No copy is published again while this many requests are not answered; it is published at its next delivery."""
LONGEST_WAY_SECONDS: Final = 2.0
"""Messages of a pull were sent at most this long ago, or a tenth of their lease."""
PURGE_SECONDS: Final = 1.0
"""A subscription that sends nothing for this long is empty."""
HAND_BACK_SECONDS: Final = 1.5
CLOSE_SECONDS: Final = 1.0
"""How long a stop waits for a server that does not answer."""
STREAMED: Final = 40
"""A stream has this many permits, or twice as many as the channel holds, if that is more."""
STREAM_ENDS_SECONDS: Final = 0.3
"""How long a close waits for the last messages of a stream, to give them back."""
FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 1.0


class _Source:
    """One of the two subscriptions, and the pull that is under way there."""

    def __init__(self, name: str, *, retry: bool) -> None:
        self.name: Final = name
        self.retry: Final = retry
        self.call: Call | None = None
        self.began = 0.0
        self.failure: PumpError | None = None
        self.again_at = 0.0
        self.wait = FIRST_WAIT


class _Arrived(NamedTuple):
    """A message that a pull has brought."""

    source: _Source
    received: Any
    sent: float
    """The earliest time at which Pub/Sub may have sent it: its lease is counted from then."""
    delivery: PubSubDelivery | None
    """Of a message that came by a stream: it may wait here for longer, and is renewed meanwhile."""


class PubSubConsumer:
    """One consumer of one channel. One thread receives; any thread settles, renews or interrupts."""

    def __init__(self, settings: PubSubSettings, subscription: Subscription, clock: Clock) -> None:
        self.generation: Final = new_generation()
        self._settings: Final = settings
        self._subscription: Final = subscription
        self._clock: Final = clock
        self._destinations: Final = destinations_of(subscription)
        self._channel: Final = self._destinations.channel
        self._parking: Final = Parking(log, self._channel, subscription.max_attempts)
        self._names: Final = PubSubNames.of(settings.project, self._destinations)
        self._lease: Final = settings.lease_of(subscription.lease)
        self._longest: Final = seconds(settings.longest_lease)
        self._connection: Final = PubSubConnection(settings)
        self._copies: Final = PubSubConnection(settings)
        self._publisher: Final = PubSubPublisher(self._copies, settings.project, clock)
        self._facts = ChannelFacts()
        self._sources: Final = (_Source(self._names.channel, retry=False), _Source(self._names.retry, retry=True))
        self._lock: Final = threading.Lock()
        self._renewing: Final = threading.Lock()
        self._arrived: Final[deque[_Arrived]] = deque()
        self._due: Final[list[tuple[float, int, Message]]] = []
        """A heap of copies that are due soon, by their due times."""
        self._numbers: Final = itertools.count()
        self._deliveries: Final = PubSubDeliveries()
        self._renewals: Final = PubSubRenewals(
            self._connection, self._deliveries, self._lock, clock, channel=self._channel, lease=self._lease
        )
        self._acks: Final = PubSubAcks(self._connection, self._channel, clock)
        self._stream: Final = self._new_stream() if settings.streaming and subscription.renew_lease else None
        self._unawaited: Final[set[Call]] = set()
        """Requests whose answers nobody waits for, kept here because grpc cancels a call without a reference to it."""
        self._changed: Final = Signal()
        self._receives = 0
        self._handed_out_at = -inf
        self._receiving = False
        self._interrupted = False
        self._closed = False
        self._down_since: float | None = None

    @property
    def broker_limit(self) -> int | None:
        """How many deliveries Pub/Sub allows: what the subscription's dead-letter policy says."""
        return self._facts.limit

    def open(self) -> None:
        """Create or validate what the subscription needs."""
        try:
            self._ensure()
        except BaseException:
            self._connection.close()
            raise

    def _ensure(self) -> None:
        self._facts = PubSubTopology(self._connection, self._settings).ensure_channel(self._subscription)

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are there, or the first to come within `timeout` seconds, or none."""
        now = self._clock.monotonic()
        deadline = now + timeout
        quick = now - self._handed_out_at < QUICK_SECONDS and limit >= MANY
        self._receives += 1
        self._receiving = True
        try:
            while True:
                self._changed.clear()
                self._check()
                messages = self._take(limit)
                if messages and quick:
                    self._ask_ahead(limit - len(messages))
                if messages or self._interrupted:
                    return messages
                self._acks.flush()
                self._ask(limit // 2 if quick else limit)
                now = self._clock.monotonic()
                if now >= deadline:
                    return ()
                self._clock.wait(self._changed, max(0.0, min(deadline, self._next_change(now)) - now))
        finally:
            self._receiving = self._interrupted = False
            self._handed_out_at = self._clock.monotonic()

    def _check(self) -> None:
        """Raise if a new consumer must be opened; create again what was deleted, if the subscription says so."""
        if self._closed:
            raise TransportError(f"the consumer of {self._channel} is closed")
        for source in self._sources:
            failure, source.failure = source.failure, None
            if isinstance(failure, PubSubMissing) and self._subscription.missing == "create":
                log.warning("pubsub: %s was deleted, and is created again", source.name)
                self._ensure()
            elif isinstance(failure, PubSubMissing) or (
                failure is not None and not isinstance(failure, TransportError)
            ):
                raise failure
            elif failure is not None:
                self._note_outage(failure)

    def _note_outage(self, failure: PumpError) -> None:
        """Note a failed pull. The messages here are ours while their leases last, so an outage may last as long."""
        now = self._clock.monotonic()
        if self._down_since is None:
            self._down_since = now
            log.warning("pubsub: messages of channel %s cannot be pulled now: %s", self._channel, failure)
        elif now - self._down_since > self._lease:
            raise failure

    def _note_answer(self) -> None:
        if self._down_since is not None and all(each.wait == FIRST_WAIT for each in self._sources):
            self._down_since = None
            log.info("pubsub: messages of channel %s are pulled again", self._channel)

    def _ask(self, limit: int) -> None:
        """Begin a pull on each subscription that has none; or keep a stream open on the channel's own."""
        for source in self._sources:
            if self._stream is None or source.retry:
                self._pull(source, limit)
            elif self._clock.monotonic() >= source.again_at:
                self._stream.keep()

    def _ask_ahead(self, rest: int) -> None:
        """Pull more messages for the free room while a fast pump handles those that it gets now."""
        if rest >= MANY // 2 and not self._arrived and self._stream is None:
            self._pull(self._sources[0], rest)

    def _pull(self, source: _Source, limit: int) -> None:
        now = self._clock.monotonic()
        if source.call is None and now >= source.again_at:
            request = PUBSUB["PullRequest"](subscription=source.name, max_messages=min(limit, MOST_PULLED))
            source.began = now
            call = source.call = self._connection.begin("Pull", request, PULL_SECONDS)
            call.add_done_callback(partial(self._pulled, source))

    def _next_change(self, now: float) -> float:
        waits = [each.again_at for each in self._sources if each.again_at > now]
        with self._lock:
            waits += [self._due[0][0]] if self._due else []
        return min(waits, default=now + PULL_SECONDS)

    def _pulled(self, source: _Source, call: Call) -> None:
        """Handle the end of a pull, quickly: this runs on a thread of grpc."""
        began, source.call = source.began, None
        now = self._clock.monotonic()
        try:
            received = self._connection.result_of(call).received_messages
        except PubSubNoAnswer:
            received = ()
        except PumpError as error:
            source.failure, source.again_at = error, now + source.wait
            source.wait = min(2 * source.wait, LONGEST_WAIT)
            self._changed.set()
            return
        source.wait, source.again_at = FIRST_WAIT, 0.0
        self._note_answer()
        with self._lock:
            sent = max(began, now - min(LONGEST_WAY_SECONDS, self._deadline_of(source) / 10))
            self._arrived.extend(_Arrived(source, each, sent, None) for each in received)
        self._changed.set()
        if received:
            self._look_later()

    # -- streaming

    def _new_stream(self) -> PubSubStream:
        source, rules = self._sources[0], self._subscription
        return PubSubStream(
            self._connection,
            source.name,
            most=max(STREAMED, 2 * rules.buffer_size, 2 * rules.in_flight),
            deadline=lambda: self._facts.deadline,
            here=self._streamed_here,
            came=self._streamed,
            ended=self._stream_ended,
            clock=self._clock,
        )

    def _streamed_here(self) -> int:
        with self._lock:
            return self._deliveries.count_of(self._names.channel, self._clock.monotonic())

    def _streamed(self, received: Sequence[Any]) -> None:
        """Messages have come. They are renewed from now on, with those in hand. On a thread of the stream's."""
        source, now = self._sources[0], self._clock.monotonic()
        sent = now - min(LONGEST_WAY_SECONDS, self._facts.deadline / 10)
        with self._lock:
            for each in received:
                delivery = self._delivery(source, each, sent)
                self._deliveries.add(delivery)
                self._arrived.append(_Arrived(source, each, sent, delivery))
        source.wait, source.again_at = FIRST_WAIT, 0.0
        self._note_answer()
        self._changed.set()
        self._look_later()

    def _stream_ended(self, error: PumpError | None) -> None:
        source = self._sources[0]
        if error is not None and not self._closed:
            source.failure, source.again_at = error, self._clock.monotonic() + source.wait
            source.wait = min(2 * source.wait, LONGEST_WAIT)
        self._changed.set()

    def _look_later(self) -> None:
        if not self._receiving and not self._closed:
            seen = self._receives
            self._clock.alarm(LATE_SECONDS, lambda: self._hand_back_late(seen))

    def _take(self, limit: int) -> Sequence[Message]:
        if not self._arrived and not self._due:
            return ()
        now, wall = self._clock.monotonic(), self._clock.wall()
        taken: list[Message] = []
        with self._lock:
            while self._due and len(taken) < limit and self._due[0][0] <= now:
                taken.append(heapq.heappop(self._due)[2])
            while self._arrived and len(taken) < limit:
                self._sort_in(self._arrived.popleft(), taken, now, wall)
        return taken

    def _sort_in(self, arrived: _Arrived, taken: list[Message], now: float, wall: float) -> None:
        """Sort a message into those to hand out, or those that wait until they are due; the lock is held."""
        delivery = arrived.delivery or self._delivery(arrived.source, arrived.received, arrived.sent)
        if delivery.lost or delivery.expires <= now:
            self._deliveries.remove(delivery)
            return  # nobody took it in time: it comes again
        message, due = self._message(arrived.received, delivery)
        left = due - wall
        if left > HERE_SECONDS:
            self._postpone(delivery, left)
            self._publish_anew(delivery, arrived.received.message, wall)
            return
        self._deliveries.add(delivery)
        if left > 0:
            heapq.heappush(self._due, (now + left, next(self._numbers), message))
        else:
            taken.append(message)

    def _delivery(self, source: _Source, received: Any, sent: float) -> PubSubDelivery:  # noqa: ANN401 - as protobuf has it
        return PubSubDelivery(
            received.ack_id,
            sent,
            self._deadline_of(source),
            longest=self._longest,
            name=source.name,
            retry=source.retry,
        )

    def _deadline_of(self, source: _Source) -> float:
        return self._facts.retry_deadline if source.retry else self._facts.deadline

    def _message(self, received: Any, delivery: PubSubDelivery) -> tuple[Message, float]:  # noqa: ANN401 - as protobuf has it
        raw = received.message
        attributes, body = dict(raw.attributes), raw.data
        identity, due, attempts = raw.message_id, 0.0, 0
        if delivery.retry:
            identity, due, attempts = copy_of(attributes)
            attributes, body = unpacked(attributes, body)
        header, fault = from_attributes(attributes, raw.ordering_key, self._destinations.topic, raw.message_id)
        deliveries = max(1, received.delivery_attempt)
        message = Message(
            header,
            body,
            identity=identity or raw.message_id,
            receipt=delivery,
            generation=self.generation,
            deliveries=deliveries,
            attempts=attempts,
            unexplained=0,
            lease_expires=delivery.expires,
            position=raw.message_id,
            raw_headers=MappingProxyType(attributes),
            fault=fault,
        )
        return message, due

    def _postpone(self, delivery: PubSubDelivery, delay: float) -> None:
        """Let the copy wait at Pub/Sub: its deadline ends when it is due, and so it comes again."""
        deadline = max(1, int(min(LONGEST_DEADLINE, delay, self._facts.retry_kept / 4)))
        self._send_later(self._names.retry, [delivery.ack_id], deadline, self._connection.timeout)

    def _publish_anew(self, delivery: PubSubDelivery, raw: Any, wall: float) -> None:  # noqa: ANN401 - as protobuf has it
        """Publish a copy again that has waited half as long as Pub/Sub keeps it, before Pub/Sub removes it."""
        age = wall - raw.publish_time.ToMicroseconds() / 1e6
        if age < self._facts.retry_kept / 2 or len(self._unawaited) >= MOST_ANEW:
            return
        copy = PUBSUB["PubsubMessage"](data=raw.data, attributes=raw.attributes)
        request = PUBSUB["PublishRequest"](topic=self._names.retry_topic, messages=[copy])
        call = self._begin("Publish", request, self._connection.timeout)
        if call is not None:
            call.add_done_callback(partial(self._published_anew, delivery))

    def _published_anew(self, delivery: PubSubDelivery, call: Call) -> None:
        """Acknowledge the old copy once the new one is confirmed. Runs on a thread of grpc."""
        try:
            self._connection.result_of(call)
        except PumpError as error:  # the old copy comes again, and is published then
            if not self._closed:
                log.warning(
                    "pubsub: a delayed copy for channel %s could not be published again, and is tried again: %s",
                    self._channel,
                    error,
                )
        else:
            self._acks.add(delivery)

    def _hand_back_late(self, seen: int) -> None:
        """Give back what has arrived if nobody has received since, so that other consumers get it."""
        if self._receives != seen or self._receiving or self._closed:
            return
        if self._stream is not None:
            if self._has_work():  # a handler is slow: what waits for it is renewed together with what it has
                self._look_later()
                return
            self._stream.stop()  # else they would come at once
            if self._stream.is_open:
                self._look_later()
        self._return_arrived()

    def _has_work(self) -> bool:
        with self._lock:
            waiting = sum(each.delivery is not None for each in self._arrived) + len(self._due)
            return len(self._deliveries) > waiting

    def _return_arrived(self) -> Sequence[Call]:
        """Give back the messages that no receive has returned."""
        ids: dict[str, list[str]] = {}
        with self._lock:
            for each in self._arrived:
                if each.delivery is None or self._deliveries.remove(each.delivery):
                    ids.setdefault(each.source.name, []).append(each.received.ack_id)
            self._arrived.clear()
            for _, _, message in sorted(self._due, key=lambda each: each[:2]):
                delivery: Any = message.receipt
                if self._deliveries.remove(delivery):
                    ids.setdefault(self._names.retry, []).append(delivery.ack_id)
            self._due.clear()
        calls = [self._send_later(name, some, 0, HAND_BACK_SECONDS) for name, some in ids.items()]
        return [call for call in calls if call is not None]

    def _send_later(self, name: str, ids: Sequence[str], deadline: int, timeout: float) -> Call | None:
        """Set a deadline, without waiting. If that fails, the messages come again when their leases end."""
        return self._begin("ModifyAckDeadline", deadline_request(name, ids, deadline), timeout)

    def _begin(self, method: str, request: Any, timeout: float) -> Call | None:  # noqa: ANN401 - as protobuf has it
        """Begin a request that nobody waits for; None if that is not possible now."""
        try:
            call = self._connection.begin(method, request, timeout)
        except PumpError as error:
            log.debug("pubsub: channel %s: %s", self._channel, error)
            return None
        self._unawaited.add(call)
        call.add_done_callback(self._unawaited.discard)
        return call

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        self._changed.set()

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """Acknowledge it within 20 ms, together with others; False with exactly-once delivery."""
        if self._facts.exactly_once:
            return False
        self._acknowledge_later(self._ours(message))
        return True

    def acknowledge(self, message: Message) -> None:
        """The message is done."""
        delivery = self._ours(message)
        if self._facts.exactly_once:
            self._acknowledge_now(delivery)
        else:
            self._acknowledge_later(delivery)

    def _ours(self, message: Message) -> PubSubDelivery:
        delivery = message.receipt
        if not isinstance(delivery, PubSubDelivery):
            raise LeaseLost(f"message {message.id} did not come from Pub/Sub")
        if delivery.lost:
            raise LeaseLost(
                f"message {message.id} of {self._channel} no longer belongs to this consumer: {delivery.lost}"
            )
        return delivery

    def _acknowledge_later(self, delivery: PubSubDelivery) -> None:
        with self._lock:
            if not self._deliveries.remove(delivery):
                raise LeaseLost(f"a message of {self._channel} was already settled")
        delivery.lost = "it was already settled"
        self._acks.add(delivery)

    def _acknowledge_now(self, delivery: PubSubDelivery) -> None:
        """Acknowledge, and wait for the answer; LeaseLost if it is known to have had no effect."""
        self._settle("Acknowledge", delivery, PUBSUB["AcknowledgeRequest"])

    def _settle(self, method: str, delivery: PubSubDelivery, request: Callable[..., Any], **fields: int) -> None:
        try:
            made = request(subscription=delivery.name, ack_ids=[delivery.ack_id], **fields)
            self._connection.call(method, made)
        except PubSubRefused as error:
            reason = error.reasons.get(delivery.ack_id, "")
            if reason and not is_final(reason):
                raise TransportError(f"{self._channel}: {reason}: {error}") from error
            self._forget(delivery, f"it came too late: {error}")
            raise LeaseLost(f"a message of {self._channel} no longer belongs to this consumer: {error}") from error
        self._forget(delivery, "it was already settled")

    def _forget(self, delivery: PubSubDelivery, why: str) -> None:
        with self._lock:
            self._deliveries.remove(delivery)
        delivery.lost = why

    # -- other verdicts

    def nack(self, message: Message) -> None:
        """Give it back at once, if the settings say so; else nothing is sent, and the channel holds the message."""
        if self._settings.release_on_nack:
            delivery = self._ours(message)
            self._acks.finish(self._connection.timeout)
            self._settle("ModifyAckDeadline", delivery, PUBSUB["ModifyAckDeadlineRequest"], ack_deadline_seconds=0)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Store a copy that comes to this channel alone after the delay; once that is confirmed, acknowledge it."""
        delivery = self._ours(message)
        if delivery.copied != self._names.retry_topic:
            wall = self._clock.wall()
            headers = {**message.header.headers, **copy_headers(message, attempts, wall)}
            header = message.header._replace(headers=headers)
            due = wall + min(delay, LONGEST_DELAY) if delay > 0 else 0.0
            copy = encode_copy(header, message.body, identity=message.identity, due=due)
            self._publish(self._names.retry_topic, copy)
            delivery.copied = self._names.retry_topic
        self._acknowledge_now(delivery)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store a dead letter; once that is confirmed, acknowledge the message."""
        delivery = self._ours(message)
        name = self._destinations.for_rejected(rejection.kind)
        if name is not None and delivery.copied != name:
            try:
                self._store_dead_letter(message, rejection, topic_name(self._settings.project, name))
            except (TransportError, SetupError):
                self._parking.park(message, rejection, self.requeue)
                raise
            delivery.copied = name
        self._acknowledge_now(delivery)
        if name is None:
            report_gone(log, message, self._channel, rejection)

    def _store_dead_letter(self, message: Message, rejection: Rejection, topic: str) -> None:
        """As much of it as Pub/Sub takes: with all of its provenance, with some, and then with a part of its body."""
        for each in LetterTries(
            log, message, self._channel, rejection, _letters(message, rejection), is_too_large=lambda _: False
        ):
            with each:
                self._publish(topic, each.letter)

    def _publish(self, topic: str, copy: Any) -> None:  # noqa: ANN401 - as protobuf has it
        """Store a copy. A topic or subscription that was deleted is created again, if the subscription says so."""
        try:
            self._publisher.publish(topic, copy)
        except PublishError as error:
            if not isinstance(error.__cause__, PubSubMissing) or self._subscription.missing != "create":
                raise
            log.warning("pubsub: %s: the topic or subscription was deleted, and is created again", error)
            self._ensure()
            self._publisher.publish(topic, copy)

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Make these available at once, in their old order; those that are lost are available already."""
        self._acks.finish(HAND_BACK_SECONDS)
        now = self._clock.monotonic()
        receipts = [each.receipt for each in messages]
        ours = [each for each in receipts if isinstance(each, PubSubDelivery) and not each.lost and each.expires > now]
        for name, portion in portions_by_name(ours):
            request = deadline_request(name, [each.ack_id for each in portion], 0)
            try:
                self._connection.call("ModifyAckDeadline", request, HAND_BACK_SECONDS)
            except PubSubRefused as error:  # the leases of some have ended meanwhile
                log.debug("pubsub: handing back to channel %s: %s", self._channel, error)
            for each in portion:
                self._forget(each, "it was given back")

    def extend(self, message: Message) -> None:
        """Renew its lease, and with it the leases of all others here that end soon: one request for a thousand."""
        delivery = self._ours(message)
        with self._renewing:
            now = self._clock.monotonic()
            if delivery.renewed <= now - 0.1 * self._lease or delivery.expires - now < self._lease / 2:
                with self._lock:
                    ending = self._deliveries.to_renew(now, now + 2 / 3 * self._lease)
                    ours = [each for each in ending if each is not delivery]
                if not delivery.lost:
                    self._renewals.renew([delivery, *ours])
        self._ours(message)
        message.lease_expires = delivery.expires

    def purge(self) -> int:
        """Acknowledge all messages that wait; those that consumers have stay theirs."""
        self._acks.finish(self._connection.timeout)
        return sum(map(self._purge, self._sources))

    def _purge(self, source: _Source) -> int:
        removed = 0
        while True:
            with self._lock:  # the messages of an earlier pull
                found: Sequence[Any] = [each.received for each in self._arrived if each.source is source]
                others = [each for each in self._arrived if each.source is not source]
                for each in self._arrived:
                    if each.source is source and each.delivery is not None:
                        self._deliveries.remove(each.delivery)
                self._arrived.clear()
                self._arrived.extend(others)
            if not found:
                found = self._pull_to_purge(source)
            if not found:
                return removed
            for portion in in_portions(found):
                request = PUBSUB["AcknowledgeRequest"](
                    subscription=source.name, ack_ids=[each.ack_id for each in portion]
                )
                self._connection.call("Acknowledge", request)
            removed += len(found)

    def _pull_to_purge(self, source: _Source) -> Sequence[Any]:
        request = PUBSUB["PullRequest"](subscription=source.name, max_messages=MOST_PULLED)
        try:
            return list(self._connection.call("Pull", request, PURGE_SECONDS).received_messages)
        except PubSubNoAnswer:
            return ()

    # -- ending

    def close(self) -> None:
        """Send what is pending, give back what no receive has returned, and disconnect."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        for source in self._sources:
            pull = source.call
            if pull is not None:
                pull.cancel()
        if self._stream is not None:
            self._stream.close(STREAM_ENDS_SECONDS)
        try:
            returning = self._return_arrived()
            self._acks.finish(CLOSE_SECONDS)
            for call in returning:
                self._connection.result_of(call, max(0.0, deadline - self._clock.monotonic()))
        except PumpError as error:
            log.debug("pubsub: closing channel %s: %s", self._channel, error)
        finally:
            self._acks.close()
            self._connection.close()
            self._copies.close()


def _letters(message: Message, rejection: Rejection) -> Iterator[tuple[Any, str]]:
    """The dead letters that Pub/Sub takes, and what is left out of each."""
    for header, body, left_out in _dead_letters(message, rejection):
        try:
            letter = encode(header, body)
        except ValueError:  # too much for attributes: the next one has less
            continue
        if letter.ByteSize() + ROOM <= LARGEST_REQUEST:
            yield letter, left_out


def _dead_letters(message: Message, rejection: Rejection) -> Iterator[tuple[Header, bytes, str]]:
    """Header, body and what is left out: first everything, then less and less. The last one always fits."""
    letter = message.header
    for letter in dead_letter_headers(message, rejection, (TOTAL_LIMIT, SHORT_LIMIT)):
        yield letter, message.body, ""
    yield from cut_letters(letter, message.body, LARGEST_REQUEST - 2 * ROOM)
    bare = Header(bounded_text(letter.id, SHORT_LIMIT), letter.topic, headers=letter.headers)
    yield bare, message.body, "of its header only the id is kept"
    yield from cut_letters(bare, message.body, LARGEST_REQUEST - 2 * ROOM)
