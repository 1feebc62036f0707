"""Write our headers into AMQP properties, and read them back. Any bytes can be read as a message."""

import hashlib
from collections.abc import Iterator, Mapping
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Final, NamedTuple

from pump.message import ATTEMPTS_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Message
from pump.transport_kit.header_texts import count_of, kind_of, time_of
from pump.transports.rabbitmq import properties as amqp
from pump.transports.rabbitmq.pika_internals import Content

KIND: Final = "pump-kind"
VERSION: Final = "pump-version"
KEY: Final = "pump-key"
TOPIC: Final = "pump-topic"
TIMESTAMP: Final = "pump-timestamp"
"""The exact time of a message: AMQP's own timestamp is in whole seconds."""
DUE: Final = "pump-due"
"""When a message with a delay longer than the longest delay queue's is due, in seconds since the epoch."""
LONG: Final = {
    amqp.CONTENT_TYPE: "pump-long-content-type",
    amqp.CORRELATION_ID: "pump-long-correlation-id",
    amqp.REPLY_TO: "pump-long-reply-to",
    amqp.MESSAGE_ID: "pump-long-id",
    amqp.TYPE: "pump-long-type",
}
"""Headers for values that are too long for a property, by the property's place."""

DELIVERY_COUNT: Final = "x-delivery-count"
BROKERS: Final = frozenset({"x-death", DELIVERY_COUNT, "x-acquired-count", "CC", "BCC"})
"""Headers that the broker writes or acts on: a CC in a copy would send the copy to other queues again."""
BROKERS_PREFIXES: Final = ("x-first-death-", "x-last-death-")

_LONG_PLACES: Final = {name: place for place, name in LONG.items()}
_OURS: Final = frozenset({KIND, VERSION, KEY, TOPIC, TIMESTAMP, DUE, ATTEMPTS_HEADER})
_PERSISTENT: Final = b"\x02"
_LATEST: Final = 2.0**53
"""Beyond this time, a float cannot tell one second from the next."""
_WHAT_BAD_BYTES_RAISE: Final = (ValueError, StructError, IndexError, OverflowError, ArithmeticError)


class Receipt(NamedTuple):
    """The transport's handle on one delivery."""

    tag: int
    properties: bytes
    """The properties as they came; empty if they cannot be read."""
    due: float = 0.0
    """When the message is due, in seconds since the epoch; 0 is now."""


# -- reading


def read_message(content: Content, topic: str, generation: int) -> Message:
    """The delivered message; if it cannot be read, its `fault` says why. `topic` is for messages that name none."""
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
    senders, ours, others = _read_headers(table, parts) if table else (NO_HEADERS, NO_HEADERS, NO_RAW_HEADERS)
    content_type, message_id = parts[amqp.CONTENT_TYPE], parts[amqp.MESSAGE_ID]
    type_, timestamp = parts[amqp.TYPE], parts[amqp.TIMESTAMP]
    correlation_id, reply_to = parts[amqp.CORRELATION_ID], parts[amqp.REPLY_TO]
    header = Header(
        message_id.decode() if message_id else "",
        ours.get(TOPIC, content.exchange or topic),
        type_.decode() if type_ else "",
        ours.get(VERSION, ""),
        kind_of(KIND, ours[KIND]) if KIND in ours else "command",
        content_type.decode() if content_type else "",
        ours.get(KEY),
        None if correlation_id is None else correlation_id.decode(),
        None if reply_to is None else reply_to.decode(),
        time_of(TIMESTAMP, ours[TIMESTAMP]) if TIMESTAMP in ours else float(int.from_bytes(timestamp or b"", "big")),
        senders,
    )
    # on a first delivery the sender wrote this header, so it means nothing
    count = others.get(DELIVERY_COUNT, 0) if content.redelivered else 0
    return Message(
        header,
        content.body,
        identity=header.id or _digest(content, _stable(header, others)),
        receipt=Receipt(content.tag, content.properties, time_of(DUE, ours[DUE]) if DUE in ours else 0.0),
        generation=generation,
        deliveries=1 + count if isinstance(count, int) and count > 0 else 1,
        attempts=count_of(ATTEMPTS_HEADER, ours[ATTEMPTS_HEADER]) if ATTEMPTS_HEADER in ours else 0,
        raw_headers=others,
    )


def _read_headers(
    table: bytes, parts: list[bytes | None]
) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, object]]:
    """The sender's headers, ours, and others: the broker's, and those that are not text.

    Values that were too long for properties are put back into `parts`.
    """
    senders: dict[str, str] = {}
    ours: dict[str, str] = {}
    others: dict[str, object] = {}
    for name, value, _ in amqp.entries(table):
        if name in _OURS and isinstance(value, str):
            ours[name] = value
        elif not isinstance(value, str) or is_brokers(name):
            others[name] = value
        elif name in _LONG_PLACES:
            parts[_LONG_PLACES[name]] = value.encode()
        else:
            senders[name] = value
    return senders, ours, others


def is_brokers(name: str) -> bool:
    """Whether a header belongs to the broker; a copy must not have it."""
    return name in BROKERS or name.startswith(BROKERS_PREFIXES)


def _stable(header: Header, others: Mapping[str, object]) -> str:
    """The part of a message without an id that is the same in every delivery."""
    raw = {name: value for name, value in others.items() if not is_brokers(name)}
    fixed = (header.type, header.content_type, header.correlation_id, header.reply_to, header.timestamp, header.key)
    return repr((fixed, sorted(header.headers.items()), sorted(raw.items())))


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
    """The encoded properties of a message. Those of a copy include the properties that others gave the original.

    ValueError if AMQP cannot carry them.
    """
    parts: list[bytes | None] = [None] * amqp.PARTS
    table: dict[str, str] = dict(header.headers)
    for place, text in (
        (amqp.CONTENT_TYPE, header.content_type or None),
        (amqp.CORRELATION_ID, header.correlation_id),
        (amqp.REPLY_TO, header.reply_to),
        (amqp.MESSAGE_ID, header.id or None),
        (amqp.TYPE, header.type or None),
    ):
        if text is None:
            continue
        data = text.encode()
        if len(data) > amqp.LONGEST_SHORT:
            table[LONG[place]] = text
        else:
            parts[place] = data
    seconds = int(header.timestamp) if 0 < header.timestamp < _LATEST else 0
    if seconds:
        parts[amqp.TIMESTAMP] = amqp.U64.pack(seconds)
    parts[amqp.DELIVERY_MODE] = _PERSISTENT
    table.update(_ours(header, topic, attempts, due, seconds))
    encoded = [amqp.entry(name, text) for name, text in table.items()]
    if original is not None:
        encoded.extend(_carry(parts, original))
    if encoded:
        parts[amqp.HEADERS] = b"".join(encoded)
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
    """Copy the original's other properties to `parts`; returns its headers that are neither text nor the broker's.

    Its user id is not copied, since the broker compares it with our login, nor its expiration, which could end a delay
    too early.
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
