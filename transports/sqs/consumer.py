"""A consumer of one queue. Most of its verdicts change the time for which a message is hidden."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast

from pump.clock import Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, PumpError, SetupError, TransportError
from pump.message import FIRST_FAILURE_HEADER, Message
from pump.subscription import Subscription
from pump.transport_kit.ack_batch import AckBatch
from pump.transport_kit.call_threads import CallThreads
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.parking import Parking
from pump.transport_kit.settings import finite_seconds
from pump.transports.sqs.attributes import Carried, Parcel, Unpacked, pack, unpack
from pump.transports.sqs.client import MOST_ENTRIES, batches, errors
from pump.transports.sqs.dead_letters import SqsDeadLetters
from pump.transports.sqs.leases import LeaseRounds
from pump.transports.sqs.polling import CLOSE_SECONDS, SHORT_POLL_SECONDS, SqsPoller
from pump.transports.sqs.producer import LONGEST_DELAY_SECONDS, due_and_delay, order_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pump.transports.sqs.transport import SqsTransport

log: Final = logging.getLogger("pump.transports.sqs")

LONGEST_HIDDEN_SECONDS: Final = 43_200 - 60
"""How long a message can stay hidden after it was received, minus a minute for clocks and requests."""
RETRY_SECONDS: Final = 1.0
"""How long to wait before acknowledgements that could not be sent are sent again."""
ANSWER_SECONDS: Final = 1.0
"""How long a stop waits for the broker's answer. The request itself goes on while the process lives."""
LAST_SECONDS: Final = 0.5
MANY: Final = 64


class SqsReceipt:
    """One delivery."""

    __slots__ = ("attributes", "carried", "copied", "expires", "handle", "received", "sent", "settled")

    def __init__(
        self,
        handle: str,
        carried: Carried,
        attributes: Mapping[str, Any],
        *,
        received: float,
        sent: float,
        expires: float,
    ) -> None:
        self.handle: Final = handle
        self.carried: Final = carried
        self.attributes: Final = attributes
        self.received: Final = received
        """When it was received, on the wall clock; `sent` is when it was sent to the queue."""
        self.sent: Final = sent
        self.expires = expires
        """When its lease ends, on the monotonic clock. Several messages may be of one delivery: it may be held here."""
        self.copied = ""
        """The URL of the queue where a confirmed copy of it is, if it could not be deleted yet."""
        self.settled = False


