"""Writes and reads our headers in Service Bus messages, and makes copies that keep what other programs wrote."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast
from uuid import UUID, uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from pump.errors import LeaseLost
from pump.message import ATTEMPTS_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Message
from pump.transport_kit.header_texts import count_of, kind_of, time_of
from pump.transports.servicebus.client_internals import sendable_number
from pump.transports.servicebus.entities import DEAD

PREFIX: Final = "pump-x-"
"""Stands before the name of a sender's header that equals one of ours."""
VERSION: Final = "pump-version"
KIND: Final = "pump-kind"
KEY: Final = "pump-key"
TIME: Final = "pump-time"
CONTENT_TYPE: Final = "pump-content-type"
IDENTITY: Final = "pump-identity"
"""On a copy of a message: the identity of the original, which the copy keeps."""
ID: Final = "pump-id"
"""The id that the sender gave. A copy has another one: a queue with duplicate detection would drop it."""
OURS: Final = frozenset({VERSION, KIND, KEY, TIME, CONTENT_TYPE, IDENTITY, ID, ATTEMPTS_HEADER})
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
LONGEST_SAID: Final = 4096
"""The most characters of a dead letter's reason, and of its description."""
LONGEST_ID: Final = 128
KEYLESS: Final = "pump-no-key-"
"""How the session of a message without a key begins."""
SCHEDULED: Final = b"x-opt-scheduled-enqueue-time"
PARTITION_KEY: Final = b"x-opt-partition-key"

_DEFAULT_TYPE: Final = "application/json"


class LockReceipt:
    """The transport's handle on one delivery."""

    __slots__ = ("copied", "raw", "settled")

    def __init__(self, raw: ServiceBusReceivedMessage) -> None:
        self.raw: Final = raw
        self.settled = False
        """Whether it was settled. Azure's error for a second settlement looks like a lost lock."""
        self.copied = ""
        """The queue that has a copy of it, so that trying a verdict again stores no second one."""


class Said(NamedTuple):
    """The texts of a dead letter that Azure keeps."""

    reason: str
    description: str


# -- reading


def read_message(
    raw: ServiceBusReceivedMessage,
    *,
    queue: str,
    topic: str,
    generation: int,
    lease_expires: float | None,
    session: str | None = None,
) -> Message:
    """The message of a delivery. If it cannot be read, its fault says why. `session` is the one it was received in."""
    annotated = raw.raw_amqp_message
    headers, ours, others = _split(annotated.application_properties or {})
    body, fault = _body(annotated)
    deliveries = (raw.delivery_count or 0) + 1
    said = _said(headers)
    if said is not None and queue.lower().endswith(DEAD):
        deliveries = 1  # Azure's count goes on from that of the queue
    if session is not None:
        deliveries = 1  # Azure does not count the deliveries of a session that was closed or cut off
    if said is not None:
        headers = {**{name: text for name, text in headers.items() if name not in {REASON, DESCRIPTION}}, **said}
    identity = ours.get(IDENTITY) or f"{queue}/{raw.sequence_number}"
    fields: dict[str, Any] = {}
    attempts = 0
    try:
        fields = _fields(ours)
        attempts = count_of(ATTEMPTS_HEADER, ours.get(ATTEMPTS_HEADER, "0"))
    except ValueError as error:
        fault = fault or str(error)
    if "key" not in fields:
        fields["key"] = key_of(_text(raw.session_id))
    header = Header(
        ours.get(ID) or _text(raw.message_id) or "",
        topic,
        _text(raw.subject) or "",
        content_type=ours.get(CONTENT_TYPE, _text(raw.content_type) or _DEFAULT_TYPE),
        correlation_id=_text(raw.correlation_id),
        reply_to=_text(raw.reply_to),
        headers=headers or NO_HEADERS,
        **fields,
    )
    return Message(
        header,
        body,
        identity=identity,
        receipt=LockReceipt(raw),
        generation=generation,
        deliveries=deliveries,
        attempts=attempts,
        lease_expires=lease_expires,
        partition=session,
        position=raw.sequence_number or "",
        raw_headers=others or NO_RAW_HEADERS,
        fault=fault,
    )


