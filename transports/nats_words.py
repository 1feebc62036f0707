"""What headers say under several spellings, and what a failure is called where failures are counted. Pure."""

import asyncio
from collections.abc import Mapping
from typing import Final

import nats.errors

from pump.errors import (
    DeferMessageAction,
    DontAckAction,
    PublishError,
    Refused,
    TransportError,
)

TENANT_REFUSED: Final = "tenant_validation_failed"
EXHAUSTED: Final = "maxdeliver_exhausted"
ACK_ERROR: Final = "ack_error"
NAK_ERROR: Final = "nak_error"

SOURCES: Final[Mapping[str, str]] = {
    TENANT_REFUSED: "tenant_validation",
    "backoff": "backoff",
    "backpressure": "backpressure",
    ACK_ERROR: "ack_failure",
    NAK_ERROR: "nak_failure",
    "processing_timeout": "processing_timeout",
    "publish_error": "publish_failure",
    "nats_disconnect": "nats_disconnect",
    EXHAUSTED: EXHAUSTED,
}
"""Where the cause of a redelivery lies, by its reason; any other reason is the handler's own."""
HANDLER: Final = "handler"

_REASONS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((DeferMessageAction,), "backoff"),
    ((DontAckAction,), "backpressure"),
    ((PublishError,), "publish_error"),
    ((TransportError, nats.errors.ConnectionClosedError, nats.errors.ConnectionReconnectingError), "nats_disconnect"),
    ((TimeoutError, asyncio.TimeoutError), "processing_timeout"),
)


def reason_for(error: BaseException | None) -> str:
    """Why a message comes again, in one of a few words, fit for a label."""
    if error is None:
        return "requested"
    if isinstance(error, Refused):
        return TENANT_REFUSED if str(error) == TENANT_REFUSED else "undecodable"
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), "handler_error")


def source_of(reason: str) -> str:
    """Where the cause lies."""
    return SOURCES.get(reason, HANDLER)


def said(headers: Mapping[str, object], name: str) -> str | None:
    """A header's value, spelt with - or _, with or without x- in front, in any case; None where it is not there."""
    for each, value in headers.items():
        if each.lower().replace("-", "_").removeprefix("x_") == name:
            return str(value)
    return None


def ids(headers: Mapping[str, object]) -> dict[str, str]:
    """The assignment and the request that a message is about: for logs and exemplars, never for labels."""
    found = {name: said(headers, name) for name in ("assignment_id", "request_id")}
    return {name: value for name, value in found.items() if value is not None}