class SqsConsumer:
    """One consumer of one queue. One thread receives; any thread settles, renews or interrupts."""

    def __init__(self, transport: "SqsTransport", subscription: Subscription) -> None:
        self.generation: Final = transport.generation
        self._transport: Final = transport
        self._clock: Final = transport.clock
        self._fifo: Final = transport.fifo
        self._destinations: Final = transport.queues.destinations(subscription)
        self._max_attempts: Final = subscription.max_attempts
        self._parking: Final = Parking(
            log, self._destinations.channel, None if self._fifo else subscription.max_attempts
        )
        lease = transport.lease if subscription.lease is None else finite_seconds("sqs", "lease", subscription.lease)
        self._lease: Final = ceil(min(lease, LONGEST_HIDDEN_SECONDS))
        self._poll: Final = ceil(min(transport.poll, 20))
        self._queue: Final = transport.queues.open(subscription)
        self.broker_limit: Final = self._queue.limit
        self._longest_hidden: Final = min(LONGEST_HIDDEN_SECONDS, self._queue.retention / 4)
        self._dead_letters: Final = SqsDeadLetters(transport, subscription, self._destinations)
        self._rounds: Final = LeaseRounds[str](self._lease, MOST_ENTRIES)
        self._leased: Final[dict[str, SqsReceipt]] = {}
        """The receipts without a verdict, by their handles, to be renewed together."""
        self._most_leased = MANY
        self._lock: Final = threading.Lock()
        self._acks: Final = AckBatch[str, str](self._clock, self._flush, retry_seconds=RETRY_SECONDS)
        self._hangs = False
        """Whether the broker did not answer in time when messages were to be given back."""
        self._closed = False
        self._poller: Final = SqsPoller(
            self._fetch,
            self._give_back,
            self._clock,
            pause_seconds=0.0 if self._poll else SHORT_POLL_SECONDS,
        )

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are there, or the first to come within `timeout` seconds, or none."""
        return self._poller.take(limit, timeout)

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._poller.interrupt()

    def _fetch(self, limit: int) -> Sequence[Message]:
        """The messages that one request brings. Pending acknowledgements are sent before it."""
        with suppress(PumpError):  # they were put back into the batch, and are sent again
            self._flush()
        began = self._clock.monotonic()
        with errors(f"receiving from {self._queue.name}"):
            reply = self._transport.clients.sqs(self._poll).receive_message(
                QueueUrl=self._queue.url,
                MaxNumberOfMessages=min(limit, MOST_ENTRIES),
                WaitTimeSeconds=self._poll,
                VisibilityTimeout=self._lease,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"],
            )
        raw = reply.get("Messages", ())
        if not raw:
            return ()
        now, wall = self._clock.monotonic(), self._clock.wall()
        messages = [message for each in raw if (message := self._read(each, began, wall)) is not None]
        if now - began > self._lease / 4:  # their leases began at an unknown moment of the wait
            messages = self._renewed(messages)
        receipts = {each.handle: each for each in (cast("SqsReceipt", message.receipt) for message in messages)}
        with self._lock:
            self._leased.update(receipts)
        self._rounds.begins([*receipts], now)
        self._forget_lost(now)
        return messages

    def _forget_lost(self, now: float) -> None:
        """Forget messages whose leases ended without a verdict. It looks for them when the number has doubled."""
        if len(self._leased) < self._most_leased:
            return
        with self._lock:
            lost = [handle for handle, receipt in self._leased.items() if receipt.expires <= now]
            for handle in lost:
                del self._leased[handle]
            self._most_leased = 2 * len(self._leased) + MANY
        for handle in lost:
            self._rounds.ends(handle)

    def _read(self, raw: Mapping[str, Any], began: float, wall: float) -> Message | None:
        """The received message; None if it is not due yet, and was hidden or sent again."""
        system: Mapping[str, str] = raw.get("Attributes", {})
        message_id = raw.get("MessageId", "")
        found = unpack(raw.get("Body", ""), raw.get("MessageAttributes", {}), self._destinations.topic, message_id)
        carried = found.carried
        sent = int(system.get("SentTimestamp", 0)) / 1000 or wall
        receipt = SqsReceipt(
            raw["ReceiptHandle"], carried, found.attributes, received=wall, sent=sent, expires=began + self._lease
        )
        if carried.due and not self._fifo:  # a FIFO queue has no delays, so no pump has written this
            self._send_on(receipt, found, wall)
            return None
        deliveries = carried.before + int(system.get("ApproximateReceiveCount", 1))
        header = found.header._replace(topic=carried.topic) if carried.topic else found.header
        return Message(
            header,
            found.body,
            identity=carried.identity or message_id,
            receipt=receipt,
            generation=self.generation,
            deliveries=deliveries,
            attempts=carried.attempts,
            # A FIFO queue also counts deliveries that were given back, so its count means nothing.
            unexplained=0 if self._fifo else deliveries - 1,
            lease_expires=receipt.expires,
            partition=system.get("MessageGroupId") if self._fifo else None,
            position=message_id,
            raw_headers=found.attributes,
            fault=found.fault,
        )

    def _renewed(self, messages: Sequence[Message]) -> list[Message]:
        """The messages whose leases could be renewed; the others come again."""
        began = self._clock.monotonic()
        failures = self._set_visibility([cast("SqsReceipt", each.receipt) for each in messages], self._lease)
        kept = [each for place, each in enumerate(messages) if place not in failures]
        for message in kept:
            message.lease_expires = cast("SqsReceipt", message.receipt).expires = began + self._lease
        return kept

    # -- what is not due yet

    def _send_on(self, receipt: SqsReceipt, found: Unpacked, now: float) -> None:
        """Hide a message that is not due yet, or send it again so that it comes exactly when it is due.

        The hiding spoils its count of deliveries, so the copy that comes when it is due has a new one.
        """
        left = found.carried.due - now
        try:
            if left > LONGEST_DELAY_SECONDS and now - receipt.sent < self._queue.retention / 4:
                hide = min(left - LONGEST_DELAY_SECONDS / 2, self._longest_hidden)
                self._change_visibility(receipt, ceil(hide))
                return
            due, delay = due_and_delay(left, now)
            parcel = pack(found.header, found.body, found.carried._replace(due=due), found.attributes)
            self._replace(receipt, parcel, found.header.key, delay)
        except PumpError as error:
            text = (
                "sqs: message %s of %s could not be hidden until it is due; this is tried again when its lease ends: %s"
            )
            log.warning(text, found.header.id, self._queue.name, error)

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """Acknowledge it within 20 ms, together with others; False if those have to be sent first."""
        receipt = _unsettled(message)
        if not self._acks.add(receipt.handle, message.id):
            return False
        self._end(receipt)
        return True

    def acknowledge(self, message: Message) -> None:
        """The message is done; its acknowledgement is sent together with others."""
        while not self.acknowledge_soon(message):
            self._flush()

    def _flush(self) -> None:
        """Delete all messages with pending acknowledgements, also those that another consumer has left."""
        acks = self._acks.take(self._transport.take_unsent(self._queue.url))
        if not acks:
            return
        handles = list(acks)
        failures = self._batch("delete_message_batch", [{"ReceiptHandle": each} for each in handles], "acknowledging")
        late = [acks[handles[place]] for place, error in failures.items() if isinstance(error, LeaseLost)]
        if late:
            text = "sqs: acknowledgements on %s came too late: these messages come again: %s"
            log.warning(text, self._queue.name, ", ".join(late))
        again = {handles[place]: error for place, error in failures.items() if not isinstance(error, LeaseLost)}
        if again:
            self._acks.put_back({handle: acks[handle] for handle in again})
            if self._closed:  # it may have been closed during the request, and then nothing else would send them
                self._leave_unsent()
            raise next(iter(again.values()))

    # -- other verdicts

    def nack(self, message: Message) -> None:
        """Make it visible at once. The broker counts the delivery; the pump knows that no attempt was spent."""
        receipt = _unsettled(message)
        self._renew_alone(receipt)
        self._change_visibility(receipt, 0)
        self._end(receipt)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Hide it for the delay. One that the broker cannot hide for that long is sent again, and then deleted."""
        receipt = _unsettled(message)
        self._renew_alone(receipt)
        is_copied = receipt.copied == self._queue.url
        if self._fifo or (self._can_be_hidden(receipt, delay) and not self._is_spent(attempts) and not is_copied):
            self._change_visibility(receipt, min(ceil(delay), LONGEST_HIDDEN_SECONDS))
        else:
            due, seconds = due_and_delay(delay, self._clock.wall())
            carried = Carried(message.identity, attempts, due=due, topic=receipt.carried.topic)
            self._replace(receipt, self._packed(message, carried), message.header.key, seconds)
        self._end(receipt)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store the dead letter, and once that is confirmed, delete the message."""
        receipt = _unsettled(message)
        url = self._dead_letters.url_for(rejection)
        if url is not None and receipt.copied != url:
            try:
                self._dead_letters.store(url, message, receipt.attributes, rejection)
            except (TransportError, SetupError) as error:
                self._parking.park(message, rejection, self.requeue)
                raise _retriable(error) from error
            receipt.copied = url
        self._delete(receipt)
        self._end(receipt)
        if url is None:
            report_gone(log, message, self._destinations.channel, rejection)

    def extend(self, message: Message) -> None:
        """Renew its lease, and those of other messages here that need it soon: ten in one request."""
        receipt = _unsettled(message)
        began = self._clock.monotonic()
        together = self._rounds.asked(receipt.handle, began)
        if not together:  # it was renewed together with another
            message.lease_expires = receipt.expires
            return
        with self._lock:
            if not receipt.settled:
                self._leased[receipt.handle] = receipt
            receipts = [receipt, *(self._leased[handle] for handle in together[1:] if handle in self._leased)]
        if self._clock.wall() - receipt.received > LONGEST_HIDDEN_SECONDS - self._lease:
            self._end(receipt)
            raise LeaseLost(
                f"message {message.id} was received twelve hours ago: the broker renews a lease for no longer than that"
            )
        failures = self._set_visibility(receipts, self._lease)
        kept = [each for place, each in enumerate(receipts) if place not in failures]
        for each in kept:
            each.expires = began + self._lease
        self._rounds.renewed([each.handle for each in kept], began)
        if 0 in failures:
            if isinstance(failures[0], LeaseLost):
                self._end(receipt)
            raise failures[0]
        message.lease_expires = receipt.expires

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Make these available at once, as if they had not been delivered.

        A FIFO queue keeps them in their places. A standard queue would count the delivery, which no handler has seen,
        so each is sent again with its earlier count, and then deleted.
        """
        self._answered_in_time(lambda: self._give_back(messages))

    def _give_back(self, messages: Sequence[Message]) -> None:
        messages = [each for each in messages if not cast("SqsReceipt", each.receipt).settled]
        with suppress(PumpError):  # they were put back into the batch, and are sent again
            self._flush()
        left = messages if self._fifo else self._given_back_anew(messages)
        receipts = [cast("SqsReceipt", each.receipt) for each in left]
        for receipt in receipts:
            self._renew_alone(receipt)
        failures = self._set_visibility(receipts, 0)
        for receipt in receipts:
            self._end(receipt)
        for error in failures.values():
            if not isinstance(error, LeaseLost):
                raise error

    def _given_back_anew(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Send copies of these messages and delete the originals; returns the messages that could not be sent."""
        parcels = [self._uncounted(each) for each in messages]
        fit = [place for place, parcel in enumerate(parcels) if parcel is not None]
        left = [each for place, each in enumerate(messages) if place not in set(fit)]
        for begin in range(0, len(fit), MOST_ENTRIES):
            places = fit[begin : begin + MOST_ENTRIES]
            some = [messages[place] for place in places]
            entries = [cast("Parcel", parcels[place]).entry for place in places]
            if sum(cast("Parcel", parcels[place]).size for place in places) > self._transport.largest_message:
                left.extend(some)
                continue
            failures = self._batch("send_message_batch", entries, "giving back")
            left.extend(each for place, each in enumerate(some) if place in failures)
            stored = [cast("SqsReceipt", each.receipt) for place, each in enumerate(some) if place not in failures]
            for receipt in stored:
                self._end(receipt)
            self._batch("delete_message_batch", [{"ReceiptHandle": each.handle} for each in stored], "giving back")
        return left

    def _uncounted(self, message: Message) -> Parcel | None:
        """A copy with the count from before this delivery; None if that is not possible."""
        if message.fault:
            return None
        seen_here = message.attempts - message.carried
        before = max(0, message.unexplained - max(0, seen_here))
        carried = Carried(
            message.identity, message.attempts, before, topic=cast("SqsReceipt", message.receipt).carried.topic
        )
        parcel = self._packed(message, carried)
        return parcel if parcel.size <= self._transport.largest_message else None

    def purge(self) -> int:
        """Remove all messages. The broker allows this once a minute; the returned number is approximate."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"]
        with suppress(PumpError):
            self._flush()
        with errors(f"purging {self._queue.name}"):
            client = self._transport.clients.sqs()
            counts = client.get_queue_attributes(QueueUrl=self._queue.url, AttributeNames=names).get("Attributes", {})
            client.purge_queue(QueueUrl=self._queue.url)
        return sum(int(counts.get(name, 0)) for name in names)

    def count_waiting(self) -> int:
        """About how many messages nobody has; the broker may notice new ones late."""
        name = "ApproximateNumberOfMessages"
        with errors(f"counting the messages of {self._queue.name}"):
            client = self._transport.clients.sqs()
            reply = client.get_queue_attributes(QueueUrl=self._queue.url, AttributeNames=[name])
        return int(reply.get("Attributes", {}).get(name, 0))

    # -- ending

    def close(self) -> None:
        """Send pending acknowledgements; other consumers in this process send those that fail."""
        if self._closed:
            return
        self._closed = True
        self._poller.close(0.0 if self._hangs else CLOSE_SECONDS)
        self._acks.close()
        with suppress(PumpError):
            self._answered_in_time(self._flush, LAST_SECONDS if not self._hangs else 0.0)
        self._leave_unsent()

    def _leave_unsent(self) -> None:
        unsent = self._acks.take()
        if unsent:
            text = (
                "sqs: channel %s: %d acknowledgements could not be sent: the next consumer in this process sends them"
            )
            log.warning(text, self._queue.name, len(unsent))
            self._transport.leave_unsent(self._queue.url, unsent)

    def _answered_in_time(self, call: Any, seconds: float = ANSWER_SECONDS) -> None:  # noqa: ANN401 - a function
        """Call this on a thread, and wait at most this long: a stop must not wait for a broker that hangs."""
        ended, thread = Signal(), CallThreads(1, "pump-sqs-give-back")
        future: Future[None] = thread.submit(call)
        thread.close()
        future.add_done_callback(lambda _: ended.set())
        if not self._clock.wait(ended, seconds):
            self._hangs = True
            raise TransportError(f"sqs: {self._queue.name}: the broker did not answer within {seconds:g} s")
        future.result()

    # -- requests

    def _batch(self, name: str, entries: Sequence[Mapping[str, Any]], doing: str) -> Mapping[int, PumpError]:
        if not entries:
            return {}
        request = getattr(self._transport.clients.sqs(), name)
        return batches(entries, request, f"{doing} on {self._queue.name}", QueueUrl=self._queue.url)

    def _set_visibility(self, receipts: Sequence[SqsReceipt], seconds: int) -> Mapping[int, PumpError]:
        entries = [{"ReceiptHandle": each.handle, "VisibilityTimeout": seconds} for each in receipts]
        return self._batch("change_message_visibility_batch", entries, "changing the visibility")

    def _change_visibility(self, receipt: SqsReceipt, seconds: int) -> None:
        with errors(f"changing the visibility on {self._queue.name}"):
            self._transport.clients.sqs().change_message_visibility(
                QueueUrl=self._queue.url, ReceiptHandle=receipt.handle, VisibilityTimeout=seconds
            )

    def _delete(self, receipt: SqsReceipt) -> None:
        with errors(f"deleting from {self._queue.name}"):
            self._transport.clients.sqs().delete_message(QueueUrl=self._queue.url, ReceiptHandle=receipt.handle)

    def _replace(self, receipt: SqsReceipt, parcel: Parcel, key: str | None, delay: int) -> None:
        """Send a message to this queue, and once that is confirmed, delete the one that it replaces."""
        if receipt.copied != self._queue.url:
            with errors(f"storing a copy in {self._queue.name}"):
                self._transport.clients.sqs().send_message(
                    QueueUrl=self._queue.url, DelaySeconds=delay, **parcel.entry, **order_of(key, fifo=self._fifo)
                )
            receipt.copied = self._queue.url
        self._delete(receipt)

    # -- what is known of a message

    def _packed(self, message: Message, carried: Carried) -> Parcel:
        header = message.header
        if carried.attempts and FIRST_FAILURE_HEADER not in header.headers:
            header = header._replace(headers={**header.headers, FIRST_FAILURE_HEADER: f"{self._clock.wall():.3f}"})
        return pack(header, message.body, carried, cast("SqsReceipt", message.receipt).attributes)

    def _can_be_hidden(self, receipt: SqsReceipt, delay: float) -> bool:
        """Whether the broker can hide it for that long, without removing it meanwhile because of its age."""
        now = self._clock.wall()
        is_short = now - receipt.received + delay <= LONGEST_HIDDEN_SECONDS
        return is_short and now - receipt.sent + delay <= self._queue.retention * 3 / 4

    def _is_spent(self, attempts: int) -> bool:
        return self._max_attempts is not None and attempts >= self._max_attempts

    def _end(self, receipt: SqsReceipt) -> None:
        """Note that it is settled, and renew it no more."""
        receipt.settled = True
        self._renew_alone(receipt)

    def _renew_alone(self, receipt: SqsReceipt) -> None:
        """Do not renew it together with others any more: that would undo the verdict that is under way."""
        self._rounds.ends(receipt.handle)
        with self._lock:
            self._leased.pop(receipt.handle, None)


def _unsettled(message: Message) -> SqsReceipt:
    receipt = cast("SqsReceipt", message.receipt)
    if receipt.settled:
        raise LeaseLost(f"message {message.id} was already settled")
    return receipt


def _retriable(error: PumpError) -> PumpError:
    """The error with which the rejection is tried again: a missing permission may be given meanwhile."""
    if isinstance(error, SetupError):
        return PublishError(str(error), sent=False)
    return error
