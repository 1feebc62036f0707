"""Sends the acknowledgements of one consumer together, and again if Pub/Sub did not take them."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from pump.clock import Clock
from pump.errors import PumpError
from pump.telemetry import log
from pump.transport_kit.ack_batch import AckBatch
from pump.transports.pubsub.connection import PUBSUB, Call, PubSubConnection, PubSubMissing, PubSubRefused
from pump.transports.pubsub.deliveries import PubSubDelivery, is_final, portions_by_name

RETRY_SECONDS: Final = 0.5
"""How long a failed acknowledgement waits before it is sent again."""


class PubSubAcks:
    """The pending acknowledgements. Any thread may use it; only `finish` waits."""

    def __init__(self, connection: PubSubConnection, channel: str, clock: Clock) -> None:
        self._connection: Final = connection
        self._channel: Final = channel
        self._clock: Final = clock
        self._batch: Final = AckBatch[str, PubSubDelivery](clock, self.flush, retry_seconds=RETRY_SECONDS)
        self._under_way: Final[set[Call]] = set()
        """The requests that were sent and are not answered yet."""

    def add(self, delivery: PubSubDelivery) -> None:
        """Acknowledge the delivery within 20 ms."""
        while not self._batch.add(delivery.ack_id, delivery):
            self.flush()

    def flush(self) -> None:
        """Send what is pending."""
        acks = self._batch.take()
        if acks:
            self._send(list(acks.values()))

    def _send(self, deliveries: Sequence[PubSubDelivery]) -> None:
        now = self._clock.monotonic()
        ours = [each for each in deliveries if each.expires > now]
        self._report_late(len(deliveries) - len(ours))
        for name, portion in portions_by_name(ours):
            request = PUBSUB["AcknowledgeRequest"](subscription=name, ack_ids=[each.ack_id for each in portion])
            try:
                call = self._connection.begin("Acknowledge", request)
            except PumpError:
                self._batch.put_back({each.ack_id: each for each in portion})
                continue
            self._under_way.add(call)
            call.add_done_callback(partial(self._acknowledged, portion))

    def _acknowledged(self, deliveries: Sequence[PubSubDelivery], call: Call) -> None:
        """Handle the end of a request, with an answer or an error. Runs on a thread of grpc."""
        again: Sequence[PubSubDelivery] = ()
        try:
            self._connection.result_of(call)
        except PubSubRefused as error:
            if error.reasons:
                refused = [each for each in deliveries if each.ack_id in error.reasons]
                again = [each for each in refused if not is_final(error.reasons[each.ack_id])]
                self._report_late(len(refused) - len(again))
            elif len(deliveries) == 1:
                self._report_late(1)
            else:  # one void id must not prevent the others from being acknowledged
                middle = len(deliveries) // 2
                self._send(deliveries[:middle])
                self._send(deliveries[middle:])
        except PubSubMissing:
            self._report_late(len(deliveries))  # with the subscription, all of its messages are gone
        except PumpError as error:
            log.debug("pubsub: acknowledging on channel %s: %s", self._channel, error)
            again = deliveries
        if again:
            self._batch.put_back({each.ack_id: each for each in again})
        self._under_way.discard(call)

    def _report_late(self, count: int) -> None:
        if count:
            text = "pubsub: %d acknowledgements on channel %s came too late: these messages come again"
            log.warning(text, count, self._channel)

    def finish(self, timeout: float) -> None:
        """Send what is pending, and wait until it is answered."""
        self.flush()
        deadline = self._clock.monotonic() + timeout
        for call in list(self._under_way):
            try:
                self._connection.result_of(call, max(0.0, deadline - self._clock.monotonic()))
            except PumpError as error:
                log.debug("pubsub: acknowledging on channel %s: %s", self._channel, error)

    def close(self) -> None:
        """Send nothing more; messages whose acknowledgements are pending come again."""
        self._batch.close()
        count = len(self._batch.take())
        if count:
            text = "pubsub: channel %s: %d acknowledgements could not be sent: these messages come again"
            log.warning(text, self._channel, count)
