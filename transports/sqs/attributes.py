"""Writes a message with its body as text and its header as attributes, and reads any message.

A message may have ten attributes. Two are the pump's: `pump-type`, so that a subscription can filter by it, and
`pump`, JSON with all other fields of the header. The others are the sender's headers; those without room, or that
no attribute can hold, are folded into `pump`.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from pump.message import NO_HEADERS, Header
from pump.transport_kit.header_texts import KINDS

Attribute: TypeAlias = Mapping[str, Any]
"""An attribute of boto3: DataType, and StringValue or BinaryValue."""
Attributes: TypeAlias = Mapping[str, Attribute]

PUMP: Final = "pump"
TYPE: Final = "pump-type"
MOST_ATTRIBUTES: Final = 10
EMPTY: Final = "-"
"""Stands for an empty body, which a queue does not take."""

_NAME: Final = re.compile(
    r"(?!(?:AWS|Amazon)\.)(?!.*\.\.)[A-Za-z0-9_-](?:[A-Za-z0-9_.-]{0,254}[A-Za-z0-9_-])?", re.IGNORECASE
)
_NOT_ALLOWED: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIELDS: Final = (
    ("id", "id", ""),
    ("version", "version", ""),
    ("kind", "kind", "command"),
    ("content-type", "content_type", "application/json"),
    ("key", "key", None),
    ("correlation-id", "correlation_id", None),
    ("reply-to", "reply_to", None),
)
"""The texts in `pump`, their fields of a Header, and the default values, which are not written."""
_HIGHEST_COUNT: Final = 10**9


class Carried(NamedTuple):
    """What a copy of a message tells about the original; empty for a posted message."""

    identity: str = ""
    """The identity of the original, which the copy keeps."""
    attempts: int = 0
    before: int = 0
    """How many deliveries of the original a handler may have seen."""
    due: float = 0.0
    """Not to be handled before this time, in seconds since the epoch."""
    topic: str = ""
    """For a dead letter: the topic of its original."""


NOTHING: Final = Carried()


class Parcel(NamedTuple):
    """A message as the broker takes it."""

    body: str
    attributes: Attributes

    @property
    def size(self) -> int:
        """The bytes that the broker counts: the body, and names, types and values of the attributes."""
        return len(self.body.encode()) + sum(map(_size, self.attributes.items()))

    @property
    def entry(self) -> dict[str, Any]:
        """The parameters of a request that sends it to a queue."""
        return {"MessageBody": self.body, "MessageAttributes": self.attributes}


class Unpacked(NamedTuple):
    """What was read of a message."""

    header: Header
    body: bytes
    carried: Carried
    fault: str
    """What is wrong with it; empty if it could be read."""
    attributes: Attributes
    """All attributes, including those that were folded."""


def pack(header: Header, body: bytes, carried: Carried = NOTHING, received: Attributes | None = None) -> Parcel:
    """The message for the broker. `received` are the attributes of its original, if it is a copy: they are kept."""
    document: dict[str, Any] = {}
    for name, field, default in _FIELDS:
        value = getattr(header, field)
        if value != default:
            document[name] = value
    if header.timestamp:
        document["time"] = header.timestamp
    document.update({name: value for name, value in carried._asdict().items() if value})
    text, encoding = _text_of_body(body)
    if encoding:
        document["encoding"] = encoding
    attributes = _as_attributes(header.headers, {} if received is None else received)
    if header.type and not _NOT_ALLOWED.search(header.type):
        type_attribute = {TYPE: _string(header.type)}
    else:
        type_attribute = {}
        document["type"] = header.type
    folded = _fold(attributes, MOST_ATTRIBUTES - 1 - len(type_attribute))
    if folded:
        document["folded"] = folded
    # Escaped, so that any text can be in it.
    return Parcel(text, {PUMP: _string(json.dumps(document)), **type_attribute, **attributes})


def unpack(body: str, attributes: Attributes, topic: str, message_id: str) -> Unpacked:
    """The message that was received. One without an id gets the broker's own."""
    if PUMP not in attributes:
        body, attributes = _opened_envelope(body, attributes)
    document, fault = _document(attributes)
    if document is None:
        header = Header(message_id, topic, headers=_texts(attributes))
        return Unpacked(header, body.encode("utf-8", "surrogatepass"), NOTHING, fault, attributes)
    try:
        attributes = {**attributes, **_unfolded(document.get("folded", {}))}
        header = _header(document, attributes, topic, message_id)
        carried = _carried(document)
        return Unpacked(header, _body(body, document.get("encoding", "")), carried, "", attributes)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        header = Header(message_id, topic, headers=_texts(attributes))
        fault = f"its attribute {PUMP} is not in the form that a pump writes: {error}"
        return Unpacked(header, body.encode("utf-8", "surrogatepass"), NOTHING, fault, attributes)


# -- writing


def _string(text: str) -> Attribute:
    return {"DataType": "String", "StringValue": text}


def _size(item: tuple[str, Attribute]) -> int:
    name, attribute = item
    value = attribute.get("StringValue", "").encode() or attribute.get("BinaryValue", b"")
    return len(name.encode()) + len(attribute["DataType"].encode()) + len(value)


def _text_of_body(body: bytes) -> tuple[str, str]:
    """The body as text, and its encoding: "", "empty" or "base64"."""
    if not body:
        return EMPTY, "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if text and not _NOT_ALLOWED.search(text):
        return text, ""
    return base64.b64encode(body).decode(), "base64"


