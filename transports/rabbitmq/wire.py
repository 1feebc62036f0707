"""Between our headers and AMQP's properties, both ways. Whatever bytes come, they make a message."""

import hashlib
from collections.abc import Iterator, Mapping
from math import isfinite
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any, Final, NamedTuple, cast

from pump.message import ATTEMPTS_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Kind, Message
from pump.transports.rabbitmq import pika_internals as amqp
from pump.transports.rabbitmq.pika_internals import Content, Unreadable

KIND: Final = "pump-kind"
VERSION: Final = "pump-version"
KEY: Final = "pump-key"
TOPIC: Final = "pump-topic"
TIMESTAMP: Final = "pump-timestamp"
"""The time in full: AMQP's own is in whole seconds."""
DUE: Final = "pump-due"
"""When a message that waits longer than the longest delay queue is due, in seconds since the epoch."""
LONG: Final = "pump-long-"
"""Begins the name of a property that is too long to be one."""

DELIVERY_COUNT: Final = "x-delivery-count"
BROKERS: Final = frozenset({"x-death", DELIVERY_COUNT, "x-acquired-count", "CC", "BCC"})
"""What the broker writes, or would obey once more: CC in a copy would send it to other queues again."""
BROKERS_PREFIXES: Final = ("x-first-death-", "x-last-death-")

_KINDS: Final = frozenset({"command", "event", "document"})
_OURS: Final = frozenset({KIND, VERSION, KEY, TOPIC, TIMESTAMP, DUE, ATTEMPTS_HEADER})
_PERSISTENT: Final = b"\x02"
_LATEST: Final = 2.0**53
"""Whole seconds beyond this are no whole seconds any more."""
_WHAT_BAD_BYTES_RAISE: Final = (ValueError, StructError, IndexError, OverflowError, ArithmeticError)


class Receipt(NamedTuple):
    """The transport's handle on one delivery."""

    tag: int
    properties: bytes
    """As they came; empty where they cannot be read."""
    due: float = 0.0
    """When the message is due, in seconds since the epoch; 0 is now."""


class _Headers(NamedTuple):
    """A table, sorted by whose each header is."""

    senders: Mapping[str, str] = NO_HEADERS
    ours: Mapping[str, str] = NO_HEADERS
    others: Mapping[str, object] = NO_RAW_HEADERS
    """The broker's, and what is not text."""
    has_long: bool = False


_NO_TABLE: Final = _Headers()


# -- reading


def read_message(content: Content, topic: str, generation: int) -> Message:
    """The message that was delivered; one that makes no sense says so in its fault. `topic` is for strangers."""
    try:
        return _message(content, topic, generation)
    except _WHAT_BAD_BYTES_RAISE as error:
        return Message(
            Header("", topic=content.exchange or topic, content_type=""),
            content.body,
            identity=_digest(content, ""),
            receipt=Receipt(content.tag, b""),
            generation=generation,
            fault=f"its properties cannot be read: {error}",
        )


def _message(content: Content, topic: str, generation: int) -> Message:
    parts = amqp.split(content.properties)
    table = parts[amqp.HEADERS]
    headers = _read_headers(table) if table else _NO_TABLE
    header = _header(parts, headers, content.exchange or topic)
    count = headers.others.get(DELIVERY_COUNT, 0)
    ours = headers.ours
    return Message(
        header,
        content.body,
        identity=header.id or _digest(content, _stable(header, headers)),
        receipt=Receipt(content.tag, content.properties, _moment(ours[DUE]) if DUE in ours else 0.0),
        generation=generation,
        deliveries=1 + count if isinstance(count, int) and count > 0 else 1,
        attempts=_count(ours[ATTEMPTS_HEADER]) if ATTEMPTS_HEADER in ours else 0,
        raw_headers=headers.others,
    )


def _header(parts: list[bytes | None], headers: _Headers, topic: str) -> Header:
    said, ours = headers.senders, headers.ours
    content_type, message_id = parts[amqp.CONTENT_TYPE], parts[amqp.MESSAGE_ID]
    type_, timestamp = parts[amqp.TYPE], parts[amqp.TIMESTAMP]
    correlation_id, reply_to = parts[amqp.CORRELATION_ID], parts[amqp.REPLY_TO]
    header = Header(
        message_id.decode() if message_id else "",
        ours.get(TOPIC, topic),
        type_.decode() if type_ else "",
        ours.get(VERSION, ""),
        _kind(ours[KIND]) if KIND in ours else "command",
        content_type.decode() if content_type else "",
        ours.get(KEY),
        None if correlation_id is None else correlation_id.decode(),
        None if reply_to is None else reply_to.decode(),
        _moment(ours[TIMESTAMP]) if TIMESTAMP in ours else float(int.from_bytes(timestamp or b"", "big")),
        said,
    )
    return _lengthened(header, ours) if headers.has_long else header


def _lengthened(header: Header, ours: Mapping[str, str]) -> Header:
    """With the properties that were too long to be some."""
    changes: dict[str, Any] = {_FIELDS[name]: text for name, text in ours.items() if name in _FIELDS}
    return header._replace(**changes)


