"""Writes a message's header as attributes of Pub/Sub, and reads attributes, those of other senders too.

Pub/Sub takes 100 attributes, names of 256 bytes and values of 1024. What does not fit is folded: written as JSON into
as many attributes as it needs.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from pump.message import ATTEMPTS_HEADER, NO_HEADERS, Header, Kind
from pump.transport_kit.header_texts import kind_of, time_of

MOST_ATTRIBUTES: Final = 100
LONGEST_NAME: Final = 256
LONGEST_VALUE: Final = 1024
LONGEST_KEY: Final = 1024

ID: Final = "pump-id"
CONTENT_TYPE: Final = "content-type"
KEY: Final = "pump-key"
TIMESTAMP: Final = "pump-time"
FOLDED: Final = "pump-folded-"
"""The beginning of the names of attributes with folded headers: pump-folded-0, pump-folded-1 and so on."""
IDENTITY: Final = "pump-identity"
DUE: Final = "pump-due"
PACKED: Final = "pump-packed"
"""On copies in a channel's own retry topic: by what the message is known, when it is due, in epoch seconds, and how
many bytes before the body are its attributes."""

_FIELDS: Final = (
    ("pump-type", ""),
    ("pump-version", ""),
    ("pump-kind", "command"),
    (CONTENT_TYPE, "application/json"),
    (KEY, None),
    ("pump-correlation-id", None),
    ("pump-reply-to", None),
)
"""The fields of a Header from the third one on, with their defaults. A default is not sent."""
_OURS: Final = frozenset((ID, TIMESTAMP, IDENTITY, DUE, PACKED, *(name for name, _ in _FIELDS)))


def to_attributes(header: Header) -> tuple[dict[str, str], str]:
    """Attributes and ordering key of a message; ValueError if it cannot be written."""
    ours = _own_fields(header)
    ordering_key = _ordering_key(ours)
    return _fitted(ours, header.headers), ordering_key


def copy_attributes(header: Header, identity: str, due: float) -> tuple[dict[str, str], bytes]:
    """Attributes of a copy that comes again when it is due, and what has to stand before its body.

    A copy has no ordering key, since it comes when it is due. What is too much for attributes goes before the body:
    only this channel reads it. What `copy_of` reads, its attempts among it, is never folded.
    """
    theirs = dict(header.headers)
    marks = {IDENTITY: identity, DUE: f"{due:.3f}", ATTEMPTS_HEADER: theirs.pop(ATTEMPTS_HEADER, "0")}
    try:
        return _fitted({**_own_fields(header), **marks}, theirs), b""
    except ValueError:
        packed = json.dumps([_own_fields(header), dict(header.headers)], ensure_ascii=False).encode()
        return {**marks, PACKED: str(len(packed))}, packed


def unpacked(attributes: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """The attributes and the body of a copy, as they were before some attributes were put before the body."""
    size = int(_number(attributes.get(PACKED)))
    if not size:
        return attributes, body
    try:
        ours, theirs = _read_pair(body[:size])
    except ValueError:
        return attributes, body
    return {**theirs, **ours}, body[size:]


def _read_pair(data: str | bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The pump's fields and the sender's headers, from JSON; ValueError if any value is not text."""
    try:
        ours, theirs = json.loads(data)
        if all(isinstance(value, str) for value in (*ours.values(), *theirs.values())):
            json.dumps([ours, theirs], ensure_ascii=False).encode()  # half of a surrogate pair could not be written
            return ours, theirs
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not two mappings: {type(error).__name__}") from error
    raise ValueError("not all of its values are texts")


def _own_fields(header: Header) -> dict[str, str]:
    ours: dict[str, str] = {}
    if header.id:
        ours[ID] = header.id
    for (name, default), value in zip(_FIELDS, header[2:9], strict=True):
        if value is not None and value != default:
            ours[name] = value
    if header.timestamp:
        ours[TIMESTAMP] = repr(header.timestamp)
    return ours


