"""Writes messages as MQTT packets, and reads them back. Any bytes can be read as a message.

MQTT 5 carries headers as properties. MQTT 3.1.1 has none: there, the headers are in an envelope before the body.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from pump.message import ATTEMPTS_HEADER, Header, Message
from pump.transport_kit.header_texts import count_of, kind_of, time_of
from pump.transports.mqtt.settings import Version
from pump.transports.mqtt.texts import LONGEST_TEXT, headers_of, is_plain, is_topic, pairs_of

ID: Final = "pump-id"
TYPE: Final = "pump-type"
VERSION: Final = "pump-version"
KIND: Final = "pump-kind"
KEY: Final = "pump-key"
TOPIC: Final = "pump-topic"
TIMESTAMP: Final = "pump-timestamp"
CONTENT_TYPE: Final = "pump-content-type"
"""In MQTT 5 these two have properties of their own, but are among the headers if those cannot hold them."""
REPLY_TO: Final = "pump-reply-to"
CORRELATION_ID: Final = "pump-correlation-id"
DUE: Final = "pump-due"
"""When a copy is due, in seconds since the epoch."""

MAGIC: Final = b"\0pump-envelope\1"
"""The beginning of an envelope. After it come four bytes with the length of the JSON, the JSON, and the body."""
FIXED_SIZE: Final = 1 + 4 + 2 + 2
"""The most bytes of a packet beside topic, properties and payload."""

_OURS: Final = frozenset(
    {ID, TYPE, VERSION, KIND, KEY, TOPIC, TIMESTAMP, CONTENT_TYPE, REPLY_TO, CORRELATION_ID, DUE, ATTEMPTS_HEADER}
)


class Packet(NamedTuple):
    """A packet to publish."""

    topic: str
    payload: bytes
    properties: Properties | None

    @property
    def size(self) -> int:
        """The most bytes that it can have on the wire."""
        properties: Any = self.properties
        packed = 0 if properties is None else len(properties.pack())
        return FIXED_SIZE + len(self.topic.encode()) + packed + len(self.payload)


class PacketReceipt:
    """The transport's handle on one delivery: no two are equal."""

    __slots__ = ("due", "is_copy", "mid", "qos")

    def __init__(self, mid: int, qos: int, *, is_copy: bool, due: float) -> None:
        self.mid: Final = mid
        self.qos: Final = qos
        self.is_copy: Final = is_copy
        """Whether the consumer's own topic for copies delivered it."""
        self.due: Final = due
        """When it is due, in seconds since the epoch; 0 is now."""


# -- writing


def new_properties(packet_type: int) -> Properties:
    """Empty properties of a packet."""
    make: Any = Properties  # the client's types are not declared
    made: Properties = make(packet_type)
    return made


def write_packet(header: Header, body: bytes, *, topic: str, version: Version, due: float = 0.0) -> Packet:
    """The packet that carries a message to a topic; ValueError if MQTT cannot carry it."""
    if not is_topic(topic):
        raise ValueError(f"MQTT cannot publish to {topic[:80]!r}: a topic must not contain +, # or control characters")
    fields = _fields(header, topic, due)
    if version != "5":
        return Packet(topic, _envelope(header, fields, body), None)
    properties = new_properties(PacketTypes.PUBLISH)
    if header.content_type:
        if is_plain(header.content_type):
            properties.ContentType = header.content_type
        else:
            fields[CONTENT_TYPE] = header.content_type
    if header.reply_to is not None:
        if is_topic(header.reply_to):
            properties.ResponseTopic = header.reply_to
        else:
            fields[REPLY_TO] = header.reply_to
    if header.correlation_id is not None:
        try:
            properties.CorrelationData = _binary(header.correlation_id)
        except ValueError:
            fields[CORRELATION_ID] = header.correlation_id
    pairs = pairs_of((*fields.items(), *header.headers.items()))
    if pairs:
        properties.UserProperty = pairs
    return Packet(topic, body, properties)


def bare_packet(topic: str, body: bytes, headers: Mapping[str, str], version: Version) -> Packet:
    """A packet of a body, with almost no header."""
    return write_packet(Header("", topic, content_type="", headers=headers), body, topic=topic, version=version)


def _fields(header: Header, topic: str, due: float) -> dict[str, str]:
    fields = {ID: header.id, TYPE: header.type, VERSION: header.version}
    fields = {name: text for name, text in fields.items() if text}
    if header.kind != "command":
        fields[KIND] = header.kind
    if header.key is not None:
        fields[KEY] = header.key
    if header.topic and header.topic != topic:
        fields[TOPIC] = header.topic
    if header.timestamp:
        fields[TIMESTAMP] = repr(header.timestamp)
    if due:
        fields[DUE] = f"{due:.3f}"
    return fields


