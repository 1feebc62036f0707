"""Writes messages of the pump as payloads of the queue and reads them back. Any bytes can be read as a message.

An envelope is JSON, so that other programs can read it too. The body in it stays the same, byte for byte:
`{"pump":"000123","header":{…},"json":…}`, where the number is the length of the header's text. A body that is not JSON
is written as "text" or in "base64". A payload that is no envelope is a body without a header. The key in the header
decides in which partition of the queue the message is stored.
"""

import base64
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final
from zlib import crc32

from pump.message import NO_HEADERS, Header
from pump.queue.vocabulary import DEFAULT_PARTITION
from pump.queue.wire.json_body import is_json
from pump.transport_kit.header_texts import KINDS

SHARDS: Final = 64
"""The number of partitions for messages with keys, whatever the number of keys."""

START: Final = b'{"pump":"'
_NUMBER: Final = 6
_HEADER: Final = b'","header":'
_TEXT_FROM: Final = len(START) + _NUMBER + len(_HEADER)

_TEXTS: Final = ("id", "type", "version", "kind", "content_type", "key", "correlation_id", "reply_to")
_MAY_LACK: Final = frozenset({"key", "correlation_id", "reply_to"})
_DEFAULTS: Final = Header("")


def partition_of(header: Header) -> str:
    """Messages with the same key get the same partition, which keeps their order; without a key, the default one."""
    return DEFAULT_PARTITION if header.key is None else f"keys-{crc32(header.key.encode(errors='replace')) % SHARDS:02}"


def write(header: Header, body: bytes) -> bytes:
    """The envelope of a message, without its topic, which is the queue's name, and without default values."""
    members: dict[str, object] = {
        name: value for name in _TEXTS if (value := getattr(header, name)) != getattr(_DEFAULTS, name)
    }
    if header.timestamp:
        members["timestamp"] = header.timestamp
    if header.headers:
        members["headers"] = dict(header.headers)
    text = json.dumps(members, separators=(",", ":")).encode()
    number = b"%0*d" % (_NUMBER, len(text))
    return b"".join((START, number, _HEADER, text, *_written(body), b"}"))


def _written(body: bytes) -> tuple[bytes, bytes]:
    if is_json(body):
        return b',"json":', body
    largest = 4 * (len(body) // 3 + 1)
    try:
        text = json.dumps(body.decode(), ensure_ascii=False).encode()
    except UnicodeDecodeError:
        text = b""
    if text and len(text) <= largest:  # a longer one is mostly escapes, which nobody would read
        return b',"text":', text
    return b',"base64":', b'"' + base64.b64encode(body) + b'"'


def read(payload: bytes, topic: str) -> tuple[Header, bytes, str]:
    """Header, body, and the fault of the envelope ("" if none). A broken envelope is a body without a header."""
    if not payload.startswith(START):
        return Header("", topic), payload, ""
    try:
        end = _TEXT_FROM + int(payload[len(START) : len(START) + _NUMBER])
        header = _header(json.loads(payload[_TEXT_FROM:end]), topic)
        return header, _body(payload, end), ""
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        return Header("", topic, content_type=""), payload, f"the envelope cannot be read: {error}"


def _body(payload: bytes, end: int) -> bytes:
    colon = payload.index(b":", end) + 1
    kind, value = payload[end:colon], payload[colon:-1]
    if not payload.endswith(b"}"):
        raise ValueError("its end is missing")
    if kind == b',"json":':
        if not is_json(value):  # a cut-off envelope may end with a brace of the body
            raise ValueError("its body is not whole")
        return value
    text = json.loads(value)
    if kind == b',"text":':
        return bytes(text.encode())
    if kind == b',"base64":':
        return base64.b64decode(text, validate=True)
    raise ValueError("it has no body")


def _header(members: Mapping[str, Any], topic: str) -> Header:
    texts = {name: _text(members, name, getattr(_DEFAULTS, name)) for name in _TEXTS}
    if texts["kind"] not in KINDS:
        raise ValueError("its kind is not known")
    headers = members.get("headers", NO_HEADERS)
    if not all(isinstance(word, str) for pair in headers.items() for word in pair):
        raise TypeError("a header is not text")
    time = members.get("timestamp", 0.0)
    if not isinstance(time, int | float) or not isfinite(time):
        raise ValueError("its timestamp is not a time")
    options: dict[str, Any] = {**texts, "timestamp": float(time), "headers": headers}
    return Header(topic=topic, **options)


def _text(members: Mapping[str, Any], name: str, default: str | None) -> Any:  # noqa: ANN401 - a text, or the default
    value = members.get(name, default)
    if not isinstance(value, str) and not (value is None and name in _MAY_LACK):
        raise TypeError(f"its {name} is not text")
    return value