def _split(properties: Mapping[Any, Any]) -> tuple[dict[str, str], dict[str, str], dict[str, object]]:
    """The sender's headers, ours, and those that are not text."""
    headers: dict[str, str] = {}
    ours: dict[str, str] = {}
    others: dict[str, object] = {}
    for name, value in properties.items():
        key, text = _text(name) or "", _text(value) if isinstance(value, bytes | str) else None
        if text is None:
            others[key] = value
        elif key in OURS:
            ours[key] = text
        else:
            headers[key.removeprefix(PREFIX)] = text
    return headers, ours, others


def _text(value: object) -> str | None:
    """The value as text; None if it is neither text nor bytes that can be decoded."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else str(value) if isinstance(value, UUID | int) else None


def _fields(ours: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if VERSION in ours:
        fields["version"] = ours[VERSION]
    if KEY in ours:
        fields["key"] = ours[KEY]
    if KIND in ours:
        fields["kind"] = kind_of(KIND, ours[KIND])
    if TIME in ours:
        fields["timestamp"] = time_of(TIME, ours[TIME])
    return fields


def receipt_of(message: Message) -> LockReceipt:
    """The handle on this delivery; LeaseLost for a message of another transport."""
    receipt = message.receipt
    if not isinstance(receipt, LockReceipt):
        raise LeaseLost(f"message {message.id} did not come from Service Bus")
    return receipt


def raw_of(message: Message) -> Any:  # noqa: ANN401 - the client's
    """The client's own message."""
    return cast("LockReceipt", message.receipt).raw


def claim(message: Message) -> None:
    """Settle it here, as far as this process goes; LeaseLost if somebody did that before."""
    receipt = receipt_of(message)
    if receipt.settled:
        raise LeaseLost(f"message {message.id} was already settled")
    receipt.settled = True


def _body(annotated: AmqpAnnotatedMessage) -> tuple[bytes, str]:
    """The body and its fault."""
    body = annotated.body
    if annotated.body_type is AmqpMessageBodyType.DATA:
        return b"".join(body), ""
    if annotated.body_type is AmqpMessageBodyType.VALUE:
        if body is None:
            return b"", ""
        if isinstance(body, bytes | str):
            return (body if isinstance(body, bytes) else body.encode()), ""
    return b"", "its body is not data, but an AMQP value or sequence"


def _said(headers: Mapping[str, str]) -> Mapping[str, str] | None:
    """The provenance of a dead letter that Azure keeps; None for any other message."""
    if REASON not in headers and DESCRIPTION not in headers:
        return None
    try:
        found = json.loads(headers.get(DESCRIPTION, ""))
        if isinstance(found, dict) and "pump-reason" in found:
            return {str(name): str(text) for name, text in found.items()}
    except (ValueError, RecursionError):
        pass
    told = {"pump-reason": headers.get(REASON, ""), "pump-description": headers.get(DESCRIPTION, "")}
    return {name: text for name, text in told.items() if text}


# -- writing


def session_of(key: str | None) -> str:
    """The session of a key; a message without a key has a session of its own, and waits for no other.

    A key that is too long for that, or that is taken for a session without a key, is replaced by a digest of it.
    """
    if key is None:
        return f"{KEYLESS}{uuid4().hex}"
    return key if 0 < len(key) <= LONGEST_ID and not key.startswith(KEYLESS) else _digest(key)


def key_of(session: str | None) -> str | None:
    """The key that a session stands for, where the sender did not say it otherwise."""
    return None if not session or session.startswith(KEYLESS) else session


def write_message(header: Header, body: bytes, *, due: float = 0.0, sessions: bool = False) -> ServiceBusMessage:
    """The message to send, at once or to be enqueued at `due`, in seconds since the epoch.

    Its key is its session. With `sessions` one without a key has a session too, as the queue demands.
    """
    properties: dict[str | bytes, Any] = {_escaped(name): text for name, text in header.headers.items()}
    ours = (
        (VERSION, header.version, ""),
        (KIND, header.kind, "command"),
        (KEY, header.key, None),
        (TIME, repr(header.timestamp) if header.timestamp else "", ""),
    )
    properties |= {name: value for name, value, default in ours if value != default}
    if not header.content_type:
        properties[CONTENT_TYPE] = ""
    if len(header.id) > LONGEST_ID:
        properties[ID] = header.id
    message = ServiceBusMessage(
        body,
        application_properties=properties,
        message_id=(header.id if len(header.id) <= LONGEST_ID else _digest(header.id)) or None,
        content_type=header.content_type or None,
        correlation_id=header.correlation_id,
        reply_to=header.reply_to,
        subject=header.type or None,
        session_id=session_of(header.key) if sessions or header.key is not None else None,
    )
    if due:
        message.scheduled_enqueue_time_utc = datetime.fromtimestamp(due, UTC)
    return message


