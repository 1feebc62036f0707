"""How messages are written to Redis and read back. Any bytes can be read as a message.

A message has named texts: its header, and what a copy of it carries. On a stream they are fields of an entry, beside
the body. In a list they are the JSON of an envelope: MAGIC, sixteen bytes that no other envelope has, the length of the
JSON in four bytes, the JSON, the body. An element of a list that is no envelope is all body. While a consumer has such
an element, TAG and sixteen bytes stand before it, since the list may hold equal elements.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

import msgspec

from pump.dead_letter import PROVENANCE, Rejection, provenance
from pump.message import ATTEMPTS_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Message
from pump.transport_kit.dead_letters import copy_headers
from pump.transport_kit.header_texts import KINDS, is_count, time_of

BODY: Final = "body"
IDENTITY: Final = "pump-identity"
"""On a copy of a message: the identity of the original, which the copy keeps."""
ESCAPE: Final = "header:"
"""Stands before the name of a header that would otherwise be read as something else."""
MOST_FIELDS: Final = 1000
"""The most fields of one entry: a script can pass on no more than some thousand."""
MAGIC: Final = b"\0pump1"
TAG: Final = b"\0pump0"
RECEIPT_LENGTH: Final = len(MAGIC) + 16
"""So many bytes at the beginning of an envelope, or of a tagged element, differ from those of all others."""
_JSON_START: Final = RECEIPT_LENGTH + 4

_HEADER_TEXTS: Final = {
    attribute.replace("_", "-"): attribute for attribute in Header._fields if attribute not in {"timestamp", "headers"}
}
"""The texts that are attributes of a Header: the text's name, and the attribute's name."""
_TIME: Final = "time"
_RESERVED: Final = frozenset({*_HEADER_TEXTS, _TIME, IDENTITY})
_decode_texts: Final = msgspec.json.Decoder(dict[str, str]).decode


class EntryReceipt(NamedTuple):
    """The transport's handle on one delivery from a stream."""

    stream: int
    """1 is the topic's stream, 2 is the channel's own stream."""
    id: bytes
    deliveries: int
    fields: Sequence[bytes]
    """The fields as they were read: names and values alternate."""
    attempts: int = 0
    """The number of attempts that is stored beside the entry."""


# -- texts


def _texts(header: Header, topic: str, body_field: str = BODY) -> dict[str, str]:
    """The texts of a message in that topic; default values are left out."""
    default = Header("", topic)
    texts = {"id": header.id}
    for name, attribute in _HEADER_TEXTS.items():
        value = getattr(header, attribute)
        if value != getattr(default, attribute):
            texts[name] = value
    if header.timestamp:
        texts[_TIME] = repr(header.timestamp)
    for name, text in header.headers.items():
        escaped = name in _RESERVED or name == body_field or name.startswith(ESCAPE)
        texts[ESCAPE + name if escaped else name] = text
    return texts


def _copy_texts(message: Message, attempts: int, now: float) -> dict[str, str]:
    """The texts that a copy has in addition to those of the original."""
    return {**copy_headers(message, attempts, now), IDENTITY: message.identity}


class _ParsedTexts:
    """The parsed texts of a message. A reserved name with a malformed value is read as a header of the sender's."""

    def __init__(self) -> None:
        self.attributes: Final[dict[str, Any]] = {}
        self.headers: Final[dict[str, str]] = {}
        self.raw: Final[dict[str, object]] = {}
        """Fields that are not text."""
        self.body: bytes | None = None
        self.attempts = 0
        self.identity = ""
        self.malformed = ""
        """A reserved name whose value is malformed."""

    def add(self, name: str, text: str) -> None:
        """Parse one text."""
        if name in _HEADER_TEXTS and (name != "kind" or text in KINDS):
            self.attributes[_HEADER_TEXTS[name]] = text
        elif name == ATTEMPTS_HEADER and is_count(text):
            self.attempts = int(text)
        elif name == IDENTITY:
            self.identity = text
        elif name != _TIME or not self._add_time(text):
            self.headers[name.removeprefix(ESCAPE)] = text
            self.malformed = name if name in {_TIME, "kind"} else self.malformed

    def header(self, topic: str) -> Header:
        """The header of the message, which was received from that topic."""
        return Header(**{"id": "", "topic": topic, "headers": self.headers or NO_HEADERS, **self.attributes})

    def _add_time(self, text: str) -> bool:
        with suppress(ValueError):
            self.attributes["timestamp"] = time_of(_TIME, text)
            return True
        return False


# -- entries of streams


def entry_fields(header: Header, body: bytes, *, topic: str, body_field: str = BODY) -> list[bytes]:
    """The fields of an entry in the stream of that topic."""
    texts = _texts(header, topic, body_field)
    return [*(word.encode() for pair in texts.items() for word in pair), body_field.encode(), body]


