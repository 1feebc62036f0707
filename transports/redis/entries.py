"""Between our messages and what stands on Redis, both ways. Whatever bytes come, they make a message.

A message's words are its header and what its copies carry, each by its name. On a stream they are fields of an entry,
beside the body. In a list they are the JSON of an envelope: MAGIC, sixteen bytes that no other has, the length of the
JSON in four bytes, the JSON, the body. What others put into a list is all body.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

from pump.dead_letter import PROVENANCE, Rejection, provenance
from pump.message import ATTEMPTS_HEADER, FIRST_FAILURE_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Message

BODY: Final = "body"
IDENTITY: Final = "pump-identity"
"""On a copy of a message without an id: where it was first, which stays its identity."""
ESCAPE: Final = "header:"
"""Before the name of a header that would be taken for something else."""
MOST_FIELDS: Final = 1000
"""Of one entry: a script can pass on no more than some thousand words."""
LONGEST_COUNT: Final = 9
MAGIC: Final = b"\0pump1"
MARK: Final = len(MAGIC) + 16
"""So long is the beginning by which an envelope is known."""
_START: Final = MARK + 4

_TEXTS: Final = {
    "id": "id",
    "type": "type",
    "version": "version",
    "kind": "kind",
    "content-type": "content_type",
    "key": "key",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "topic": "topic",
}
"""Words that are a Header's, by what it calls them."""
_TIME: Final = "time"
_OURS: Final = frozenset({*_TEXTS, _TIME, ATTEMPTS_HEADER, IDENTITY})
_KINDS: Final = frozenset({"command", "event", "document"})


class Receipt(NamedTuple):
    """The transport's handle on one delivery from a stream."""

    stream: int
    """1 is the topic's stream, 2 the channel's own."""
    id: bytes
    deliveries: int
    fields: Sequence[bytes]
    """As they came: names and values by turns."""


# -- words


def _words(header: Header, topic: str, body_field: str = BODY) -> dict[str, str]:
    """The words of a message in that topic. What is as by default is not said."""
    default = Header("", topic)
    words = {"id": header.id}
    for name, ours in _TEXTS.items():
        value = getattr(header, ours)
        if value != getattr(default, ours):
            words[name] = value
    if header.timestamp:
        words[_TIME] = repr(header.timestamp)
    for name, text in header.headers.items():
        taken = name in _OURS - {ATTEMPTS_HEADER} or name == body_field or name.startswith(ESCAPE)
        words[ESCAPE + name if taken else name] = text
    return words


class _Sorted:
    """Words, sorted by whose they are. What is not as we say it is somebody's header of that name."""

    def __init__(self) -> None:
        self.said: Final[dict[str, Any]] = {}
        self.headers: Final[dict[str, str]] = {}
        self.attempts = 0
        self.identity = ""
        self.odd = ""
        """A word of ours that is not said as we say it."""

    def sort(self, word: str, text: str) -> None:
        """Put one word where it belongs."""
        if word in _TEXTS and (word != "kind" or text in _KINDS):
            self.said[_TEXTS[word]] = text
        elif word == ATTEMPTS_HEADER and text.isascii() and text.isdigit() and len(text) <= LONGEST_COUNT:
            self.attempts = int(text)
        elif word == IDENTITY:
            self.identity = text
        elif word != _TIME or not self._is_time(text):
            self.headers[word.removeprefix(ESCAPE)] = text
            self.odd = word if word in {_TIME, "kind"} else self.odd

    def header(self, topic: str) -> Header:
        """What the words say of a message in that topic."""
        return Header(**{"id": "", "topic": topic, "headers": self.headers or NO_HEADERS, **self.said})

    def _is_time(self, text: str) -> bool:
        with suppress(ValueError):
            self.said["timestamp"] = _time(text)
            return True
        return False


def _time(text: str | bytes) -> float:
    time = float(text)
    if not isfinite(time):
        raise ValueError("a time is finite")
    return time


# -- entries of streams


def write(header: Header, body: bytes, *, topic: str, body_field: str = BODY) -> list[bytes]:
    """The fields of an entry in the stream of that topic."""
    words = _words(header, topic, body_field)
    return [*(word.encode() for pair in words.items() for word in pair), body_field.encode(), body]


