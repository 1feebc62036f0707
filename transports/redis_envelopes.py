"""Between our messages and the elements of lists, both ways. Whatever bytes come, they make a message.

An envelope is MAGIC, sixteen bytes that no other has, the header's length in four bytes, the header as JSON, the body.
"""

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final
from uuid import uuid4

from pump.message import NO_HEADERS, Header, Message

MAGIC: Final = b"\0pump1"
MARK: Final = len(MAGIC) + 16
"""So long is the beginning by which an envelope is known."""
_START: Final = MARK + 4

_TEXTS: Final = ("id", "topic", "type", "version", "kind", "content_type", "key", "correlation_id", "reply_to")
_MAY_LACK: Final = frozenset({"key", "correlation_id", "reply_to"})
_KINDS: Final = frozenset({"command", "event", "document"})
_DEFAULTS: Final = Header("")


def write(header: Header, body: bytes, *, attempts: int = 0, identity: str = "") -> bytes:
    """An envelope, which no other is equal to. What is as by default is not written."""
    said: dict[str, object] = {
        name: value for name in _TEXTS if (value := getattr(header, name)) != getattr(_DEFAULTS, name)
    }
    if header.timestamp:
        said["timestamp"] = header.timestamp
    if header.headers:
        said["headers"] = dict(header.headers)
    if attempts:
        said["attempts"] = attempts
    if identity and not header.id:
        said["identity"] = identity
    text = json.dumps(said, separators=(",", ":")).encode()
    return b"".join((MAGIC, uuid4().bytes, len(text).to_bytes(4, "big"), text, body))


def mark(element: bytes) -> bytes:
    """What the element is known by in the list: its beginning, if it is an envelope, or else all of it."""
    return element[:MARK] if element.startswith(MAGIC) and len(element) > MARK else element


def read(element: bytes, *, topic: str, generation: int) -> Message:
    """The message that an element is. What is no envelope is all body; so is a broken one, as its fault says."""
    if not element.startswith(MAGIC):
        return _strange(element, topic, generation, "")
    try:
        end = _START + int.from_bytes(element[MARK:_START], "big")
        said = json.loads(element[_START:end])  # one that is cut off is no JSON
        header, attempts, identity = _header(said, topic), _count(said), _text(said, "identity", "")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return _strange(element, topic, generation, f"the envelope cannot be read: {error}")
    body = element[end:]
    identity = header.id or identity or _digest(topic, element)
    return Message(header, body, identity=identity, receipt=mark(element), generation=generation, attempts=attempts)


def _strange(element: bytes, topic: str, generation: int, fault: str) -> Message:
    header = Header("", topic, content_type="" if fault else _DEFAULTS.content_type)
    identity = _digest(topic, element)
    return Message(header, element, identity=identity, receipt=mark(element), generation=generation, fault=fault)


def _digest(topic: str, element: bytes) -> str:
    return f"{topic}/{hashlib.sha256(element).hexdigest()[:32]}"


def _header(said: Mapping[str, Any], topic: str) -> Header:
    texts = {name: _text(said, name, getattr(_DEFAULTS, name)) for name in _TEXTS}
    if texts["kind"] not in _KINDS:
        raise ValueError("its kind is none")
    headers = said.get("headers", NO_HEADERS)
    if not all(isinstance(word, str) for pair in headers.items() for word in pair):
        raise TypeError("a header is no text")
    time = said.get("timestamp", 0.0)
    if not isinstance(time, int | float) or not isfinite(time):
        raise ValueError("its timestamp is no time")
    options: dict[str, Any] = {**texts, "topic": texts["topic"] or topic, "timestamp": float(time), "headers": headers}
    return Header(**options)


def _text(said: Mapping[str, Any], name: str, default: str | None) -> Any:  # noqa: ANN401 - a text, or the default
    value = said.get(name, default)
    if not isinstance(value, str) and not (value is None and name in _MAY_LACK):
        raise TypeError(f"its {name} is no text")
    return value


def _count(said: Mapping[str, Any]) -> int:
    count = said.get("attempts", 0)
    if type(count) is not int or count < 0:
        raise TypeError("its attempts are no number")
    return count