def _as_attributes(headers: Mapping[str, str], received: Attributes) -> dict[str, Attribute]:
    """The headers as attributes. A received attribute with the same text is kept as it was; so are those with bytes."""
    made: dict[str, Attribute] = {}
    for name, text in headers.items():
        own = received.get(name)
        made[name] = own if own is not None and own.get("StringValue") == text else _string(text)
    for name, own in received.items():
        if "BinaryValue" in own:
            made.setdefault(name, own)
    return made


def _fold(attributes: dict[str, Attribute], room: int) -> dict[str, list[str]]:
    """Remove what cannot be an attribute, or has no room, and return it in a form for JSON."""
    out = [name for name, attribute in attributes.items() if not _can_be_one(name, attribute)]
    stay = [name for name in attributes if name not in out]
    folded = {}
    for name in (*out, *stay[room:]):
        attribute = attributes.pop(name)
        binary = attribute.get("BinaryValue")
        value = attribute.get("StringValue", "") if binary is None else base64.b64encode(binary).decode()
        folded[name] = [attribute["DataType"], value]
    return folded


def _can_be_one(name: str, attribute: Attribute) -> bool:
    if name in {PUMP, TYPE} or not _NAME.fullmatch(name):
        return False
    if "BinaryValue" in attribute:
        return bool(attribute["BinaryValue"])
    text = attribute.get("StringValue", "")
    return bool(text) and not _NOT_ALLOWED.search(text)


# -- reading


def _opened_envelope(body: str, attributes: Attributes) -> tuple[str, Attributes]:
    """The body and attributes in the envelope of an SNS subscription without raw delivery; others unchanged."""
    if not (body.startswith("{") and '"TopicArn"' in body and '"Notification"' in body):
        return body, attributes
    try:
        envelope = json.loads(body)
        if envelope.get("Type") != "Notification" or not isinstance(envelope["Message"], str):
            return body, attributes
        given = envelope.get("MessageAttributes") or {}
        inner = {name: _from_envelope(each["Type"], each["Value"]) for name, each in given.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return body, attributes  # it only looks like one: the mapping decides what it is
    return envelope["Message"], {**attributes, **inner}


def _from_envelope(data_type: str, value: str) -> Attribute:
    if data_type.startswith("Binary"):
        return {"DataType": data_type, "BinaryValue": base64.b64decode(value)}
    return {"DataType": data_type, "StringValue": value + ""}


def _document(attributes: Attributes) -> tuple[dict[str, Any] | None, str]:
    """The content of `pump`, empty if there is none; and what is wrong with it."""
    attribute = attributes.get(PUMP)
    if attribute is None:
        return {}, ""
    try:
        document = json.loads(attribute.get("StringValue", ""))
    except (ValueError, RecursionError) as error:
        return None, f"its attribute {PUMP} cannot be read: {error}"
    if not isinstance(document, dict):
        return None, f"its attribute {PUMP} is not an object"
    return document, ""


def _unfolded(folded: Mapping[str, Sequence[str]]) -> dict[str, Attribute]:
    """The folded attributes, without headers of the sender that have the names of the pump's own attributes."""
    own = {PUMP, TYPE}
    return {name: _from_envelope(kind, value) for name, (kind, value) in folded.items() if name not in own}


def _texts(attributes: Attributes) -> Mapping[str, str]:
    texts = {
        name: attribute["StringValue"]
        for name, attribute in attributes.items()
        if name != PUMP and name != TYPE and "StringValue" in attribute  # noqa: PLR1714 - twice as fast as a set
    }
    return texts or NO_HEADERS


def _header(document: Mapping[str, Any], attributes: Attributes, topic: str, message_id: str) -> Header:
    given: dict[str, Any] = {field: _text(document[name], name) for name, field, _ in _FIELDS if name in document}
    if given.get("kind", "command") not in KINDS:
        raise ValueError("its kind must be command, document or event")
    given["id"] = given.get("id") or message_id
    kind = attributes.get(TYPE, {}).get("StringValue", "") or document.get("type", "")
    time = float(document.get("time", 0.0))
    if not isfinite(time):
        raise ValueError("its time must be a finite number")
    folded = document.get("folded", {})
    headers = dict(_texts(attributes))
    for name in (PUMP, TYPE):  # a header of the sender may have that name
        if name in folded:
            headers[name] = _text(folded[name][1], name)
    return Header(topic=topic, type=_text(kind, "type"), timestamp=time, headers=headers or NO_HEADERS, **given)


def _carried(document: Mapping[str, Any]) -> Carried:
    due = float(document.get("due", 0.0))
    if not 0 <= due < inf:
        raise ValueError("its due time must be a finite number that is not negative")
    identity, topic = _text(document.get("identity", ""), "identity"), _text(document.get("topic", ""), "topic")
    return Carried(identity, _count(document, "attempts"), _count(document, "before"), due, topic)


def _count(document: Mapping[str, Any], name: str) -> int:
    number = document.get(name, 0)
    if not isinstance(number, int) or not 0 <= number <= _HIGHEST_COUNT:
        raise ValueError(f"its {name} must be a whole number that is not negative")
    return number


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its {name} must be text")
    return value


def _body(body: str, encoding: object) -> bytes:
    if encoding == "":
        return body.encode("utf-8", "surrogatepass")
    if encoding == "empty":
        return b""
    if encoding == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise ValueError(f"its body is not base64: {error}") from None
    raise ValueError("its encoding is unknown")
