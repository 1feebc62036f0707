"""Renews the leases of a consumer's deliveries: many in one request, and each by itself if one of them is void."""

import threading
from collections.abc import Sequence
from typing import Final

from pump.clock import Clock, Signal
from pump.errors import PumpError, TransportError
from pump.telemetry import log
from pump.transports.pubsub.connection import PubSubConnection, PubSubNoAnswer, PubSubRefused, deadline_request
from pump.transports.pubsub.deliveries import PubSubDeliveries, PubSubDelivery, in_portions

RENEW_AGAIN_SECONDS: Final = (0.05, 0.2)


class PubSubRenewals:
    """Renews deliveries. `lock` guards them."""

    def __init__(
        self,
        connection: PubSubConnection,
        deliveries: PubSubDeliveries,
        lock: threading.Lock,
        clock: Clock,
        *,
        channel: str,
        lease: float,
    ) -> None:
        self._connection: Final = connection
        self._deliveries: Final = deliveries
        self._lock: Final = lock
        self._clock: Final = clock
        self._channel: Final = channel
        self._lease: Final = lease

    def renew(self, deliveries: Sequence[PubSubDelivery]) -> None:
        """Renew these, in one request for each subscription and lease. A refused one does not stop the others."""
        now = self._clock.monotonic()
        groups: dict[tuple[str, int], list[PubSubDelivery]] = {}
        for each in deliveries:
            deadline = max(1, min(round(self._lease), int(each.until - now)))
            groups.setdefault((each.name, deadline), []).append(each)
        failed: PumpError | None = None
        for (name, deadline), group in groups.items():
            for portion in in_portions(group):
                try:
                    self._renew_soon(portion, name, deadline)
                except TransportError as error:
                    failed = failed or error
        if failed is not None and deliveries[0].renewed < now:
            raise failed

    def _renew_soon(self, portion: Sequence[PubSubDelivery], name: str, deadline: int) -> None:
        """Renew at once again after an answer that it failed: the lease may end before the next renewal."""
        for wait in RENEW_AGAIN_SECONDS:
            try:
                self._renew_portion(portion, name, deadline)
            except PubSubNoAnswer:
                raise
            except TransportError as error:
                log.debug("pubsub: renewing on channel %s: %s", self._channel, error)
                self._clock.wait(Signal(), wait)
            else:
                return
        self._renew_portion(portion, name, deadline)

    def _renew_portion(self, portion: Sequence[PubSubDelivery], name: str, deadline: int) -> None:
        now = self._clock.monotonic()
        refused: set[str] = set()
        try:
            request = deadline_request(name, [each.ack_id for each in portion], deadline)
            self._connection.call("ModifyAckDeadline", request)
        except PubSubRefused as error:
            if not error.reasons and len(portion) > 1:
                middle = len(portion) // 2
                self._renew_portion(portion[:middle], name, deadline)
                self._renew_portion(portion[middle:], name, deadline)
                return
            reasons = error.reasons or {portion[0].ack_id: f"PERMANENT_FAILURE: {error}"}
            refused = set(reasons)
            with self._lock:
                self._deliveries.refused(reasons)
        with self._lock:
            kept = [each for each in portion if each.ack_id not in refused]
            self._deliveries.renewed(kept, now, deadline)
