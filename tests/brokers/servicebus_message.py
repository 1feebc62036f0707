"""An AMQP 1.0 message, in its sections: what a broker reads and writes of it; everything else stays as it was sent."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proton import Data, Described, symbol, ulong

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x72, 0x73, 0x74, 0x75
SECTIONS = range(0x70, 0x79)
MESSAGE_ID, SESSION_ID = 0, 10
"""Places in the list of properties."""


@dataclass
class Parts:
    """One message. The sections behind the annotations are kept as bytes, so that nothing of them changes."""

    rest: bytes
    annotations: Mapping[str, Any] = field(default_factory=dict)
    ttl: float = 0.0
    message_id: str = ""
    session: str = ""

    def encoded(self, count: int, more: Mapping[str, Any]) -> bytes:
        """As it is delivered: with a header that has the delivery count, also if that is 0."""
        ttl = b"\x70" + struct.pack(">I", min(int(self.ttl * 1000), 2**32 - 1)) if self.ttl else b"\x40"
        fields = b"\x41\x50\x04" + ttl + b"\x42\x70" + struct.pack(">I", count)
        header = b"\x00\x53\x70\xc0" + bytes([len(fields) + 1, 5]) + fields
        annotations = {symbol(name): value for name, value in {**self.annotations, **more}.items()}
        return header + encoded(ANNOTATIONS, annotations) + self.rest

    def with_properties(self, more: Mapping[str, str]) -> "Parts":
        """The same, with more application properties."""
        before, after, found = b"", b"", {}
        for code, value, raw in sections(self.rest):
            if code == APPLICATION:
                found = value
            elif code < APPLICATION:
                before += raw
            else:
                after += raw
        rest = before + encoded(APPLICATION, {**found, **more}) + after
        return Parts(rest, self.annotations, self.ttl, self.message_id, self.session)


def encoded(code: int, value: object) -> bytes:
    data = Data()
    data.put_object(Described(ulong(code), value))
    return bytes(data.encode())


def sections(raw: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """The sections of a message: code, value, bytes."""
    place = 0
    while place < len(raw):
        data = Data()
        length = data.decode(raw[place:])
        data.next()
        section = data.get_object()
        yield int(section.descriptor), section.value, raw[place : place + length]
        place += length


def parsed(raw: bytes) -> Parts:
    """The message that was sent."""
    parts = Parts(b"")
    for code, value, section in sections(raw):
        if code == HEADER:
            parts.ttl = value[2] / 1000 if len(value) > 2 and value[2] else 0.0
        elif code == ANNOTATIONS:
            parts.annotations = {str(name): each for name, each in value.items()}
        else:
            parts.rest += section
        if code == PROPERTIES:
            parts.message_id = str(value[MESSAGE_ID]) if value and value[MESSAGE_ID] is not None else ""
            parts.session = str(value[SESSION_ID] or "") if len(value) > SESSION_ID else ""
    return parts


def split(raw: bytes) -> list[bytes]:
    """The messages of a transfer: a batch is one message whose data sections are encoded messages."""
    found = [bytes(value) for code, value, _ in sections(raw) if code == DATA]
    nested = [each[:2] == b"\x00\x53" and len(each) > 2 and each[2] in SECTIONS for each in found]
    return found if found and all(nested) else [raw]