def _fitted(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """All fields and headers, as attributes that Pub/Sub takes."""
    found = {name: value for name, value in ours.items() if _fits(name, value)}
    folded_ours = {name: value for name, value in ours.items() if name not in found}
    own = {name: value for name, value in theirs.items() if _is_plain(name) and _fits(name, value)}
    others = {name: value for name, value in theirs.items() if name not in own}
    if folded_ours or others or len(found) + len(own) > MOST_ATTRIBUTES:
        while len(found) + len(own) + len(pieces := list(_folded(folded_ours, others))) > MOST_ATTRIBUTES:
            if not own:
                raise ValueError("its headers are too many, or too large, for the attributes of Pub/Sub")
            longest = max(own, key=lambda name: len(name) + len(own[name])) if len(own) < 8 else next(reversed(own))  # noqa: PLR2004
            others[longest] = own.pop(longest)
        own.update({f"{FOLDED}{place}": piece for place, piece in enumerate(pieces)})
    found.update(own)
    return found


def _ordering_key(ours: dict[str, str]) -> str:
    """The ordering key for Pub/Sub. A key that it cannot hold becomes an attribute; the ordering key is its digest."""
    key = ours.get(KEY)
    if not key:
        return ""
    data = key.encode()
    if len(data) > LONGEST_KEY:
        return hashlib.sha256(data).hexdigest()
    del ours[KEY]
    return key


def _is_plain(name: str) -> bool:
    return not (name in _OURS or name.startswith(FOLDED) or name.lower().startswith("goog"))


def _fits(name: str, value: str) -> bool:
    return 0 < len(name.encode()) <= LONGEST_NAME and len(value.encode()) <= LONGEST_VALUE


def _folded(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[str]:
    """The fields and headers as JSON, cut into pieces between characters."""
    if not ours and not theirs:
        return
    data = json.dumps([ours, theirs], ensure_ascii=False, separators=(",", ":")).encode()
    begin = 0
    while begin < len(data):
        piece = data[begin : begin + LONGEST_VALUE].decode("utf-8", "ignore")
        begin += len(piece.encode())
        yield piece


def from_attributes(
    attributes: Mapping[str, str], ordering_key: str, topic: str, message_id: str
) -> tuple[Header, str]:
    """The header of a message, and its fault. A message without an id gets the id of Pub/Sub."""
    others = {name: value for name, value in attributes.items() if name not in _OURS}
    fault = ""
    get = attributes.get
    if any(name.startswith(FOLDED) for name in others):
        ours, theirs, fault = _unfold(others)
        others = {name: value for name, value in others.items() if not name.startswith(FOLDED)}
        others.update(theirs)
        get = {**attributes, **ours}.get
    kind: Kind = "command"
    timestamp = 0.0
    try:
        kind = kind_of("pump-kind", get("pump-kind", kind))
        timestamp = time_of(TIMESTAMP, get(TIMESTAMP, "0"))
    except ValueError as error:
        fault = str(error)
    key = get(KEY)
    header = Header(
        get(ID) or message_id,
        topic,
        get("pump-type", ""),
        get("pump-version", ""),
        kind,
        get(CONTENT_TYPE, "application/json"),
        (ordering_key or None) if key is None else key,
        get("pump-correlation-id"),
        get("pump-reply-to"),
        timestamp,
        MappingProxyType(others) if others else NO_HEADERS,
    )
    return header, fault


def _unfold(attributes: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str], str]:
    pieces: list[str] = []
    while (piece := attributes.get(f"{FOLDED}{len(pieces)}")) is not None:
        pieces.append(piece)
    try:
        return *_read_pair("".join(pieces)), ""
    except ValueError:  # the message becomes a dead letter with its raw attributes, and this fault is the reason
        return {}, {}, f"the attributes {FOLDED}… are not in the form that a pump writes"


def copy_of(attributes: Mapping[str, str]) -> tuple[str, float, int]:
    """The identity of a copy in a channel's retry topic, when it is due, and its attempts so far."""
    return attributes.get(IDENTITY, ""), _number(attributes.get(DUE, "")), int(_number(attributes.get(ATTEMPTS_HEADER)))


def _number(text: Any) -> float:  # noqa: ANN401 - whatever stands there
    try:
        value = float(text)
    except (TypeError, ValueError):
        return 0.0
    return value if 0 <= value < 1e12 else 0.0  # noqa: PLR2004 - thirty thousand years