_FIELDS: Final = {
    f"{LONG}id": "id",
    f"{LONG}type": "type",
    f"{LONG}content-type": "content_type",
    f"{LONG}correlation-id": "correlation_id",
    f"{LONG}reply-to": "reply_to",
}


def _read_headers(table: bytes) -> _Headers:
    senders: dict[str, str] = {}
    ours: dict[str, str] = {}
    others: dict[str, object] = {}
    has_long = False
    for name, value, _ in amqp.entries(table):
        if name in _OURS and isinstance(value, str):
            ours[name] = value
        elif not isinstance(value, str) or is_brokers(name):
            others[name] = value
        elif name.startswith(LONG):
            ours[name], has_long = value, True
        else:
            senders[name] = value
    return _Headers(senders, ours, others, has_long)


def is_brokers(name: str) -> bool:
    """Whether a header is the broker's own, and no copy's."""
    return name in BROKERS or name.startswith(BROKERS_PREFIXES)


def _kind(text: str) -> Kind:
    if text not in _KINDS:
        raise Unreadable(f"{KIND} is {text[:80]!r}")
    return cast("Kind", text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):  # noqa: PLR2004 - a billion is no count
        raise Unreadable(f"{ATTEMPTS_HEADER} is {text[:80]!r}")
    return int(text)


def _moment(text: str) -> float:
    moment = float(text)
    if not isfinite(moment):
        raise Unreadable(f"{text[:80]!r} is no moment")
    return moment


def _stable(header: Header, headers: _Headers) -> str:
    """What stays the same however often a message without an id is delivered."""
    raw = {name: value for name, value in headers.others.items() if not is_brokers(name)}
    said = (header.type, header.content_type, header.correlation_id, header.reply_to, header.timestamp, header.key)
    return repr((said, sorted(headers.senders.items()), sorted(raw.items())))


def _digest(content: Content, stable: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in (content.exchange, content.routing_key, stable):
        digest.update(piece.encode("utf-8", "replace") + b"\0")
    digest.update(content.body)
    return f"unnamed-{digest.hexdigest()}"


# -- writing


def write_properties(
    header: Header,
    original: Message | None = None,
    *,
    topic: str = "",
    attempts: int = 0,
    due: float = 0.0,
) -> bytes:
    """The encoded properties of a message, or of a copy of a received one, which also carries what others said.

    A ValueError says what AMQP cannot carry.
    """
    parts: list[bytes | None] = [None] * amqp.PARTS
    said: dict[str, str] = dict(header.headers)
    for place, name, text in (
        (amqp.CONTENT_TYPE, "content-type", header.content_type or None),
        (amqp.CORRELATION_ID, "correlation-id", header.correlation_id),
        (amqp.REPLY_TO, "reply-to", header.reply_to),
        (amqp.MESSAGE_ID, "id", header.id or None),
        (amqp.TYPE, "type", header.type or None),
    ):
        if text is not None:
            data = text.encode()
            if len(data) > amqp.LONGEST_SHORT:
                said[LONG + name] = text
            else:
                parts[place] = data
    seconds = int(header.timestamp) if 0 < header.timestamp < _LATEST else 0
    if seconds:
        parts[amqp.TIMESTAMP] = amqp.U64.pack(seconds)
    parts[amqp.DELIVERY_MODE] = _PERSISTENT
    said.update(_ours(header, topic, attempts, due, seconds))
    table = [amqp.entry(name, text) for name, text in said.items()]
    if original is not None:
        table.extend(_carry(parts, original))
    if table:
        parts[amqp.HEADERS] = b"".join(table)
    return amqp.join(parts)


def _ours(header: Header, topic: str, attempts: int, due: float, seconds: int) -> Iterator[tuple[str, str]]:
    if header.kind != "command":
        yield KIND, header.kind
    if header.version:
        yield VERSION, header.version
    if header.key is not None:
        yield KEY, header.key
    if header.timestamp != seconds:
        yield TIMESTAMP, repr(header.timestamp)
    if topic:
        yield TOPIC, topic
    if attempts:
        yield ATTEMPTS_HEADER, str(attempts)
    if due:
        yield DUE, f"{due:.3f}"


def _carry(parts: list[bytes | None], original: Message) -> Iterator[bytes]:
    """Take over what the original says beyond its header: of its headers, those that are neither text nor the broker's.

    Not its user id, which the broker compares with ours, and not its expiration, which would cut the delay short.
    """
    properties = original.receipt.properties if isinstance(original.receipt, Receipt) else b""
    if not properties:
        return
    theirs = amqp.split(properties)
    for place in (amqp.CONTENT_ENCODING, amqp.PRIORITY, amqp.APP_ID):
        parts[place] = theirs[place]
    for name, value, encoded in amqp.entries(theirs[amqp.HEADERS] or b""):
        if not isinstance(value, str) and not is_brokers(name):
            yield encoded
