"""Between our messages and the fields of stream entries, both ways. Whatever bytes come, they make a message."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final, NamedTuple, cast

from pump.dead_letter import PROVENANCE, Rejection, provenance
from pump.message import ATTEMPTS_HEADER, NO_RAW_HEADERS, Header, Message

BODY: Final = "body"
IDENTITY: Final = "pump-identity"
"""On a copy of a message without an id: where it was first, which stays its identity."""
ESCAPE: Final = "header:"
"""Before the name of a header that would be taken for something else."""
MOST_FIELDS: Final = 1000
"""Of one entry: a script can pass on no more than some thousand words."""
LONGEST_COUNT: Final = 9

_TEXTS: Final = {
    "id": "id",
    "topic": "topic",
    "type": "type",
    "version": "version",
    "kind": "kind",
    "content-type": "content_type",
    "key": "key",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
}
"""Fields that are a Header's, by what it calls them."""
_TIME: Final = "time"
_OURS: Final = frozenset({*_TEXTS, _TIME, ATTEMPTS_HEADER, IDENTITY})
_KINDS: Final = frozenset({"command", "event", "document"})
_DEFAULTS: Final = Header("")


class Receipt(NamedTuple):
    """The transport's handle on one delivery."""

    stream: int
    """1 is the topic's stream, 2 the channel's own."""
    id: bytes
    deliveries: int
    fields: Sequence[bytes]
    """As they came: names and values by turns."""


def write(header: Header, body: bytes, *, topic: str, body_field: str = BODY) -> list[bytes]:
    """The fields of an entry in the stream of that topic. What is as by default is not written."""
    fields = ["id", header.id]
    if header.type:
        fields += ("type", header.type)
    if header.timestamp:
        fields += (_TIME, repr(header.timestamp))
    for name in ("version", "kind", "content-type", "key", "correlation-id", "reply-to"):
        value = getattr(header, _TEXTS[name])
        if value != getattr(_DEFAULTS, _TEXTS[name]):
            fields += (name, value)
    if header.topic != topic:
        fields += ("topic", header.topic)
    for name, text in header.headers.items():
        fields += (_escaped(name, body_field), text)
    return [*(word.encode() for word in fields), body_field.encode(), body]


def _escaped(name: str, body_field: str) -> str:
    taken = name in _OURS - {ATTEMPTS_HEADER} or name == body_field or name.startswith(ESCAPE)
    return ESCAPE + name if taken else name


class _Understood(NamedTuple):
    """What the fields beside the body say."""

    header: Header
    attempts: int = 0
    identity: str = ""
    strange: Mapping[str, object] = NO_RAW_HEADERS


class _Sorted:
    """Fields, sorted by whose they are. What is not as we write it is somebody's header of that name."""

    def __init__(self) -> None:
        self.said: Final[dict[str, object]] = {}
        self.headers: Final[dict[str, str]] = {}
        self.strange: Final[dict[str, object]] = {}
        self.attempts = 0
        self.identity = ""

    def sort(self, name: bytes, value: bytes) -> None:
        """Put one field where it belongs."""
        try:
            word, text = name.decode(), value.decode()
        except UnicodeDecodeError:
            self.strange[_shown(name)] = value
            return
        if word in _TEXTS and (word != "kind" or text in _KINDS):
            self.said[_TEXTS[word]] = text
        elif word == ATTEMPTS_HEADER and text.isascii() and text.isdigit() and len(text) <= LONGEST_COUNT:
            self.attempts = int(text)
        elif word == IDENTITY:
            self.identity = text
        elif word != _TIME or not self._is_time(text):
            self.headers[word.removeprefix(ESCAPE)] = text

    def _is_time(self, text: str) -> bool:
        try:
            self.said["timestamp"] = _time(text)
        except ValueError:
            return False
        return True


class Reader:
    """Makes messages of the entries of one channel."""

    def __init__(self, topic: str, stream: str, generation: int, body_field: str = BODY) -> None:
        self._topic: Final = topic
        self._stream: Final = stream
        self._generation: Final = generation
        self._body: Final = body_field.encode()
        self._names: Final = [b"id", b"type", b"time", self._body]

    def read(self, receipt: Receipt, lease_expires: float) -> Message:
        """The message that an entry is; one that makes no sense says so in its fault, and keeps all its fields."""
        position = receipt.id.decode()
        body, (header, attempts, identity, strange) = self._usual(receipt.fields) or self._any(receipt.fields)
        message = Message(
            header,
            body or b"",
            identity=header.id or identity or f"{self._stream}/{position}",
            receipt=receipt,
            generation=self._generation,
            deliveries=receipt.deliveries,
            attempts=attempts,
            lease_expires=lease_expires,
            position=position,
            raw_headers=strange,
        )
        if body is None:
            message.fault = f"the entry has no field {self._body.decode()!r}"
        elif len(receipt.fields) > 2 * MOST_FIELDS:
            message.fault = f"the entry has more than {MOST_FIELDS} fields"
        return message

    def _usual(self, fields: Sequence[bytes]) -> "tuple[bytes, _Understood] | None":
        """The same as `_any`, of an entry as most of ours are; None of any other."""
        if fields[::2] == self._names:
            _, name, _, kind, _, time, _, body = fields
            with suppress(ValueError):
                return body, _Understood(Header(name.decode(), self._topic, kind.decode(), timestamp=_time(time)))
        return None

    def _any(self, fields: Sequence[bytes]) -> "tuple[bytes | None, _Understood]":
        known = dict(_pairs(fields))
        body = known.pop(self._body, None)
        found = _Sorted()
        for each in known.items():
            found.sort(*each)
        header = Header("", self._topic)._replace(**cast("Mapping[str, Any]", found.said))
        if found.headers:
            header = header._replace(headers=found.headers)
        return body, _Understood(header, found.attempts, found.identity, found.strange or NO_RAW_HEADERS)


def copy(message: Message, attempts: int) -> list[str | bytes]:
    """The fields of a copy that comes again: those of the original, and how many attempts are behind it."""
    receipt = cast("Receipt", message.receipt)
    replaced = {ATTEMPTS_HEADER, IDENTITY}
    fields = [*_without(receipt.fields, replaced), ATTEMPTS_HEADER, str(attempts)]
    return fields if message.header.id else [*fields, IDENTITY, message.identity]


def dead(message: Message, rejection: Rejection) -> list[str | bytes]:
    """The fields of a dead letter: those of the original, whatever they are, where it comes from, and why."""
    receipt = cast("Receipt", message.receipt)
    said = dict(provenance(message, rejection))
    if b"topic" not in receipt.fields[::2]:
        said["topic"] = message.header.topic
    fields = _without(receipt.fields, {ATTEMPTS_HEADER, IDENTITY, *PROVENANCE})
    return [*fields, *(word for pair in said.items() for word in pair)]


def _without(fields: Sequence[bytes], names: Iterable[str]) -> list[str | bytes]:
    left_out = {name.encode() for name in names}
    return [word for name, value in _pairs(fields) if name not in left_out for word in (name, value)]


def _pairs(fields: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    words = iter(fields)
    return zip(words, words, strict=False)


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _time(text: str | bytes) -> float:
    time = float(text)
    if not isfinite(time):
        raise ValueError("a time is finite")
    return time
