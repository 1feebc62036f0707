"""How a pump's header travels in the headers of a NATS message, and what is made of a stranger's."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast, get_args

from pump.message import NO_HEADERS, Header, Kind

MSG_ID: Final = "Nats-Msg-Id"
"""By which the server knows a repetition. Made for each posting: two messages may share an id, and both count."""
ID: Final = "pump-id"
TYPE: Final = "pump-type"
VERSION: Final = "pump-version"
KIND: Final = "pump-kind"
KEY: Final = "pump-key"
CORRELATION: Final = "pump-correlation-id"
REPLY_TO: Final = "pump-reply-to"
TIMESTAMP: Final = "pump-time"
CONTENT_TYPE: Final = "Content-Type"
OTHERS: Final = "pump-headers"
"""What would not arrive as it is in a header of its own: the pump's fields and the sender's headers, as JSON."""

JSON_TYPE: Final = "application/json"
KINDS: Final = frozenset(get_args(Kind))

_OURS: Final = frozenset((MSG_ID, ID, TYPE, VERSION, KIND, KEY, CORRELATION, REPLY_TO, TIMESTAMP, CONTENT_TYPE, OTHERS))
_OURS_IN_LOWER_CASE: Final = frozenset(name.lower() for name in _OURS)
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SERVERS: Final = "Nats-"
"""What the headers that the server itself acts on begin with."""


def written(header: Header, msg_id: str) -> dict[str, str]:
    """The NATS headers of a message. A `Nats-…` header that the sender asks for is for the server to act on."""
    fields = {MSG_ID: header.headers.get(MSG_ID, msg_id), **_said(header)}
    ours = {name: fields.pop(name) for name, value in tuple(fields.items()) if not _travels(value)}
    theirs: dict[str, str] = {}
    for name, value in header.headers.items():
        if name == MSG_ID:
            continue
        if name.lower() in _OURS_IN_LOWER_CASE or not _NAME.fullmatch(name) or not _travels(value):
            theirs[name] = value
        else:
            fields[name] = value
    if ours or theirs:
        fields[OTHERS] = json.dumps([ours, theirs])
    return fields


def _said(header: Header) -> dict[str, str]:
    """What the header says beyond the defaults, which travel as nothing."""
    fields = {ID: header.id}
    if header.type:
        fields[TYPE] = header.type
    if header.version:
        fields[VERSION] = header.version
    if header.kind != "command":
        fields[KIND] = header.kind
    if header.content_type != JSON_TYPE:
        fields[CONTENT_TYPE] = header.content_type
    if header.key is not None:
        fields[KEY] = header.key
    if header.correlation_id is not None:
        fields[CORRELATION] = header.correlation_id
    if header.reply_to is not None:
        fields[REPLY_TO] = header.reply_to
    if header.timestamp:
        fields[TIMESTAMP] = repr(header.timestamp)
    return fields


def _travels(value: str) -> bool:
    """Whether nats-py and the server leave the value as it is: they strip it, and end it at a line's end."""
    return value.isprintable() and value == value.strip()


def read(headers: Mapping[str, Any] | None, subject: str, position: str) -> tuple[Header, str]:
    """The header of a message, and what is wrong with it; a stranger's message is known by its position."""
    if not headers:
        return Header(position, subject), ""
    fault = ""
    others = {
        name: value if isinstance(value, str) else str(value)
        for name, value in headers.items()
        if name not in _OURS and not name.startswith(_SERVERS)
    }
    if OTHERS in headers:
        ours, theirs, fault = _unescaped(headers[OTHERS])
        headers = {**headers, **ours}
        others.update(theirs)
    get = headers.get
    kind, timestamp = get(KIND, "command"), 0.0
    if kind not in KINDS:
        kind, fault = "command", f"the header {KIND} names no kind of message"
    if TIMESTAMP in headers:
        try:
            timestamp = float(headers[TIMESTAMP])
        except (TypeError, ValueError):
            fault = f"the header {TIMESTAMP} is no time"
    header = Header(
        get(ID) or get(MSG_ID) or position,
        subject,
        get(TYPE, ""),
        get(VERSION, ""),
        cast("Kind", kind),
        get(CONTENT_TYPE, JSON_TYPE),
        get(KEY),
        get(CORRELATION),
        get(REPLY_TO),
        timestamp,
        MappingProxyType(others) if others else NO_HEADERS,
    )
    return header, fault


def _unescaped(text: object) -> tuple[Mapping[str, str], Mapping[str, str], str]:
    try:
        ours, theirs = json.loads(str(text))
        if all(isinstance(value, str) for value in (*ours.values(), *theirs.values())):
            return ours, theirs, ""
    except (TypeError, ValueError, AttributeError, RecursionError):
        pass  # the message is given up whole, with this fault as the reason
    return {}, {}, f"the header {OTHERS} is not what a pump writes"


def found(headers: Mapping[str, object], name: str) -> str | None:
    """A header's value, spelt with - or _, with or without x- in front, in any case; None where it is not there."""
    for each, value in headers.items():
        if each.lower().replace("-", "_").removeprefix("x_") == name:
            return str(value)
    return None


def ids(headers: Mapping[str, object]) -> dict[str, str]:
    """The assignment and the request that a message is about: for logs and exemplars, never for labels."""
    known = {name: found(headers, name) for name in ("assignment_id", "request_id")}
    return {name: value for name, value in known.items() if value is not None}