def _escaped(name: str) -> str:
    return PREFIX + name if name in OURS or name.startswith(PREFIX) or name in {REASON, DESCRIPTION} else name


def write_copy(
    message: Message, headers: Mapping[str, str], *, attempts: int, due: float = 0.0, keeps_identity: bool = True
) -> AmqpAnnotatedMessage:
    """A copy of a received message, with `headers` and a new id; everything that other programs wrote stays.

    The id is the same for the same delivery and attempts, so that duplicate detection drops a copy that is sent
    twice. A copy to be handled keeps the sender's time to live; a dead letter does not expire.
    """
    raw = cast("LockReceipt", message.receipt).raw
    old = raw.raw_amqp_message
    properties: dict[str, Any] = {}
    for name, value in (old.application_properties or {}).items():
        key = _text(name) or ""
        if key in OURS - {IDENTITY, ATTEMPTS_HEADER}:
            properties[key] = _sendable(value)
    properties |= {name: _sendable(value) for name, value in message.raw_headers.items()}
    properties |= {_escaped(name): text for name, text in headers.items()}
    if message.id:
        properties[ID] = message.id
    if keeps_identity:
        properties[IDENTITY] = message.identity
    if attempts:
        properties[ATTEMPTS_HEADER] = str(attempts)
    annotations: dict[Any, Any] = {}
    if due:
        annotations[SCHEDULED] = datetime.fromtimestamp(due, UTC)
    partition_key = (old.annotations or {}).get(PARTITION_KEY)
    if partition_key is not None:
        annotations[PARTITION_KEY] = partition_key
    return AmqpAnnotatedMessage(
        properties=_properties(old, _digest(message.identity, message.deliveries, message.position, attempts)),
        application_properties=properties,
        annotations=annotations,
        header=_lifetime(old) if keeps_identity else None,
        **_body_of(old),
    )


def _properties(old: AmqpAnnotatedMessage, message_id: str) -> AmqpMessageProperties:
    known = old.properties
    if known is None:
        return AmqpMessageProperties(message_id=message_id)
    return AmqpMessageProperties(
        message_id=message_id,
        to=known.to,
        subject=known.subject,
        reply_to=known.reply_to,
        correlation_id=known.correlation_id,
        content_type=known.content_type,
        content_encoding=known.content_encoding,
        group_id=known.group_id,
        reply_to_group_id=known.reply_to_group_id,
    )


def _lifetime(old: AmqpAnnotatedMessage) -> AmqpMessageHeader | None:
    ttl = old.header.time_to_live if old.header else None
    return AmqpMessageHeader(time_to_live=ttl) if ttl else None


def _body_of(old: AmqpAnnotatedMessage) -> dict[str, Any]:
    if old.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": list(old.body)}
    if old.body_type is AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": list(old.body)}
    return {"value_body": old.body}


def _sendable(value: Any) -> Any:  # noqa: ANN401 - whatever others wrote
    """The value in a form that the client can send: it cannot send long numbers, or bytes that are not text."""
    if isinstance(value, bool) or not isinstance(value, int | bytes):
        return value
    if isinstance(value, int):
        return sendable_number(value)
    text = _text(value)
    return {"TYPE": "BINARY", "VALUE": value} if text is None else text


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:48]


def said_of(headers: Mapping[str, str], reason: str) -> Said:
    """Reason and description of a dead letter that Azure keeps, within its limits; `headers` have the provenance."""
    told = {name: text for name, text in headers.items() if name.startswith("pump-")}
    for name in (None, "pump-error", "pump-description", "pump-exception", "pump-handler", "pump-origin"):
        told.pop(name or "", None)
        text = json.dumps(told, ensure_ascii=True)
        if len(text) <= LONGEST_SAID:
            return Said(reason[:LONGEST_SAID], text)
    return Said(reason[:LONGEST_SAID], json.dumps({"pump-reason": reason[:1000]}))
