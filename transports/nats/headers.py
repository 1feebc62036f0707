"""How the pump's message header is written as NATS headers, and how headers of other senders are read."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Self

from pump.message import NO_HEADERS, Header, Kind
from pump.transport_kit.header_texts import kind_of, time_of

MSG_ID: Final = "Nats-Msg-Id"
"""By this header the server recognises a repetition. Each posting has a new one, even for the same message id."""
ID: Final = "pump-id"
TYPE: Final = "pump-type"
VERSION: Final = "pump-version"
KIND: Final = "pump-kind"
KEY: Final = "pump-key"
CORRELATION: Final = "pump-correlation-id"
REPLY_TO: Final = "pump-reply-to"
TIMESTAMP: Final = "pump-time"
CONTENT_TYPE: Final = "Content-Type"
ESCAPED: Final = "pump-headers"
"""Holds fields and headers that would not arrive unchanged as NATS headers, as JSON: [the pump's, the sender's]."""

JSON_TYPE: Final = "application/json"

_FIELDS: Final = (
    (TYPE, ""),
    (VERSION, ""),
    (KIND, "command"),
    (CONTENT_TYPE, JSON_TYPE),
    (KEY, None),
    (CORRELATION, None),
    (REPLY_TO, None),
)
"""The fields of a Header from the third one on, with their defaults. A default value is not sent."""
_OURS: Final = frozenset((MSG_ID, ID, *(name for name, _ in _FIELDS), TIMESTAMP, ESCAPED))
_OURS_IN_LOWER_CASE: Final = frozenset(name.lower() for name in _OURS)
_CORRELATION: Final = ("assignment_id", "request_id")
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SERVER_PREFIX: Final = "Nats-"
"""The beginning of the names of headers that the server itself acts on."""


class RepeatedHeader(str):
    """The first value of a header that stands several times; `values` has all of them."""

    __slots__ = ("values",)

    def __new__(cls, values: Sequence[str]) -> Self:
        """Made of one value or more."""
        made = super().__new__(cls, values[0])
        made.values = tuple(values)
        return made

    values: tuple[str, ...]


def sendable(raw: Mapping[str, object]) -> dict[str, str]:
    """Of the headers as they came, those that are the sender's own and can be sent again unchanged."""
    own = {name: text for name, text in raw.items() if isinstance(text, str) and not name.startswith(_SERVER_PREFIX)}
    return _spread({name: text for name, text in own.items() if _NAME.fullmatch(name) and _are_safe(text)})


def _spread(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers in the form for nats-py. A repeated name gets spaces at its end, which nats-py strips."""
    found = dict(headers)
    for name, value in headers.items():
        if isinstance(value, RepeatedHeader):
            found.update({name + " " * place: each for place, each in enumerate(value.values)})
    return found


def to_nats(header: Header, msg_id: str) -> dict[str, str]:
    """The NATS headers of a message. A `Nats-Msg-Id` among the sender's headers replaces `msg_id`."""
    fields = {MSG_ID: header.headers.get(MSG_ID, msg_id), ID: header.id}
    for (name, default), value in zip(_FIELDS, header[2:9], strict=True):
        if value is not None and value != default:
            fields[name] = value
    if header.timestamp:
        fields[TIMESTAMP] = repr(header.timestamp)
    ours = {name: fields.pop(name) for name, value in tuple(fields.items()) if not _is_safe(value)}
    theirs: dict[str, str] = {}
    for name, value in header.headers.items():
        if name == MSG_ID:
            continue
        if name.lower() in _OURS_IN_LOWER_CASE or not _NAME.fullmatch(name) or not _are_safe(value):
            theirs[name] = value
        else:
            fields[name] = value
    if ours or theirs:
        fields[ESCAPED] = json.dumps([ours, theirs])
    return _spread(fields)


def _are_safe(value: str) -> bool:
    return all(map(_is_safe, value.values)) if isinstance(value, RepeatedHeader) else _is_safe(value)


def _is_safe(value: str) -> bool:
    """Whether the value arrives unchanged: nats-py and the server strip spaces, and cut it at the end of a line."""
    return value.isprintable() and value == value.strip()


def from_nats(headers: Mapping[str, Any] | None, subject: str, position: str) -> tuple[Header, str]:
    """The header of a message, and its fault, if any. The id of a message without one is its position."""
    if not headers:
        return Header(position, subject), ""
    fault = ""
    others = {
        name: value if isinstance(value, str) else str(value)
        for name, value in headers.items()
        if name not in _OURS and not name.startswith(_SERVER_PREFIX)
    }
    if ESCAPED in headers:
        ours, theirs, fault = _unescape(headers[ESCAPED])
        headers = {**headers, **ours}
        others.update(theirs)
    get = headers.get
    kind: Kind = "command"
    timestamp = 0.0
    if KIND in headers:
        try:
            kind = kind_of(KIND, str(headers[KIND]))
        except ValueError as error:
            fault = str(error)
    if TIMESTAMP in headers:
        try:
            timestamp = time_of(TIMESTAMP, str(headers[TIMESTAMP]))
        except ValueError as error:
            fault = str(error)
    header = Header(
        get(ID) or get(MSG_ID) or position,
        subject,
        get(TYPE, ""),
        get(VERSION, ""),
        kind,
        get(CONTENT_TYPE, JSON_TYPE),
        get(KEY),
        get(CORRELATION),
        get(REPLY_TO),
        timestamp,
        MappingProxyType(others) if others else NO_HEADERS,
    )
    return header, fault


def _unescape(text: object) -> tuple[Mapping[str, str], Mapping[str, str], str]:
    try:
        ours, theirs = json.loads(str(text))
        if all(isinstance(value, str) for value in (*ours.values(), *theirs.values())):
            return ours, theirs, ""
    except (TypeError, ValueError, AttributeError, RecursionError):
        pass  # the message becomes a dead letter with its raw headers; the reason is the fault below
    return {}, {}, f"the header {ESCAPED} is not in the form that a pump writes"


def find(headers: Mapping[str, object], name: str) -> str | None:
    """The value of a header, or None. In its name, case, - or _, and a leading x- make no difference."""
    return next((str(value) for each, value in headers.items() if _plain(each) == name), None)


@lru_cache(1024)
def _plain(name: str) -> str:
    return name.lower().replace("-", "_").removeprefix("x_")


def correlation_ids(headers: Mapping[str, object]) -> dict[str, str]:
    """The assignment and request ids in the headers, for logs and exemplars, never for labels."""
    known = {
        _plain(name): str(value) for name, value in reversed(list(headers.items())) if _plain(name) in _CORRELATION
    }
    return {name: known[name] for name in _CORRELATION if name in known}