def _binary(text: str) -> bytes:
    data = text.encode()
    if len(data) > LONGEST_TEXT:
        raise ValueError("it is too long")
    return data


def _envelope(header: Header, fields: dict[str, str], body: bytes) -> bytes:
    if header.content_type:
        fields[CONTENT_TYPE] = header.content_type
    if header.reply_to is not None:
        fields[REPLY_TO] = header.reply_to
    if header.correlation_id is not None:
        fields[CORRELATION_ID] = header.correlation_id
    written = json.dumps([fields, dict(header.headers)], separators=(",", ":")).encode()
    return b"".join((MAGIC, len(written).to_bytes(4, "big"), written, body))


# -- reading


def read_message(packet: MQTTMessage, *, generation: int, is_copy: bool = False) -> Message:
    """The message of a packet; if it cannot be read, its fault says why, and its body is the whole payload."""
    topic, payload = packet.topic, bytes(packet.payload)
    try:
        fields, headers, body = _parts(packet, payload)
        header = _header(fields, headers, topic)
        due = time_of(DUE, fields[DUE]) if DUE in fields else 0.0
        attempts = count_of(ATTEMPTS_HEADER, fields[ATTEMPTS_HEADER]) if ATTEMPTS_HEADER in fields else 0
    except (ValueError, RecursionError) as error:
        fault = f"its headers cannot be read: {str(error)[:200]}"
        header, body, due, attempts = Header("", topic, content_type=""), payload, 0.0, 0
    else:
        fault = ""
    return Message(
        header,
        body,
        identity=header.id or _unnamed(packet),
        receipt=PacketReceipt(packet.mid, packet.qos, is_copy=is_copy, due=due),
        generation=generation,
        attempts=attempts,
        fault=fault,
    )


def _parts(packet: MQTTMessage, payload: bytes) -> tuple[Mapping[str, str], dict[str, str], bytes]:
    """Our fields, the sender's headers, and the body."""
    properties = packet.properties
    found: dict[str, str] = {}
    if properties is not None:
        pairs = getattr(properties, "UserProperty", ())
        found = headers_of(pairs) if pairs else {}
    if payload.startswith(MAGIC) and found.keys().isdisjoint(_OURS):
        return _opened(payload, found)
    fields = {name: found.pop(name) for name in _OURS.intersection(found)} if found else {}
    if properties is not None:
        _add_properties(fields, properties)
    return fields, found, payload


def _add_properties(fields: dict[str, str], properties: Properties) -> None:
    """Add the fields that have a property of their own."""
    content_type: str | None = getattr(properties, "ContentType", None)
    if content_type is not None:
        fields[CONTENT_TYPE] = content_type
    reply_to: str | None = getattr(properties, "ResponseTopic", None)
    if reply_to is not None:
        fields[REPLY_TO] = reply_to
    correlation: bytes | None = getattr(properties, "CorrelationData", None)
    if correlation is not None:
        fields[CORRELATION_ID] = correlation.decode("utf-8", "backslashreplace")


def _opened(payload: bytes, found: dict[str, str]) -> tuple[Mapping[str, str], dict[str, str], bytes]:
    begin = len(MAGIC) + 4
    end = begin + int.from_bytes(payload[len(MAGIC) : begin], "big")
    if len(payload) < end:
        raise ValueError("its envelope is cut off")
    written = json.loads(payload[begin:end])
    if not (isinstance(written, list) and len(written) == len(("fields", "headers")) and all(map(_is_texts, written))):
        raise ValueError("its envelope must be two JSON objects whose values are text")
    fields, headers = cast("Sequence[dict[str, str]]", written)
    if ATTEMPTS_HEADER in headers:
        fields[ATTEMPTS_HEADER] = headers.pop(ATTEMPTS_HEADER)
    return fields, {**found, **headers}, payload[end:]


def _is_texts(value: Any) -> bool:  # noqa: ANN401 - anything may be in JSON
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _header(fields: Mapping[str, str], headers: Mapping[str, str], topic: str) -> Header:
    get = fields.get
    return Header(
        get(ID, ""),
        get(TOPIC, topic),
        get(TYPE, ""),
        get(VERSION, ""),
        kind_of(KIND, fields[KIND]) if KIND in fields else "command",
        get(CONTENT_TYPE, ""),
        get(KEY),
        get(CORRELATION_ID),
        get(REPLY_TO),
        time_of(TIMESTAMP, fields[TIMESTAMP]) if TIMESTAMP in fields else 0.0,
        headers,
    )


def _unnamed(packet: MQTTMessage) -> str:
    """An identity for a message without an id: the same in each delivery, as long as its session lives."""
    digest = hashlib.blake2b(packet.payload, digest_size=12, key=packet.topic.encode()[:64])
    return f"unnamed-{digest.hexdigest()}-{packet.mid}"
