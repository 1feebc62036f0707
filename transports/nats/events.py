"""The events about redeliveries from which a router makes its metrics. Their labels have few different values."""

import asyncio
from collections.abc import Mapping
from typing import Final

import nats.errors

from pump.errors import DeferMessageAction, DontAckAction, MessageRefused, PublishError, TransportError
from pump.message import Message
from pump.settling import Reject, Requeue
from pump.telemetry import Telemetry
from pump.transports.nats.connection import log
from pump.transports.nats.consumer import NatsReceipt
from pump.transports.nats.headers import correlation_ids
from pump.transports.nats.subscription import TENANT_REFUSED
from pump.verdict import EXHAUSTED, PROCESS_DIED

SOURCES: Final[Mapping[str, str]] = {
    TENANT_REFUSED: "tenant_validation",
    "backoff": "backoff",
    "backpressure": "backpressure",
    "ack_error": "ack_failure",
    "nak_error": "nak_failure",
    "processing_timeout": "processing_timeout",
    "publish_error": "publish_failure",
    "nats_disconnect": "nats_disconnect",
    "maxdeliver_exhausted": "maxdeliver_exhausted",
}
"""The source of a redelivery for each reason; for any other reason the source is the handler."""

_REASONS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((DeferMessageAction,), "backoff"),
    ((DontAckAction,), "backpressure"),
    ((PublishError,), "publish_error"),
    ((TransportError, nats.errors.ConnectionClosedError, nats.errors.ConnectionReconnectingError), "nats_disconnect"),
    ((TimeoutError, asyncio.TimeoutError), "processing_timeout"),
)
_EXHAUSTED: Final = {EXHAUSTED: "maxdeliver_exhausted", TENANT_REFUSED: TENANT_REFUSED, PROCESS_DIED: "process_died"}
"""The reasons for a rejection that end a message's attempts, and their names in the metric."""


class NatsEvents:
    """Listens to the pumps' events, and sends the same listeners further events about messages from NATS."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry: Final = telemetry

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Receive one event."""
        message = fields.get("message")
        if not isinstance(message, Message) or not isinstance(message.receipt, NatsReceipt):
            return
        if event == "not_acknowledged":
            self._not_acknowledged(message, message.receipt, fields.get("verdict"))
        elif event == "nack":
            self._redelivery(message, "backpressure")
        elif event == "settle_failed":
            self._redelivery(message, "ack_error" if fields.get("cause") is None else "nak_error")

    def _not_acknowledged(self, message: Message, receipt: NatsReceipt, verdict: object) -> None:
        if isinstance(verdict, Requeue):
            self._redelivery(message, reason_for(verdict.error))
        elif isinstance(verdict, Reject) and verdict.rejection.reason in _EXHAUSTED:
            rejection = verdict.rejection
            reason = _EXHAUSTED[rejection.reason]
            cause = reason_for(rejection.error) if rejection.reason == EXHAUSTED else reason
            self._telemetry.tell(
                "router_jetstream_maxdeliver_exhausted_total",
                reason=reason,
                source=source_of(cause),
                delivery_count=message.deliveries,
                max_deliver=receipt.consumer.max_attempts,
                exemplar=correlation_ids(message.header.headers),
            )

    def _redelivery(self, message: Message, reason: str) -> None:
        ids, source = correlation_ids(message.header.headers), source_of(reason)
        log.info(
            "Message redelivery requested: %s (message %s, delivery %d)",
            reason,
            message.id,
            message.deliveries,
            extra={
                "assignment_id": ids.get("assignment_id"),
                "request_id": ids.get("request_id"),
                "reason": reason,
                "source": source,
                "delivery_count": message.deliveries,
                "msg_id": message.id,
            },
        )
        self._telemetry.tell("router_jetstream_redelivery_total", reason=reason, source=source, exemplar=ids)


def reason_for(error: BaseException | None) -> str:
    """Why a message comes again: one of a few words, for a metric's label."""
    if error is None:
        return "requested"
    if isinstance(error, MessageRefused):
        return TENANT_REFUSED if str(error) == TENANT_REFUSED else "undecodable"
    return next((reason for types, reason in _REASONS if isinstance(error, types)), "handler_error")


def source_of(reason: str) -> str:
    """The source of a redelivery with this reason."""
    return SOURCES.get(reason, "handler")