class Reader:
    """Makes messages of the entries of one channel."""

    def __init__(self, topic: str, stream: str, generation: int, body_field: str = BODY) -> None:
        self._topic: Final = topic
        self._stream: Final = stream
        self._generation: Final = generation
        self._body: Final = body_field.encode()
        self._usual: Final = [b"id", b"type", b"time", self._body]

    def read(self, receipt: Receipt, lease_expires: float) -> Message:
        """The message that an entry is; one that makes no sense says so in its fault, and keeps all its fields."""
        fields, position = receipt.fields, receipt.id.decode()
        if fields[::2] == self._usual:  # as most of ours are, and read in half the time
            with suppress(ValueError):
                header = Header(fields[1].decode(), self._topic, fields[3].decode(), timestamp=_time(fields[5]))
                return Message(
                    header,
                    fields[7],
                    identity=header.id or f"{self._stream}/{position}",
                    receipt=receipt,
                    generation=self._generation,
                    deliveries=receipt.deliveries,
                    lease_expires=lease_expires,
                    position=position,
                )
        return self._read_any(receipt, position, lease_expires)

    def _read_any(self, receipt: Receipt, position: str, lease_expires: float) -> Message:
        found, strange = _Sorted(), dict[str, object]()
        known = dict(_pairs(receipt.fields))
        body = known.pop(self._body, None)
        for name, value in known.items():
            try:
                found.sort(name.decode(), value.decode())
            except UnicodeDecodeError:
                strange[name.decode("utf-8", "backslashreplace")] = value
        header = found.header(self._topic)
        message = Message(
            header,
            body or b"",
            identity=header.id or found.identity or f"{self._stream}/{position}",
            receipt=receipt,
            generation=self._generation,
            deliveries=receipt.deliveries,
            attempts=found.attempts,
            lease_expires=lease_expires,
            position=position,
            raw_headers=strange or NO_RAW_HEADERS,
        )
        if body is None:
            message.fault = f"the entry has no field {self._body.decode()!r}"
        elif len(receipt.fields) > 2 * MOST_FIELDS:
            message.fault = f"the entry has more than {MOST_FIELDS} fields"
        return message


def copy(message: Message, attempts: int, now: float) -> list[str | bytes]:
    """The fields of a copy that comes again: the original's, how many attempts are behind it, when it first failed."""
    receipt = cast("Receipt", message.receipt)
    fields = [*_without(receipt.fields, {ATTEMPTS_HEADER, IDENTITY}), ATTEMPTS_HEADER, str(attempts)]
    if FIRST_FAILURE_HEADER not in message.header.headers:
        fields += (FIRST_FAILURE_HEADER, f"{now:.3f}")
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


# -- elements of lists


def seal(header: Header, body: bytes, *, topic: str, more: Mapping[str, str] = NO_HEADERS) -> bytes:
    """An envelope for that topic's list, which no other is equal to."""
    text = json.dumps({**_words(header, topic), **more}, ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join((MAGIC, uuid4().bytes, len(text).to_bytes(4, "big"), text, body))


def seal_copy(message: Message, attempts: int, now: float, *, topic: str) -> bytes:
    """The envelope of a copy that comes again: how many attempts are behind it, and when it first failed."""
    header = message.header._replace(headers={FIRST_FAILURE_HEADER: f"{now:.3f}", **message.header.headers})
    more = {ATTEMPTS_HEADER: str(attempts)}
    if not header.id:
        more[IDENTITY] = message.identity
    return seal(header, message.body, topic=topic, more=more)


def mark(element: bytes) -> bytes:
    """What the element is known by in the list: its beginning, if it is an envelope, or else all of it."""
    return element[:MARK] if element.startswith(MAGIC) and len(element) > MARK else element


def unseal(element: bytes, *, topic: str, generation: int) -> Message:
    """The message that an element is. What is no envelope is all body; so is a broken one, as its fault says."""
    found, body, fault = _Sorted(), element, ""
    if element.startswith(MAGIC):
        try:
            body = _open(element, found)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            found, fault = _Sorted(), f"the envelope cannot be read: {error}"
            found.said["content_type"] = ""
    header = found.header(topic)
    return Message(
        header,
        body,
        identity=header.id or found.identity or f"{topic}/{hashlib.sha256(element).hexdigest()[:32]}",
        receipt=mark(element),
        generation=generation,
        attempts=found.attempts,
        fault=fault,
    )


def _open(element: bytes, found: _Sorted) -> bytes:
    end = _START + int.from_bytes(element[MARK:_START], "big")
    words: Mapping[str, str] = json.loads(element[_START:end])  # one that is cut off is no JSON
    for word, text in words.items():
        if not isinstance(text, str):
            raise TypeError(f"its {word} is no text")
        (word + text).encode()  # half a character is no text either
        found.sort(word, text)
    if found.odd:
        raise ValueError(f"its {found.odd} makes no sense")
    return element[end:]