class EntryReader:
    """Makes messages of the entries of one channel."""

    def __init__(self, topic: str, stream: str, generation: int, body_field: str = BODY) -> None:
        self._topic: Final = topic
        self._stream: Final = stream
        self._generation: Final = generation
        self._body: Final = body_field.encode()
        self._usual: Final = [b"id", b"type", b"time", self._body]

    def read(self, receipt: EntryReceipt, lease_expires: float) -> Message:
        """The message of an entry. If the entry cannot be read, `fault` says why, and the receipt has all fields."""
        fields, position = receipt.fields, receipt.id.decode()
        header, body, parsed = None, b"", None
        if fields[::2] == self._usual:  # most of our entries have only these fields; this takes half the time
            with suppress(ValueError):
                header = Header(
                    fields[1].decode(), self._topic, fields[3].decode(), timestamp=time_of(_TIME, fields[5].decode())
                )
                body = fields[7]
        if header is None:
            parsed = self._parse(fields)
            header, body = parsed.header(self._topic), parsed.body or b""
        message = Message(
            header,
            body,
            identity=f"{self._stream}/{position}",
            receipt=receipt,
            generation=self._generation,
            deliveries=receipt.deliveries,
            lease_expires=lease_expires,
            position=position,
        )
        if parsed is not None:
            message.identity = parsed.identity or message.identity
            message.raw_headers = parsed.raw or NO_RAW_HEADERS
            message.fault = self._fault(parsed, fields)
        if parsed is not None or receipt.attempts:
            message.attempts = message.carried = max(receipt.attempts, 0 if parsed is None else parsed.attempts)
        return message

    def _parse(self, fields: Sequence[bytes]) -> _ParsedTexts:
        parsed, values = _ParsedTexts(), dict(_pairs(fields))
        parsed.body = values.pop(self._body, None)
        for name, value in values.items():
            try:
                parsed.add(name.decode(), value.decode())
            except UnicodeDecodeError:
                parsed.raw[name.decode("utf-8", "backslashreplace")] = value
        return parsed

    def _fault(self, parsed: _ParsedTexts, fields: Sequence[bytes]) -> str:
        if parsed.body is None:
            return f"the entry has no field {self._body.decode()!r}"
        return f"the entry has more than {MOST_FIELDS} fields" if len(fields) > 2 * MOST_FIELDS else ""


def copy_fields(message: Message, attempts: int, now: float) -> list[str | bytes]:
    """The fields of a copy that comes again: those of the original, its attempts, and when it first failed."""
    receipt = cast("EntryReceipt", message.receipt)
    return _changed(receipt.fields, {ATTEMPTS_HEADER, IDENTITY}, _copy_texts(message, attempts, now))


def dead_letter_fields(message: Message, rejection: Rejection) -> list[str | bytes]:
    """The fields of a dead letter: those of the original, whatever they are, and its provenance."""
    receipt = cast("EntryReceipt", message.receipt)
    added = dict(provenance(message, rejection))
    if b"topic" not in receipt.fields[::2]:
        added["topic"] = message.header.topic
    return _changed(receipt.fields, {ATTEMPTS_HEADER, IDENTITY, *PROVENANCE}, added)


def _changed(fields: Sequence[bytes], removed: Iterable[str], added: Mapping[str, str]) -> list[str | bytes]:
    names = {name.encode() for name in removed}
    kept = [word for name, value in _pairs(fields) if name not in names for word in (name, value)]
    return [*kept, *(word for pair in added.items() for word in pair)]


def _pairs(fields: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    words = iter(fields)
    return zip(words, words, strict=False)


# -- elements of lists


def envelope(header: Header, body: bytes, *, topic: str, more: Mapping[str, str] = NO_HEADERS) -> bytes:
    """An envelope for that topic's list. No two envelopes are equal."""
    text = msgspec.json.encode({**_texts(header, topic), **more})
    return b"".join((MAGIC, uuid4().bytes, len(text).to_bytes(4, "big"), text, body))


def copy_envelope(message: Message, attempts: int, now: float, *, topic: str) -> bytes:
    """The envelope of a copy that comes again, with its attempts, and when it first failed."""
    return envelope(message.header, message.body, topic=topic, more=_copy_texts(message, attempts, now))


def is_envelope(element: bytes) -> bool:
    """Whether the element is to be read as an envelope. Any other element is tagged while a consumer has it."""
    return element.startswith(MAGIC) and len(element) > RECEIPT_LENGTH


def read_element(element: bytes, *, topic: str, generation: int) -> Message:
    """The message of an element. If that is no envelope, or one that cannot be read (see `fault`), it is all body."""
    receipt = element[:RECEIPT_LENGTH]
    if receipt.startswith(TAG):
        element = element[RECEIPT_LENGTH:]
    parsed, body, fault = _ParsedTexts(), element, ""
    if element.startswith(MAGIC):
        try:
            body = _open(element, parsed)
        except ValueError as error:  # msgspec's errors are ValueErrors
            parsed, fault = _ParsedTexts(), f"the envelope cannot be read: {error}"
            parsed.attributes["content_type"] = ""
    header = parsed.header(topic)
    return Message(
        header,
        body,
        identity=parsed.identity or f"{topic}/{_name(element)}",
        receipt=receipt,
        generation=generation,
        attempts=parsed.attempts,
        fault=fault,
    )


def _name(element: bytes) -> str:
    """A name for the element: the unique bytes of an envelope; else a digest, the same for equal elements."""
    if is_envelope(element):
        return element[len(MAGIC) : RECEIPT_LENGTH].hex()
    return hashlib.sha256(element).hexdigest()[:32]


def _open(element: bytes, parsed: _ParsedTexts) -> bytes:
    end = _JSON_START + int.from_bytes(element[RECEIPT_LENGTH:_JSON_START], "big")
    for name, text in _decode_texts(element[_JSON_START:end]).items():
        parsed.add(name, text)
    if parsed.malformed:
        raise ValueError(f"its {parsed.malformed} is malformed")
    return element[end:]
